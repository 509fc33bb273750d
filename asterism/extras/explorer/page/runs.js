// Runs: two models side by side on the same image, and training curves while a run trains.
import { address, get, trying } from "./api.js";
import { chart } from "./charts.js";
import { byId, make, segments } from "./dom.js";
import { gallery } from "./gallery.js";
import { PatchPicture } from "./heat.js";
import { on, store } from "./store.js";

const page = byId("runs");
const FIRST = ["loss", "knn", "view_retrieval", "effective_rank", "feature_std"];
const HIDDEN = new Set(["step", "epoch", "warning", "knn_pixels", "view_retrieval_pixels"]);
const TITLES = { loss: "Loss", knn: "Online k-NN accuracy (%)", view_retrieval: "Recognised in another view (%)", effective_rank: "Effective rank of the features", feature_std: "Spread of the features", lr: "Learning rate" };
const pair = make("div"), curves = make("div", { id: "curves" }), records = [];
let visible = false, timer, asked = 0, layer = "components";

export function startRuns() {
  const { models } = store.world;
  page.replaceChildren(
    make("h2", {}, models.length > 1 ? "Side by side" : "Training curves"),
    models.length > 1 ? pair : make("p", { class: "soft" }, "Start with --with MODEL to see a second model next to this one."),
    models.some(model => model.run) ? curves : make("p", { class: "empty" }, "These models are not run folders, so they have no training curves."));
  on("tab", name => { visible = name === "runs"; clearTimeout(timer); if (visible) { follow(); trying(beside); } });
  on("open", () => { if (visible) trying(beside); });
}

async function beside() {
  const { world, row } = store, own = ++asked;
  if (world.models.length < 2) return;
  if (row == null) { pair.replaceChildren(make("p", { class: "empty" }, "Open an image to compare what both models see in it.")); return; }
  const facts = await Promise.all([0, 1].map(model => get("image/facts", { row, model })));
  if (own !== asked) return;
  const pictures = facts.map((each, model) => new PatchPicture({ row, model, grid: each.grid, label: `${each.key} seen by ${world.models[model].name}`,
    hovered: patch => twin(pictures, model, patch) }));
  const kinds = [["photo", "Photo"], ["components", "Components"], ...(world.models.every(model => model.heads) ? [["attention", "Attention"]] : []), ...(world.models.every(model => model.concepts) ? [["concepts", "Concepts"]] : [])];
  const look = show => { layer = show; pictures.forEach((picture, model) => { picture.image.src = address("image/drawn", { row, model, show }); }); };
  const near = [0, 1].map(() => make("div", {}, make("p", { class: "soft" }, "…")));
  pair.replaceChildren(
    make("div", { class: "row" }, segments(make("div", { "aria-label": "What is drawn for both models" }), kinds, layer, look)),
    make("div", { class: "pair" }, pictures.map((picture, model) => make("div", {}, make("p", { class: `soft keyed${model ? " second" : ""}` }, world.models[model].name), picture.element, make("h3", {}, "Nearest images"), near[model]))));
  look(layer);
  for (const model of [0, 1])
    trying(async () => {
      const { items } = await get("find/row", { row, model, count: 9 }, () => { near[model].textContent = "Embedding all images with this model, once…"; });
      if (own === asked) near[model].replaceChildren(gallery(items, { small: true }));
    });
}

// Pointing at a patch of one model's picture shows the same place for the other, whatever its grid.
function twin(pictures, model, patch) {
  const from = pictures[model], other = pictures[1 - model];
  if (patch < 0) { other.show(-1, true); return; }
  const y = Math.floor(patch / from.grid[1]) + 0.5, x = (patch % from.grid[1]) + 0.5;
  other.show(Math.floor((y / from.grid[0]) * other.grid[0]) * other.grid[1] + Math.floor((x / from.grid[1]) * other.grid[1]), true);
}

async function follow() {
  await trying(async () => {
    for (const [model, { run }] of store.world.models.entries()) {
      records[model] ??= [];
      if (!run) continue;
      const more = (await get("runs/curves", { model, after: records[model].at(-1)?.step ?? -1 })).records;
      records[model].push(...more);
      if (more.length || !curves.childElementCount) showCurves();
    }
  });
  if (visible) timer = setTimeout(follow, 3000);
}

function showCurves() {
  const names = [...new Set(records.flat().flatMap(Object.keys))].filter(name => !HIDDEN.has(name));
  const ordered = [...FIRST.filter(name => names.includes(name)), ...names.filter(name => !FIRST.includes(name))];
  const drawn = name => chart(TITLES[name] ?? name.replaceAll("_", " "), records.map(run => run.filter(each => typeof each[name] === "number").map(each => [each.step, each[name]])));
  const open = curves.querySelector("details")?.open ?? false;
  const more = make("details", { open }, make("summary", {}, "More curves"), ...ordered.slice(FIRST.length).map(drawn).filter(Boolean));
  curves.replaceChildren(make("h3", {}, "Training curves, live"), ...ordered.slice(0, FIRST.length).map(drawn).filter(Boolean), ordered.length > FIRST.length ? more : "");
  if (!ordered.length) curves.replaceChildren(make("p", { class: "empty" }, "Nothing has been logged yet; this page looks again every three seconds."));
}
