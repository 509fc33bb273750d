// The map: every image, concept or patch as a point.
import { get, getBytes, post, thumbnail, trying } from "./api.js";
import { along, category, css } from "./colours.js";
import { byId, make, say, segments } from "./dom.js";
import { Grid } from "./grid.js";
import { pointsOn } from "./points.js";
import { on, open, replaceSelection, select, store } from "./store.js";

const canvas = byId("map"), tip = byId("tip"), lasso = byId("lasso").firstElementChild, note = byId("map-note");
const NAMES = { pca: "PCA", tsne: "t-SNE", umap: "UMAP" };
const FLIGHT = 700; // milliseconds from one layout to the next
const view = { x: 0.5, y: 0.5, zoom: 400 };
const state = { of: "images", layout: "pca", colour: null, values: null, points: new Uint16Array(0), grid: new Grid(new Uint16Array(0)),
  rowOf: i => i, detail: () => null, current: -1, drawing: false, started: 0, asked: 0 };
let renderer, waiting = false;
export const frames = { drawn: 0 };

export async function startMap() {
  renderer = pointsOn(canvas);
  const { world } = store;
  const kinds = [["images", "Images"], ...(world.concepts ? [["concepts", "Concepts"]] : []), ["patches", "Patches of the selection"]];
  byId("points").replaceChildren(...kinds.map(([value, text]) => make("option", { value }, text)));
  byId("points").addEventListener("change", event => { state.of = event.target.value; state.layout = "pca"; offerLayouts(); load(true); });
  const colours = [...(world.classes ? [["label", "Label"]] : []), ["cluster", "Cluster"], ["typicality", "Typicality (score)"],
    ...(world.classes ? [["agreement", "Neighbours agree (score)"]] : []), ["labels so far", "Labels so far"], ...world.columns.map(name => [name, name])];
  byId("colour").replaceChildren(...colours.map(([value, text]) => make("option", { value }, text)));
  byId("colour").addEventListener("change", event => { state.colour = event.target.value; recolour(); });
  state.colour = colours[0][0];
  offerLayouts();
  listen();
  new ResizeObserver(resize).observe(canvas);
  resize();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  on("selection", paint);
  on("open", row => { if (state.of === "images") { state.current = row; paint(); } });
  on("labels", () => { if (state.colour === "labels so far") recolour(); });
  on("patches", () => { if (state.of === "patches") load(true); });
  await Promise.all([load(true), recolour()]);
  await trying(() => get("map/layouts", { of: "images" })); // starts t-SNE
}

function offerLayouts() {
  segments(byId("layouts"), Object.entries(NAMES), state.layout, layout => { state.layout = layout; load(false); });
}

async function load(fit) {
  const asked = ++state.asked, { of, layout } = state;
  await trying(async () => {
    let bytes, rowOf, detail = () => null;
    const busy = () => { if (asked === state.asked) tellNote(`Computing ${NAMES[layout]}…`); };
    if (of === "patches") {
      const rows = [...store.selected];
      if (!rows.length) { tellNote("Select images, for example with the lasso; their patches become points."); return; }
      bytes = await (await post("map/patches", { rows }, { layout }, busy)).arrayBuffer();
      const each = store.world.grid[0] * store.world.grid[1];
      rowOf = i => rows[Math.floor(i / each)];
      detail = i => ({ kind: "patch", number: i % each });
    } else {
      bytes = await getBytes("map/points", { of, layout }, busy);
      rowOf = i => i;
      if (of === "concepts") {
        const rows = new Uint32Array(await getBytes("map/concept-rows")), each = store.world.concepts;
        rowOf = i => rows[Math.floor(i / each)];
        detail = i => ({ kind: "concept", number: i % each });
      }
    }
    if (asked !== state.asked) return;
    tellNote("");
    const after = new Uint16Array(bytes), before = !fit && state.points.length === after.length ? state.points : after;
    Object.assign(state, { points: after, grid: new Grid(after), rowOf, detail, current: fit ? -1 : state.current, started: performance.now() });
    renderer.move(before, after);
    paint();
    if (fit) showAll();
    canvas.dataset.points = after.length / 2;
    canvas.dataset.layout = layout;
    say(`${(after.length / 2).toLocaleString()} points, ${NAMES[layout]}`);
  });
}

async function recolour() {
  const by = state.colour;
  await trying(async () => {
    const found = await get("map/colour", { by }, () => { if (by === state.colour) tellNote("Computing colours…"); });
    if (by !== state.colour) return; // another one was chosen meanwhile
    tellNote("");
    found.values = new Uint16Array(Uint8Array.from(atob(found.values), each => each.charCodeAt(0)).buffer);
    state.values = found;
    legend(found);
    paint();
    canvas.dataset.colour = by;
  });
}

function legend(found) {
  const place = byId("legend");
  if (found.kind === "category") {
    const shown = found.names.slice(0, 24).map((name, number) => make("span", {}, dot(category(number)), name));
    if (found.names.length > shown.length) shown.push(make("span", {}, `and ${found.names.length - shown.length} more`));
    place.replaceChildren(...shown);
    return;
  }
  const scale = make("canvas", { width: 64, height: 1, role: "img", "aria-label": "colour scale" }), context = scale.getContext("2d");
  for (let x = 0; x < 64; x++) { context.fillStyle = css(along(x / 63)); context.fillRect(x, 0, 1, 1); }
  place.replaceChildren(make("span", {}, short(found.low), scale, short(found.high)));
}

function dot(colour) {
  const mark = make("i");
  mark.style.background = css(colour);
  return mark;
}

const short = value => Number(value.toPrecision(3)).toLocaleString();

function paint() {
  const count = state.points.length / 2, colours = new Uint8Array(4 * count), { values } = state;
  const some = store.selected.size > 0 && state.of !== "patches", dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = dark ? [255, 255, 255] : [10, 14, 30];
  for (let i = 0; i < count; i++) {
    const row = state.rowOf(i), value = values ? values.values[row] : 0;
    const none = values?.kind === "category" && values.names[value] === "none yet";
    let shade = !values || none ? [140, 148, 165] : values.kind === "category" ? category(value) : value === 65535 ? [140, 148, 165] : along(value / 65534);
    let strength = some ? (store.selected.has(row) ? 255 : 60) : 205;
    if (i === state.current) { shade = ink; strength = 255; }
    colours.set(shade, 4 * i);
    colours[4 * i + 3] = strength;
  }
  if (count) renderer.paint(colours);
  draw();
}

export function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(now => {
    waiting = false;
    if (!state.points.length) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const flown = calm ? 1 : Math.min(1, (now - state.started) / FLIGHT), share = flown * flown * (3 - 2 * flown);
    const count = state.points.length / 2, size = Math.max(2.5, Math.min(12, 260 / Math.sqrt(count))) * Math.min(2.2, Math.max(1, (view.zoom / fitted()) ** 0.35));
    renderer.draw(view, share, size);
    frames.drawn++;
    if (flown < 1) draw();
  });
}

const fitted = () => 0.9 * Math.min(canvas.clientWidth, canvas.clientHeight);

function showAll() { Object.assign(view, { x: 0.5, y: 0.5, zoom: fitted() }); draw(); }

function resize() {
  const old = fitted();
  canvas.width = Math.round(canvas.clientWidth * devicePixelRatio);
  canvas.height = Math.round(canvas.clientHeight * devicePixelRatio);
  if (!state.points.length) view.zoom = old;
  draw();
}

const toMap = (x, y) => [(x - canvas.clientWidth / 2) / view.zoom + view.x, (y - canvas.clientHeight / 2) / view.zoom + view.y];
const toScreen = i => [(state.grid.x(i) - view.x) * view.zoom + canvas.clientWidth / 2, (state.grid.y(i) - view.y) * view.zoom + canvas.clientHeight / 2];

export function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const [left, top] = toMap(x, y);
  view.zoom = Math.max(fitted() / 4, Math.min(fitted() * 400, view.zoom * factor));
  view.x = left - (x - canvas.clientWidth / 2) / view.zoom;
  view.y = top - (y - canvas.clientHeight / 2) / view.zoom;
  draw();
}

export function pan(dx, dy) { view.x -= dx / view.zoom; view.y -= dy / view.zoom; draw(); }

function describe(i) {
  const row = state.rowOf(i), detail = state.detail(i), parts = [`image ${row}`];
  if (detail) parts.unshift(`${detail.kind} ${detail.number}`);
  if (state.values?.kind === "category") parts.push(state.values.names[state.values.values[row]]);
  if (store.labels.has(row)) parts.push(`labelled ${store.labels.get(row)}`);
  return parts.join(", ");
}

function hover(i) {
  canvas.classList.toggle("over", i >= 0);
  tip.hidden = i < 0;
  if (i < 0) return;
  const [x, y] = toScreen(i), row = state.rowOf(i), image = tip.querySelector("img");
  if (image.dataset.row !== String(row)) { image.dataset.row = row; image.src = thumbnail(row); }
  tip.querySelector("p").textContent = describe(i);
  const left = x + 165 > canvas.clientWidth ? x - 162 : x + 14, top = Math.max(4, Math.min(canvas.clientHeight - 195, y - 70));
  Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
}

function choose(i) { if (i >= 0) { state.current = i; open(state.rowOf(i)); paint(); } }

function listen() {
  const pointers = new Map(), outline = [];
  let moved = 0, pinch = 0;
  const at = event => [event.offsetX, event.offsetY];
  const under = event => state.grid.nearest(...toMap(...at(event)), 14 / view.zoom);
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event));
    moved = 0;
    if (state.drawing || event.shiftKey) { outline.length = 0; outline.push(at(event)); }
    else outline.length = 0;
  });
  canvas.addEventListener("pointermove", event => {
    if (!pointers.size) { hover(under(event)); return; }
    const [x, y] = at(event), [oldX, oldY] = pointers.get(event.pointerId) ?? [x, y];
    pointers.set(event.pointerId, [x, y]);
    moved += Math.hypot(x - oldX, y - oldY);
    hover(-1);
    if (pointers.size === 2) {
      const [[ax, ay], [bx, by]] = [...pointers.values()], apart = Math.hypot(ax - bx, ay - by);
      if (pinch) zoom(apart / pinch, (ax + bx) / 2, (ay + by) / 2);
      pinch = apart;
    } else if (outline.length) {
      outline.push([x, y]);
      lasso.setAttribute("points", outline.map(corner => corner.join(",")).join(" "));
    } else pan(x - oldX, y - oldY);
  });
  const end = event => {
    pointers.delete(event.pointerId);
    pinch = 0;
    if (outline.length > 2) {
      const rows = new Set(state.grid.inside(outline.map(corner => toMap(...corner))).map(i => state.rowOf(i)));
      replaceSelection(rows);
      say(`${rows.size} images selected`);
      setDrawing(false);
    } else if (moved < 5 && event.type === "pointerup") choose(under(event));
    outline.length = 0;
    lasso.setAttribute("points", "");
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => hover(-1));
  canvas.addEventListener("wheel", event => { event.preventDefault(); zoom(Math.exp(-event.deltaY * 0.0016), ...at(event)); }, { passive: false });
  canvas.addEventListener("keydown", keyed);
  canvas.addEventListener("blur", () => hover(-1));
  byId("zoom-in").addEventListener("click", () => zoom(1.5));
  byId("zoom-out").addEventListener("click", () => zoom(1 / 1.5));
  byId("zoom-all").addEventListener("click", showAll);
  byId("tool-lasso").addEventListener("click", () => setDrawing(!state.drawing));
}

function setDrawing(drawing) {
  state.drawing = drawing;
  byId("tool-lasso").setAttribute("aria-pressed", String(drawing));
  canvas.classList.toggle("drawing", drawing);
}

function keyed(event) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const count = state.points.length / 2;
  if (!count || event.ctrlKey || event.metaKey || event.altKey) return;
  if (way && event.shiftKey) pan(-60 * way[0], -60 * way[1]);
  else if (way) {
    const from = state.current < 0 ? state.grid.nearest(view.x, view.y, 10) : state.current;
    const next = state.current < 0 ? from : state.grid.towards(from, ...way);
    if (next >= 0) { state.current = next; keepInView(next); paint(); hover(next); say(describe(next)); }
  } else if (event.key === "Enter") choose(state.current);
  else if (event.key === " " && state.current >= 0) {
    const row = state.rowOf(state.current);
    select([row], !store.selected.has(row));
    say(store.selected.has(row) ? "selected" : "not selected");
  } else if (event.key === "+" || event.key === "=") zoom(1.4);
  else if (event.key === "-") zoom(1 / 1.4);
  else if (event.key === "0") showAll();
  else if (event.key === "l" || event.key === "L") setDrawing(!state.drawing);
  else if (event.key === "Escape") { setDrawing(false); replaceSelection([]); }
  else return;
  event.preventDefault();
}

function keepInView(i) {
  const [x, y] = toScreen(i), edge = 40;
  if (x < edge || y < edge || x > canvas.clientWidth - edge || y > canvas.clientHeight - edge)
    Object.assign(view, { x: state.grid.x(i), y: state.grid.y(i) });
}

function tellNote(text) { note.textContent = text; note.hidden = !text; }
