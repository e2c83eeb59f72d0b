// Views of results that several operations share.

import { bar, element } from "./dom.js";
import { counted, duration, onlyFirst } from "./numbers.js";

/** Maximum number of rows of a list, and of marks in a text: a page with many thousands of them freezes. */
export const MAX_ROWS = 300;

/**
 * Make a list of rows with a text, a value and a bar.
 * Items: `text`, `value` as shown, `fraction` from 0 to 1 if there is a bar, `note`, and `isChosen` for those that won.
 */
export function bars(items) {
  const rows = items.slice(0, MAX_ROWS).map(({ text, value, fraction, note, isChosen }) =>
    element(
      "li",
      { class: isChosen ? "chosen" : undefined },
      element("span", { class: "text" }, element("bdi", {}, text), ...(note ? [element("small", {}, note)] : [])),
      element("span", { class: "value" }, value),
      ...(fraction === undefined ? [] : [bar(fraction)]),
    ),
  );
  const rest = onlyFirst(rows.length, items.length).map((said) => element("li", { class: "hint" }, said));
  return element("ol", { class: "bars" }, ...rows, ...rest);
}

/** Make a text that may be long, with marks in it. It scrolls inside of itself. */
export const passage = (name, parts) =>
  element("div", { class: "passage", dir: "auto", tabindex: "0", role: "region", "aria-label": name }, ...parts);

/** Make rows of which one is chosen at a time. `choose` is called with the number of a row, at first with `chosen`. */
export function choices(name, items, choose, chosen = 0) {
  const rows = bars(items);
  rows.setAttribute("aria-label", name);
  const select = (number) => {
    [...rows.children].forEach((row, index) => {
      row.classList.toggle("chosen", index === number);
      row.firstChild.setAttribute("aria-pressed", index === number);
    });
    choose(number);
  };
  [...rows.children].forEach((row, index) => {
    const button = element("button", { type: "button", class: "text", onclick: () => select(index) });
    button.append(...row.firstChild.childNodes);
    row.firstChild.replaceWith(button);
  });
  if (items.length) select(chosen);
  return rows;
}

const MAX_NAMED = 5;
const STAGES = [
  ["tokenize_s", "Tokenize"],
  ["queue_s", "Queue"],
  ["inference_s", "Inference"],
];

/** Make the durations of the stages, summed over calls: `{reply, seconds}` each. */
export function timings(calls) {
  const total = (read) => calls.reduce((sum, item) => sum + read(item), 0);
  const stages = STAGES.map(([key, name]) => [name, total(({ reply }) => reply.timings?.[key] ?? 0)]);
  const all = [...stages, ["Total", total(({ seconds }) => seconds)]];
  const pairs = all.map(([name, seconds]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, duration(seconds))),
  );
  const several = calls.length > 1 ? [element("p", { class: "hint" }, `${calls.length} requests, times added up`)] : [];
  return [element("dl", { class: "timings" }, ...pairs), ...several];
}

/** Return a warning for each call whose texts were cut. `asked` has what may be cut, if that is not every text. */
export const cutWarnings = (calls, asked) =>
  calls.flatMap(({ reply }, index) => {
    const numbers = reply.num_truncated ?? [];
    const cut = numbers.reduce((sum, number) => sum + number, 0);
    if (!cut) return [];
    const part = asked[index].cuts ?? (numbers.length > 1 ? placesOf(numbers) : "");
    const which = `${counted(cut, "token")}${part && ` of ${part}`}`;
    const said = cut === 1 ? "was cut; the model did not read it" : "were cut; the model did not read them";
    return [element("p", { class: "notice" }, `${which} ${said}.`)];
  });

/** Return the places of the numbers that are not 0: `texts 1 and 3`. */
function placesOf(numbers) {
  const places = numbers.flatMap((number, index) => (number ? [`${index + 1}`] : []));
  const more = places.length > MAX_NAMED ? [`${places.length - MAX_NAMED} more`] : [];
  const named = new Intl.ListFormat("en").format([...places.slice(0, MAX_NAMED), ...more]);
  return `text${places.length > 1 ? "s" : ""} ${named}`;
}
