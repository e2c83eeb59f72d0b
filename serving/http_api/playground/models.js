// The loaded models, and what each can do.

import { call, reading } from "./api.js";

const LOADED = ["MODEL_STATE_READY", "MODEL_STATE_STALE"];

/** Return the loaded models. `reference` names one in a request, with its version only if there are several. */
export async function loadModels() {
  const { reply } = await call("ListModels", {});
  return reading(() => modelsOf(reply));
}

function modelsOf({ models }) {
  const loaded = models.filter((info) => LOADED.includes(info.state));
  return loaded.map((info) => {
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
  });
}

/** Return a description of a model in one line. */
export function about(model) {
  const size = model.dim ? `${model.dim} dimensions` : "";
  const labels = model.task === "classification" ? labelsOf(model) : "";
  return [model.task, model.precision, `reads ${model.length} tokens`, size, labels].filter(Boolean).join(" · ");
}

function labelsOf({ labels }) {
  const more = labels.length > 8 ? ` and ${labels.length - 8} more` : "";
  return labels.slice(0, 8).join(", ") + more;
}

/** True if a model ranks documents without being told which label means that one fits. */
export function ranks({ task, settings }) {
  if (task === "spans") return settings.unanswerable || settings.null_is_trained;
  return task === "regression" || (task === "token-embedding" && settings.normalize);
}

/** True if a model chooses among labels that a request names: it knows what entailment is. */
export const choosesAmongLabels = ({ task, labels }) =>
  task === "classification" && labels.some((label) => label.toLowerCase().startsWith("entail"));
