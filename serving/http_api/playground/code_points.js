// Offsets of the server count code points; strings of JavaScript count UTF-16 units.

/** Return a function that cuts a text at offsets in code points, as `text.slice` does at units. */
export function slicer(text) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return (start, end) => text.slice(units[start], units[end]);
}

/** Return parts of a text, in order: strings, and for each span what `mark` makes of its text. Spans do not overlap. */
export function marked(text, spans, mark) {
  const slice = slicer(text);
  const parts = [];
  let done = 0;
  for (const span of spans) {
    parts.push(slice(done, span.start), mark(slice(span.start, span.end), span));
    done = span.end;
  }
  return [...parts, slice(done)];
}
