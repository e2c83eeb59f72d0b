// The page: choose a model and an operation, type, run.

import { hasToken, setToken } from "./api.js";
import { byId, element, radios, showText } from "./dom.js";
import { requestValues, showFields, typedValues } from "./form.js";
import { watchLoad } from "./load.js";
import { about, loadModels, maskToken } from "./models.js";
import { exampleOf, operationsOf } from "./operations.js";
import { clearResult, run, watchDetails } from "./run.js";

const state = { models: [], model: null, operation: null, typed: {} };

async function start() {
  state.models = await loadModels();
  const wanted = new URLSearchParams(location.hash.slice(1));
  const options = state.models.map(({ id, task }) => element("option", { value: id }, `${id} (${task})`));
  byId("model").replaceChildren(...options);
  byId("token-form").hidden = true;
  for (const id of ["chooser", "work"]) byId(id).hidden = state.models.length === 0;
  showText(byId("error"), state.models.length ? "" : "No model is loaded.");
  const model = state.models.find(({ id }) => id === wanted.get("model")) ?? state.models[0];
  if (model) await chooseModel(model, wanted.get("do"));
}

async function chooseModel(model, operationId) {
  state.model = model;
  byId("model").value = model.id;
  byId("about").textContent = about(model);
  const fitting = operationsOf(model);
  if (fitting.some((item) => item.needsMask)) model.mask ??= await maskToken(model);
  if (state.model !== model) return; // another one was chosen meanwhile
  const operation = fitting.find(({ id }) => id === operationId) ?? fitting[0];
  byId("operations").hidden = fitting.length < 2;
  const choose = (id) => attempt(() => chooseOperation(fitting.find((item) => item.id === id)));
  radios(byId("operations"), fitting, operation?.id, choose);
  if (operation) await chooseOperation(operation);
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

/** Run the operation on what is typed, and remember it for the time that the page is open. */
async function submit() {
  const { operation, model, models } = state;
  const typed = typedValues(operation);
  await run(operation, requestValues(operation, typed, models), model);
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
watchDetails(fail);
watchLoad();
attempt(start);
