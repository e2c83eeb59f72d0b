// The page: choose a model and an operation, type, run.

import { call, hasToken, setToken } from "./api.js";
import { exampleOf, operationsOf, ranks } from "./operations.js";
import { vocabularyOf } from "./results.js";
import { clearResult, run, watchDetails } from "./run.js";
import { byId, element, radios, showText } from "./views.js";

const LOADED = ["MODEL_STATE_READY", "MODEL_STATE_STALE"];
const MAX_LABELS = 8;
const ROWS = { lines: 7, text: 4 };
const state = { models: [], model: null, operation: null, typed: {} };

/** Load the models, and choose the one that the address names. */
async function start() {
  const { reply } = await call("ListModels", {});
  const loaded = reply.models.filter((info) => LOADED.includes(info.state));
  state.models = loaded.map((info) => modelOf(info, loaded));
  byId("token-form").hidden = true;
  const options = state.models.map(({ id, task }) => element("option", { value: id }, `${id} (${task})`));
  byId("model").replaceChildren(...options);
  for (const id of ["chooser", "work"]) byId(id).hidden = options.length === 0;
  const wanted = new URLSearchParams(location.hash.slice(1));
  const model = state.models.find(({ id }) => id === wanted.get("model")) ?? state.models[0];
  if (model) await chooseModel(model, wanted.get("do"));
  else showText(byId("error"), "No model is loaded.");
}

/** Return what the page knows of a model. `reference` names it in a request, with a version if there are several. */
function modelOf(info, loaded) {
  const { name, version } = info.model;
  const manifest = JSON.parse(info.manifest_json);
  const isOnly = loaded.filter((other) => other.model.name === name).length === 1;
  return {
    id: isOnly ? name : `${name}/${version}`,
    reference: isOnly ? { name } : { name, version },
    task: info.task,
    precision: info.precision,
    length: info.max_seq_length,
    dim: info.dim,
    labels: info.labels ?? [],
    settings: manifest.settings,
    truncates: manifest.truncate,
  };
}

/** Return a description of a model in one line. */
function about({ task, precision, length, dim, labels }) {
  const more = labels.length > MAX_LABELS ? ` and ${labels.length - MAX_LABELS} more` : "";
  const named = task === "classification" ? labels.slice(0, MAX_LABELS).join(", ") + more : "";
  const size = dim ? `${dim} dimensions` : "";
  return [task, precision, `reads ${length} tokens`, size, named].filter(Boolean).join(" · ");
}

async function chooseModel(chosen, operationId) {
  const model = { ...chosen };
  state.model = model;
  byId("model").value = model.id;
  byId("about").textContent = about(model);
  const fitting = operationsOf(model);
  if (model.task === "masked-lm") Object.assign(model, await vocabularyOf(model));
  if (state.model !== model) return; // another one was chosen meanwhile
  const operation = fitting.find(({ id }) => id === operationId) ?? fitting[0];
  byId("operations").hidden = fitting.length < 2;
  const choose = (id) => attempt(() => chooseOperation(fitting.find((item) => item.id === id)));
  radios(byId("operations"), fitting, operation?.id, choose);
  byId("input").hidden = !operation;
  if (operation) return chooseOperation(operation);
  const note = `This page cannot run models of task ${model.task}. Call them over gRPC or HTTP.`;
  clearResult(element("p", { class: "notice" }, note));
}

async function chooseOperation(operation) {
  state.operation = operation;
  history.replaceState(null, "", `#${new URLSearchParams({ model: state.model.id, do: operation.id })}`);
  const examples = operation.fields.map((field) => [field.name, exampleOf(operation, field, state.model)]);
  showFields(operation, { ...Object.fromEntries(examples), ...state.typed[operation.id] }, state.models);
  clearResult();
  await submit();
}

/** Show the fields of an operation with their values by name. */
function showFields({ fields }, values, models) {
  const rankers = models.filter(ranks).map(({ id }) => id);
  const make = (field) => shownField(field, values[field.name], rankers);
  const folded = fields.filter((field) => field.isFolded).map(make);
  const more = folded.length ? [element("details", {}, element("summary", {}, "More"), ...folded)] : [];
  byId("fields").replaceChildren(...fields.filter((field) => !field.isFolded).map(make), ...more);
}

function shownField({ kind, name, label: title, optional, rows = ROWS[kind] }, value, rankers) {
  const common = { id: `field-${name}`, name };
  const text = { ...common, required: !optional, dir: "auto", autocomplete: "off" };
  const hint = optional ? [element("span", { class: "hint" }, " (optional)")] : [];
  const label = element("label", { for: common.id }, title, ...hint);
  if (kind === "check") {
    const control = element("input", { ...common, type: "checkbox" });
    control.checked = Boolean(value);
    return element("div", { class: "row" }, control, label);
  }
  const options = ["", ...rankers].map((id) => element("option", { value: id }, id || "nothing"));
  let control;
  if (kind === "ranker") control = element("select", common, ...options);
  else if (kind === "line") control = element("input", { ...text, type: "text" });
  else control = element("textarea", { ...text, rows: `${rows}` });
  if (kind !== "ranker" || rankers.includes(value)) control.value = value ?? "";
  return element("div", { class: "field", hidden: kind === "ranker" && !rankers.length }, label, control);
}

/** Return the values of the fields as they are typed. */
function typedValues({ fields }) {
  const read = ({ type, checked, value }) => (type === "checkbox" ? checked : value);
  return Object.fromEntries(fields.map(({ name }) => [name, read(byId(`field-${name}`))]));
}

/** Return the values that a request is made of: lists for lines, references for models. Throw an error for none. */
function requestValues(operation, models) {
  const values = typedValues(operation);
  for (const { name, kind, label } of operation.fields) {
    if (kind === "ranker") values[name] = models.find(({ id }) => id === values[name])?.reference;
    if (kind !== "lines") continue;
    values[name] = values[name].split("\n").filter((item) => item.trim());
    if (!values[name].length) throw new Error(`All lines of "${label}" are blank; type some text.`);
  }
  return values;
}

/** Run the operation on what is typed. */
const submit = () => run(state.operation, requestValues(state.operation, state.models), state.model);

/** Do something, and show its error. */
async function attempt(action) {
  showText(byId("error"), "");
  try {
    await action();
  } catch (error) {
    if (error.name === "AbortError") return;
    clearResult();
    if (error.status === 401) {
      byId("token-form").hidden = false;
      byId("token").focus();
    }
    showText(byId("error"), error.status === 401 && !hasToken() ? "" : error.message);
  }
}

byId("model").addEventListener("change", ({ target }) =>
  attempt(() => chooseModel(state.models.find(({ id }) => id === target.value))),
);
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(submit);
});
byId("form").addEventListener("input", () => {
  state.typed[state.operation.id] = typedValues(state.operation);
});
byId("form").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(() => {
    setToken(byId("token").value.trim());
    return start();
  });
});
watchDetails();
attempt(start);
