// The page: choose a model and an operation, type, run.

import { hasToken, setToken } from "./api.js";
import { byId, element, radios, showText } from "./dom.js";
import { problemOf, requestValues, showFields, typedValues } from "./form.js";
import { watchLoad } from "./load.js";
import { about, loadModels } from "./models.js";
import { exampleOf, operationsOf } from "./operations.js";
import { clearResult, run, showNote, watchDetails } from "./run.js";
import { vocabularyOf } from "./vocabulary.js";

const state = { models: [], model: null, operation: null, typed: {} };

const modelOf = (id) => state.models.find((model) => model.id === id);

/** Load the models, and choose the one that the address names. */
async function start() {
  showModels(await loadModels());
  byId("token-form").hidden = true;
  await chooseByAddress();
}

/** Load the models again. The chosen one stays, unless it is gone or has changed. */
async function refresh() {
  const before = state.models;
  const models = await loadModels();
  if (isSame(models, before)) return;
  showModels(models);
  const { id } = state.model ?? {};
  byId("model").value = id;
  const old = before.find((model) => model.id === id);
  if (!old || !isSame(old, modelOf(id))) await attempt(chooseByAddress);
}

const isSame = (first, second) => JSON.stringify(first) === JSON.stringify(second);

function showModels(models) {
  state.models = models;
  const options = models.map(({ id, task }) => element("option", { value: id }, `${id} (${task})`));
  byId("model").replaceChildren(...options);
  for (const id of ["chooser", "work"]) byId(id).hidden = models.length === 0;
}

async function chooseByAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const model = modelOf(wanted.get("model")) ?? state.models[0];
  if (model) await chooseModel(model, wanted.get("do"));
  else showText(byId("error"), "No model is loaded.");
}

async function chooseModel(chosen, operationId) {
  const model = { ...chosen };
  state.model = model;
  byId("model").value = model.id;
  byId("about").textContent = about(model);
  const fitting = operationsOf(model);
  if (fitting.some((item) => item.needsVocabulary)) Object.assign(model, await vocabularyOf(model));
  if (state.model !== model) return; // another one was chosen meanwhile
  const operation = fitting.find(({ id }) => id === operationId) ?? fitting[0];
  byId("operations").hidden = fitting.length < 2;
  const choose = (id) => attempt(() => chooseOperation(fitting.find((item) => item.id === id)));
  radios(byId("operations"), fitting, operation?.id, choose);
  byId("input").hidden = !operation;
  if (operation) await chooseOperation(operation);
  else showNote(`This page cannot run models of task ${model.task}. Call them over gRPC or HTTP.`);
}

async function chooseOperation(operation) {
  state.operation = operation;
  const { model } = state;
  history.replaceState(null, "", `#${new URLSearchParams({ model: model.id, do: operation.id })}`);
  const examples = operation.fields.map((field) => [field.name, exampleOf(operation, field, model)]);
  showFields(operation, { ...Object.fromEntries(examples), ...state.typed[operation.id] }, state.models);
  clearResult();
  await submit();
}

/** Run the operation on what is typed. */
async function submit() {
  const { operation, model, models } = state;
  const values = requestValues(operation, typedValues(operation), models);
  const problem = problemOf(operation, values);
  if (problem) throw new Error(problem);
  await run(operation, values, model);
}

/** Do something, and show its error. */
async function attempt(action) {
  showText(byId("error"), "");
  try {
    await action();
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  if (error.name === "AbortError") return;
  clearResult();
  if (error.status === 401) {
    byId("token-form").hidden = false;
    byId("token").focus();
  }
  showText(byId("error"), error.status === 401 && !hasToken() ? "" : error.message);
}

byId("model").addEventListener("change", ({ target }) =>
  attempt(() => chooseModel(modelOf(target.value))),
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
// A list that cannot be loaded stays as it is: the next run says why.
const refreshQuietly = () => refresh().catch(() => {});
byId("model").addEventListener("focus", refreshQuietly);
document.addEventListener("visibilitychange", () => document.hidden || refreshQuietly());
watchDetails();
watchLoad();
attempt(start);
