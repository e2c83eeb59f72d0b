// Elements and numbers that several operations show. Text becomes text nodes and never HTML.

/** Maximum number of rows of a list, and of marks in a text: a page with many thousands of them freezes. */
export const MAX_ROWS = 300;
const PERCENT = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const STAGES = { tokenize_s: "Tokenize", queue_s: "Queue", inference_s: "Inference" };

/** Return the element of the page with an id. */
export const byId = (id) => document.getElementById(id);

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

/** Write a probability: `99.3%`. */
export const percent = (value) => PERCENT.format(value);

/** Write a score that is no probability: `0.432`. */
export function score(value) {
  if (value > 0 && value < 0.001) return "< 0.001";
  return value.toFixed(Math.abs(value) < 10 ? 3 : 1);
}

/** Write a number of things: `1 token`, `12 tokens`. */
export const counted = (number, thing, things = `${thing}s`) =>
  `${number.toLocaleString("en")} ${number === 1 ? thing : things}`;

/** Say how many of a number of things are shown; nothing if all are. */
export function onlyFirst(shown, number, tag = "p") {
  const said = `Only the first ${shown.toLocaleString("en")} of ${number.toLocaleString("en")} are shown.`;
  return number > shown ? [element(tag, { class: "hint" }, said)] : [];
}

/**
 * Make a list of rows with a text, a value and a bar. Items: `text`, `value` as shown, `fraction` from 0 to 1 if there
 * is a bar, `note`, `isChosen` for those that won, and `choose` for texts that are buttons.
 */
export function bars(items) {
  const bar = (fraction) => {
    const filled = element("span");
    filled.style.inlineSize = `${100 * Math.min(1, Math.max(0, fraction))}%`;
    return element("span", { class: "bar", "aria-hidden": "true" }, filled); // readers of the screen get the number
  };
  const rows = items.slice(0, MAX_ROWS).map(({ text, value, fraction, note, isChosen, choose }) => {
    const parts = [element("bdi", {}, text), ...(note ? [element("small", {}, note)] : [])];
    const button = { type: "button", class: "text", onclick: choose };
    return element(
      "li",
      { class: isChosen ? "chosen" : undefined },
      choose ? element("button", button, ...parts) : element("span", { class: "text" }, ...parts),
      element("span", { class: "value" }, value),
      ...(fraction === undefined ? [] : [bar(fraction)]),
    );
  });
  return element("ol", { class: "bars" }, ...rows, ...onlyFirst(rows.length, items.length, "li"));
}

/** Make a row with a probability as its bar. */
export const likely = (text, value, more) => ({ text, value: percent(value), fraction: value, ...more });

/** Make rows of which one is chosen at a time. `choose` is called with the number of a row, at first with `chosen`. */
export function choices(name, items, choose, chosen = 0) {
  const select = (number) => {
    [...rows.children].forEach((row, index) => {
      row.classList.toggle("chosen", index === number);
      row.firstChild.setAttribute("aria-pressed", index === number);
    });
    choose(number);
  };
  const rows = bars(items.map((item, index) => ({ ...item, choose: () => select(index) })));
  rows.setAttribute("aria-label", name);
  if (items.length) select(chosen);
  return rows;
}

/** Make a text that may be long, with marks in it. It scrolls inside of itself. */
export const passage = (name, parts) =>
  element("div", { class: "passage", dir: "auto", tabindex: "0", role: "region", "aria-label": name }, ...parts);

/** Make the durations of the stages, summed over calls: `{reply, seconds}` each. */
export function timings(calls) {
  const total = (read) => calls.reduce((sum, item) => sum + read(item), 0);
  const stages = Object.entries(STAGES).map(([key, name]) => [name, total(({ reply }) => reply.timings?.[key] ?? 0)]);
  const pairs = [...stages, ["Total", total(({ seconds }) => seconds)]].map(([name, seconds]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, `${(1000 * seconds).toPrecision(2) * 1} ms`)),
  );
  const several = calls.length > 1 ? [element("p", { class: "hint" }, `${calls.length} requests, times added up`)] : [];
  return [element("dl", { class: "timings" }, ...pairs), ...several];
}
