// Fields of an operation.

import { ranks } from "./operations.js";
import { byId, element } from "./views.js";

const ROWS = { lines: 7, text: 4 };

/** Show the fields of an operation with their values by name. */
export function showFields({ fields }, values, models) {
  const rankers = models.filter(ranks).map(({ id }) => id);
  const make = (field) => shownField(field, values[field.name], rankers);
  const folded = fields.filter((field) => field.isFolded).map(make);
  const more = folded.length ? [element("details", {}, element("summary", {}, "More"), ...folded)] : [];
  byId("fields").replaceChildren(...fields.filter((field) => !field.isFolded).map(make), ...more);
}

function shownField(field, value, rankers) {
  const control = controlOf(field, rankers);
  if (field.kind === "check") control.checked = Boolean(value);
  else if (field.kind !== "ranker" || rankers.includes(value)) control.value = value ?? "";
  const hint = field.optional ? [element("span", { class: "hint" }, " (optional)")] : [];
  const label = element("label", { for: control.id }, field.label, ...hint);
  if (field.kind === "check") return element("div", { class: "row" }, control, label);
  return element("div", { class: "field", hidden: field.kind === "ranker" && !rankers.length }, label, control);
}

function controlOf({ kind, name, optional, rows = ROWS[kind] }, rankers) {
  const common = { id: `field-${name}`, name };
  if (kind === "check") return element("input", { ...common, type: "checkbox" });
  if (kind === "ranker") {
    const options = ["", ...rankers].map((id) => element("option", { value: id }, id || "nothing"));
    return element("select", common, ...options);
  }
  const text = { ...common, required: !optional, dir: "auto", autocomplete: "off" };
  return kind === "line"
    ? element("input", { ...text, type: "text" })
    : element("textarea", { ...text, rows: `${rows}` });
}

/** Return the values of the fields as they are typed. */
export const typedValues = ({ fields }) =>
  Object.fromEntries(
    fields.map(({ name, kind }) => {
      const control = byId(`field-${name}`);
      return [name, kind === "check" ? control.checked : control.value];
    }),
  );

/** Return the values that a request is made of: lists for lines, references for models. Throw an error for none. */
export function requestValues(operation, models) {
  const values = typedValues(operation);
  for (const { name, kind, label } of operation.fields) {
    if (kind === "ranker") values[name] = models.find(({ id }) => id === values[name])?.reference;
    if (kind !== "lines") continue;
    values[name] = values[name].split("\n").filter((item) => item.trim());
    if (!values[name].length) throw new Error(`All lines of "${label}" are blank; type some text.`);
  }
  return values;
}
