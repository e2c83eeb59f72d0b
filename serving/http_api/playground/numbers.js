// Numbers as people read them.

const PERCENT = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const COUNT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** Write a probability: `99.3%`. */
export const percent = (value) => PERCENT.format(value);

/** Write a score that is no probability: `0.432`. */
export function score(value) {
  if (value > 0 && value < 0.001) return "< 0.001";
  return value.toFixed(Math.abs(value) < 10 ? 3 : 1);
}

/** Write a count or rate with three digits: `1,230`. */
export const count = (value) => COUNT.format(value);

/** Write seconds: `0.41 ms`, `12 ms`, `1.5 s`. */
export function duration(seconds) {
  if (seconds >= 1) return `${COUNT.format(seconds)} s`;
  const ms = seconds * 1000;
  return `${ms < 10 ? ms.toFixed(ms < 1 ? 2 : 1) : Math.round(ms)} ms`;
}

/** Write a number of things: `1 token`, `12 tokens`. */
export const counted = (number, thing, things = `${thing}s`) =>
  `${number.toLocaleString("en")} ${number === 1 ? thing : things}`;

/** Say how many of a number of things are shown; nothing if all are. */
export const onlyFirst = (shown, number) =>
  number > shown ? [`Only the first ${shown.toLocaleString("en")} of ${number.toLocaleString("en")} are shown.`] : [];
