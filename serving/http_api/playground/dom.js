// Elements of the page. Text becomes text nodes and never HTML.

/** Make an element. Attributes are strings, true, or functions for events (`onclick`). */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** Return the element of the page with an id. */
export const byId = (id) => document.getElementById(id);

/** Make a bar for a fraction from 0 to 1. Readers of the screen get the number beside it. */
export function bar(fraction) {
  const filled = element("span");
  filled.style.inlineSize = `${100 * Math.min(1, Math.max(0, fraction))}%`;
  return element("span", { class: "bar", "aria-hidden": "true" }, filled);
}

/** Fill a fieldset with radio buttons; `change` is called with the id of the chosen item. */
export function radios(fieldset, items, chosen, change) {
  fieldset.querySelectorAll("label").forEach((label) => label.remove());
  for (const { id, title } of items) {
    const input = element("input", { type: "radio", name: fieldset.id, value: id, onchange: () => change(id) });
    input.checked = id === chosen;
    fieldset.append(element("label", {}, input, element("span", {}, title)));
  }
}

/** Show a text in an element, which is hidden without one. */
export function showText(target, text) {
  target.textContent = text;
  target.hidden = !text;
}
