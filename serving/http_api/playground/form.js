// Fields of an operation.

import { byId, element } from "./dom.js";
import { ranks } from "./models.js";

const HALF_OF_PAIR = /\p{Surrogate}/u;
const LINES_ROWS = 7;
const TEXT_ROWS = 4;

/** Show the fields of an operation with their values by name. */
export function showFields({ fields }, values, models) {
  const make = (field) => shownField(field, values[field.name], models);
  const folded = fields.filter((field) => field.isFolded).map(make);
  const more = folded.length ? [element("details", {}, element("summary", {}, "More"), ...folded)] : [];
  byId("fields").replaceChildren(...fields.filter((field) => !field.isFolded).map(make), ...more);
}

function shownField(field, value, models) {
  if (field.kind === "ranker") return rankerField(field, models.filter(ranks), value);
  const control = controlOf(field, value);
  const hint = field.optional ? [element("span", { class: "hint" }, " (optional)")] : [];
  const label = element("label", { for: control.id }, field.label, ...hint);
  if (field.kind === "check") return element("div", { class: "row" }, control, label);
  return element("div", { class: "field" }, label, control);
}

function controlOf(field, value) {
  const common = { id: `field-${field.name}`, name: field.name };
  if (field.kind === "check") {
    const box = element("input", { ...common, type: "checkbox" });
    box.checked = Boolean(value);
    return box;
  }
  const needed = { required: !field.optional, dir: "auto", autocomplete: "off" };
  const isLine = field.kind === "line";
  const rows = field.rows ?? (field.kind === "lines" ? LINES_ROWS : TEXT_ROWS);
  const control = isLine
    ? element("input", { ...common, ...needed, type: "text" })
    : element("textarea", { ...common, ...needed, rows: `${rows}` });
  control.value = value ?? "";
  return control;
}

function rankerField(field, rankers, value) {
  const id = `field-${field.name}`;
  const options = ["", ...rankers.map((model) => model.id)];
  const names = options.map((name) => element("option", { value: name }, name || "nothing"));
  const select = element("select", { id, name: field.name }, ...names);
  select.value = options.includes(value) ? value : "";
  const label = element("label", { for: id }, field.label);
  return element("div", { class: "field", hidden: rankers.length === 0 }, label, select);
}

/** Return the values of the fields as they are typed. */
export const typedValues = ({ fields }) =>
  Object.fromEntries(
    fields.map(({ name, kind }) => {
      const control = byId(`field-${name}`);
      return [name, kind === "check" ? control.checked : control.value];
    }),
  );

/** Return the values that a request is made of: lists for lines, references for models. */
export const requestValues = ({ fields }, typed, models) =>
  Object.fromEntries(
    fields.map(({ name, kind }) => {
      if (kind === "lines") return [name, typed[name].split("\n").filter((item) => item.trim())];
      if (kind === "ranker") return [name, models.find(({ id }) => id === typed[name])?.reference];
      return [name, typed[name]];
    }),
  );

/** Return why a request cannot be made of the values, as a sentence; empty if it can. */
export function problemOf({ fields }, values) {
  for (const { name, label, kind } of fields) {
    const texts = [values[name]].flat();
    if (kind === "lines" && !texts.length) return `All lines of "${label}" are blank; type some text.`;
    const number = texts.findIndex((item) => HALF_OF_PAIR.test(item));
    if (number < 0) continue;
    const line = kind === "lines" ? ` of text ${number + 1}` : "";
    const place = [...texts[number]].findIndex((character) => HALF_OF_PAIR.test(character)) + 1;
    return `Character ${place}${line} in "${label}" is half of a surrogate pair, which is no character; remove it.`;
  }
  return "";
}
