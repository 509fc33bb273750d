// A line chart of one or two runs.
import { drawn, make } from "./dom.js";

const WIDTH = 400, HEIGHT = 150, LEFT = 42, RIGHT = 8, TOP = 8, BOTTOM = 20;

export function chart(title, lines) { // lines: [[step, value], …] per run
  const all = lines.flat();
  if (!all.length) return null;
  const xs = all.map(point => point[0]), ys = all.map(point => point[1]);
  const right = Math.max(1, ...xs), low = Math.min(...ys), high = Math.max(...ys), span = high - low || 1;
  const x = step => LEFT + (step / right) * (WIDTH - LEFT - RIGHT), y = value => TOP + (1 - (value - low) / span) * (HEIGHT - TOP - BOTTOM);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, from ${short(low)} to ${short(high)}, last ${lines.map(line => line.length ? short(line.at(-1)[1]) : "none").join(" and ")}` });
  for (const value of [low, low + span / 2, low + span]) {
    svg.append(drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }), drawn("text", { x: LEFT - 5, y: y(value) + 3, "text-anchor": "end" }, short(value)));
  }
  svg.append(drawn("text", { x: LEFT, y: HEIGHT - 5 }, "0"), drawn("text", { x: WIDTH - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, `step ${right.toLocaleString()}`));
  lines.forEach((line, i) => svg.append(drawn("polyline", { class: i ? "other" : "own", points: line.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ") })));
  return make("figure", { class: "chart" }, make("figcaption", {}, title, make("b", {}, lines.map(line => (line.length ? short(line.at(-1)[1]) : "–")).join(" / "))), svg);
}

const short = value => Number(value.toPrecision(3)).toLocaleString(undefined, { maximumFractionDigits: 6 });
