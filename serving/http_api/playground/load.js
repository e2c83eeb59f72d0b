// Live view of the server's load, from /metrics.

import { get, reading, textOf } from "./api.js";
import { byId, element } from "./dom.js";
import { count, duration } from "./numbers.js";

const INTERVAL_MS = 2000;
const NUM_POINTS = 60;
const SAMPLE = /^(\w+)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
/** Routes and RPCs that are not counted: those that only this page calls, and health checks. */
const OWN_ROUTES = [
  "GET /",
  "GET /playground/{file}",
  "GET /playground/server",
  "GET /metrics",
  "GET /health",
  "GET /v2/health/live",
  "GET /v2/health/ready",
  "GET /v2/models/{name}/ready",
  "GET /v2/models/{name}/versions/{version}/ready",
];
const OWN_METHODS = ["ServerLive", "ServerReady", "ModelReady"];

const rate = (key) => (now, before) => ((now[key] - before[key]) * 1000) / (now.time - before.time);
const latency = (fraction) => (now, before) => quantile(fraction, now.buckets, before.buckets);
const GAUGES = [
  { name: "Requests", unit: "per second", read: rate("handled"), show: count },
  { name: "Sequences", unit: "per second", read: rate("rows"), show: count },
  { name: "Tokens", unit: "per second", read: rate("tokens"), show: count },
  { name: "Latency", unit: "median", read: latency(0.5), show: duration },
  { name: "Latency", unit: "99% are faster", read: latency(0.99), show: duration },
  { name: "Queue", unit: "sequences", read: (now) => now.queued, show: count },
  { name: "Queue", unit: "mean wait", read: (now, before) => mean(now.wait, before.wait), show: duration },
];

/** Poll the metrics while the view is open and visible. */
export function watchLoad() {
  const points = GAUGES.map(() => []);
  let before = null;
  let timer = 0;
  const poll = async () => {
    clearTimeout(timer);
    if (!byId("load").open || document.hidden) return;
    try {
      const text = await textOf(await get("metrics"));
      const now = { ...reading(() => totals(text)), time: performance.now() };
      if (before && !isRestarted(now, before)) addPoints(points, now, before);
      before = now;
      show(points);
    } catch (error) {
      before = null;
      byId("gauges").replaceChildren(element("p", { class: "notice" }, reasonOf(error)));
    }
    timer = setTimeout(poll, INTERVAL_MS);
  };
  byId("load").addEventListener("toggle", poll);
  document.addEventListener("visibilitychange", poll);
}

function reasonOf({ status, message }) {
  return status === 404
    ? "This port has no /metrics: the server shows its metrics at another address (--metrics-host)."
    : `The metrics cannot be read. ${message}`;
}

/** True if a counter has fallen: the server was started again, and rates since the earlier sample mean nothing. */
export const isRestarted = (now, before) =>
  ["handled", "rows", "tokens"].some((key) => now[key] < before[key]) || now.wait.count < before.wait.count;

function addPoints(points, now, before) {
  GAUGES.forEach(({ read }, index) => points[index].push(read(now, before)));
  points.filter((series) => series.length > NUM_POINTS).forEach((series) => series.shift());
}

/** Add up the samples of a Prometheus page; throw an error if it is another page. */
export function totals(page) {
  if (!page.includes("bertline_")) throw new Error("no metric of the server");
  const found = { handled: 0, rows: 0, tokens: 0, queued: 0, buckets: new Map(), wait: { sum: 0, count: 0 } };
  for (const line of page.split("\n")) {
    const [, name, labels = "", text] = line.match(SAMPLE) ?? [];
    if (name) addSample(found, name, labels, Number(text));
  }
  return found;
}

function addSample(found, name, text, value) {
  if (name === "bertline_batch_rows_sum") found.rows += value;
  else if (name === "bertline_tokens_total") found.tokens += value;
  else if (name === "bertline_queue_sequences") found.queued += value;
  else if (name === "bertline_queue_seconds_sum") found.wait.sum += value;
  else if (name === "bertline_queue_seconds_count") found.wait.count += value;
  else if (/^(http|grpc)_server_/.test(name)) {
    const labels = Object.fromEntries([...text.matchAll(LABEL)].map(([, key, content]) => [key, content]));
    const route = `${labels.http_method} ${labels.http_route}`;
    if (OWN_ROUTES.includes(route) || OWN_METHODS.includes(labels.grpc_method)) return;
    if (name.endsWith("_handled_total")) found.handled += value;
    if (name.endsWith("_handling_seconds_bucket")) {
      const bound = Number(labels.le.replace("+Inf", "Infinity"));
      found.buckets.set(bound, (found.buckets.get(bound) ?? 0) + value);
    }
  }
}

/** Return a quantile of what was observed between two pages, as Prometheus estimates it; undefined without any. */
export function quantile(fraction, now, before) {
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound) => now.get(bound) - (before.get(bound) ?? 0));
  const rank = fraction * (counts.at(-1) ?? 0);
  if (!rank) return undefined;
  const index = counts.findIndex((number) => number >= rank);
  const [low, less] = index ? [bounds[index - 1], counts[index - 1]] : [0, 0];
  if (bounds[index] === Infinity) return low;
  return low + ((bounds[index] - low) * (rank - less)) / (counts[index] - less);
}

function mean(now, before) {
  const number = now.count - before.count;
  return number ? (now.sum - before.sum) / number : undefined;
}

function show(points) {
  const tiles = GAUGES.map(({ name, unit, show: write }, index) => {
    const value = points[index].at(-1);
    return element(
      "div",
      {},
      element("dt", {}, name, element("small", {}, unit)),
      element("dd", {}, value === undefined ? "–" : write(value)),
      sparkline(points[index]),
    );
  });
  byId("gauges").replaceChildren(element("dl", { class: "gauges" }, ...tiles));
}

/** Draw a line through points; those that are undefined count as 0. */
function sparkline(points) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${NUM_POINTS - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const highest = Math.max(...points.map((value) => value ?? 0), Number.MIN_VALUE);
  const place = (value, index) => `${NUM_POINTS - points.length + index},${19 - (18 * (value ?? 0)) / highest}`;
  line.setAttribute("points", points.map(place).join(" "));
  svg.append(line);
  return svg;
}
