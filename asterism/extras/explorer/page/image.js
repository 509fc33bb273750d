// One image: what the model sees in it and where; similar places, concepts and images elsewhere.
import { address, get, trying } from "./api.js";
import { byId, make, say, segments } from "./dom.js";
import { gallery } from "./gallery.js";
import { PatchPicture } from "./heat.js";
import { on, select, store } from "./store.js";

const page = byId("image");
let asked = 0;

export function startImage() {
  page.replaceChildren(make("p", { class: "empty" }, "Click a point of the map, or go there with Tab and the arrow keys, and press Enter."));
  on("open", row => trying(() => show(row)));
}

async function show(row) {
  const own = ++asked, facts = await get("image/facts", { row });
  if (own !== asked) return;
  store.keys.set(row, facts.key);
  const model = store.world.models[0];
  const found = make("div", { id: "found", "aria-live": "polite" });
  const picture = new PatchPicture({ row, grid: facts.grid, label: facts.key, choose: patch => trying(() => places(row, patch, found)) });
  const heads = make("select", { "aria-label": "Attention head", onchange: event => look("attention", event.target.value) },
    ["mean of all heads", ...Array.from({ length: model.heads }, (_, i) => `head ${i + 1}`)].map((text, value) => make("option", { value }, text)));
  const look = (show, head = heads.value) => {
    picture.image.src = address("image/drawn", { row, show, head: show === "attention" ? head : null });
    heads.hidden = show !== "attention";
  };
  const kinds = [["photo", "Photo"], ...(model.concepts ? [["concepts", "Concepts"]] : []), ["components", "Components"], ...(model.heads ? [["attention", "Attention"]] : [])];
  const kept = kinds.some(([kind]) => kind === page.dataset.show) ? page.dataset.show : "photo";
  const layers = segments(make("div", { "aria-label": "What is drawn" }), kinds, kept, kind => { page.dataset.show = kind; look(kind); });
  look(kept);
  const chosen = store.selected.has(row);
  const mark = make("button", { type: "button", "aria-pressed": String(chosen), onclick: () => select([row], !store.selected.has(row)) }, chosen ? "Selected" : "Select");
  mark.dataset.mark = row;
  page.replaceChildren(
    make("div", { class: "row" }, make("h2", { class: "grow" }, facts.key), mark),
    make("dl", { class: "facts" }, ...lines(facts)),
    make("div", { class: "row" }, layers, heads),
    picture.element,
    make("p", { class: "hint" }, "Point at a patch: similar places light up. Press it: the nearest places in all images."),
    facts.concepts.length ? concepts(row, facts, found) : "",
    found,
  );
  say(`Image ${facts.key}`);
  await neighbours(row, found);
}

function lines(facts) {
  const all = { Label: facts.label, "Given label": facts.given, ...facts.columns };
  return Object.entries(all).filter(([, value]) => value != null && value !== "").flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]);
}

function concepts(row, facts, found) {
  const order = facts.concepts.map((concept, token) => ({ ...concept, token })).sort((a, b) => b.share - a.share);
  const tiles = order.map(({ token, share, name }) => {
    const text = name ?? `concept ${token}`;
    return make("li", {}, make("button", { type: "button", class: "tile", "data-token": token, "aria-label": `${text}, ${Math.round(100 * share)} % of the image. Find images that hold it`,
      onclick: () => trying(() => holders(row, token, text, found)) },
      make("span", { class: "shot" }, make("img", { src: address("image/drawn", { row, show: "concept", token, size: 128 }), alt: "", loading: "lazy" })),
      make("small", {}, `${name ?? token} · ${Math.round(100 * share)} %`)));
  });
  return make("div", {}, make("h3", {}, "Concepts: where each of them is"), make("ul", { class: "gallery small" }, tiles));
}

async function neighbours(row, found) {
  const own = asked, { items } = await get("find/row", { row, count: 12 });
  if (own === asked) found.replaceChildren(make("h3", {}, "Nearest images"), gallery(items));
}

async function places(row, patch, found) {
  if (patch < 0) return;
  found.replaceChildren(make("h3", {}, "Nearest places"), make("p", { class: "soft" }, "Searching…"));
  const own = asked, answer = await get("image/places", { row, patch, count: 24 }, () => { found.lastChild.textContent = "Reading the patches of all images, once…"; });
  if (own !== asked) return;
  const some = answer.searched < answer.images ? ` among ${answer.searched.toLocaleString()} of ${answer.images.toLocaleString()} images` : "";
  found.replaceChildren(make("h3", {}, `Places nearest to patch ${patch}${some}`), gallery(answer.items));
  found.scrollIntoView({ block: "nearest" });
}

async function holders(row, token, text, found) {
  const own = asked, { items } = await get("image/holders", { row, token, count: 24 });
  if (own !== asked) return;
  found.replaceChildren(make("h3", {}, `Images that hold ${text}`), gallery(items));
  found.scrollIntoView({ block: "nearest" });
}

on("selection", () => {
  const mark = page.querySelector("[data-mark]");
  if (!mark) return;
  const chosen = store.selected.has(Number(mark.dataset.mark));
  mark.setAttribute("aria-pressed", String(chosen));
  mark.textContent = chosen ? "Selected" : "Select";
});
