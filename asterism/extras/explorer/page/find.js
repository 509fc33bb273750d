// Finding images: by a file, a sentence, near-duplicates, outliers, and the most typical of a cluster.
import { get, post, trying } from "./api.js";
import { byId, complain, make, say } from "./dom.js";
import { gallery } from "./gallery.js";
import { select, store } from "./store.js";

const page = byId("find");
const results = make("div", { id: "results", "aria-live": "polite" });

export function startFind() {
  const { world } = store;
  const input = make("input", { type: "file", accept: "image/*", id: "file", onchange: () => input.files[0] && trying(() => byFile(input.files[0])) });
  const drop = make("label", { class: "drop", for: "file",
    ondragover: event => { event.preventDefault(); drop.classList.add("over"); },
    ondragleave: () => drop.classList.remove("over"),
    ondrop: event => { event.preventDefault(); drop.classList.remove("over"); const file = event.dataTransfer.files[0]; file ? trying(() => byFile(file)) : complain("Drop one image file."); },
  }, input, "Drop an image here, or choose one: similar images are found. It stays on this machine.");
  const sentence = make("input", { type: "text", id: "sentence", maxlength: 300, placeholder: "a dog in the snow", "aria-label": "Sentence" });
  const ask = make("form", { class: "row", onsubmit: event => { event.preventDefault(); if (sentence.value.trim()) trying(() => bySentence(sentence.value)); } },
    sentence, make("button", { class: "main" }, "Find"));
  const least = make("input", { type: "range", id: "least", min: 0.8, max: 1, step: 0.005, value: 0.98, oninput: () => { level.textContent = Number(least.value).toFixed(3); } });
  const level = make("output", { for: "least" }, "0.980");
  const cluster = make("select", { id: "cluster" }, Array.from({ length: world.clusters }, (_, i) => make("option", { value: i }, `cluster ${i + 1}`)));
  page.replaceChildren(
    drop, world.text ? ask : "",
    make("h3", {}, "Ask the whole set"),
    make("div", { class: "row" }, make("button", { type: "button", id: "duplicates", onclick: () => trying(() => duplicates(least.value)) }, "Near-duplicates"), make("label", {}, "from", least, level)),
    make("div", { class: "row" }, make("button", { type: "button", id: "outliers", onclick: () => trying(outliers) }, "Outliers"),
      make("button", { type: "button", id: "typical", onclick: () => trying(() => typical(cluster.value)) }, "Most typical of"), make("label", {}, make("span", { class: "unseen" }, "Cluster"), cluster)),
    make("p", { class: "soft" }, "By image, patch or concept: open an image and press it, its patches or its concepts."),
    results,
  );
}

function show(title, items) {
  results.replaceChildren(
    make("div", { class: "row" }, make("h3", { class: "grow" }, title), items.length ? make("button", { type: "button", onclick: () => select(items.map(item => item.row)) }, "Select all") : ""),
    gallery(items));
  say(`${title}: ${items.length} images`);
}

const busy = () => results.replaceChildren(make("p", { class: "soft" }, "Comparing all images, once…"));

async function byFile(file) { show(`Like ${file.name}`, (await (await post("find/file", file)).json()).items); }
async function bySentence(sentence) { show(`“${sentence}”`, (await get("find/sentence", { sentence })).items); }
async function outliers() { show("Outliers: least like their neighbours", (await get("find/outliers", {}, busy)).items); }
async function typical(cluster) { show(`Most typical of cluster ${Number(cluster) + 1}`, (await get("find/typical", { clusters: store.world.clusters, cluster }, busy)).items); }

async function duplicates(least) {
  const { groups } = await get("find/duplicates", { least }, busy);
  const count = groups.reduce((sum, group) => sum + group.length, 0);
  results.replaceChildren(make("h3", {}, groups.length ? `${groups.length} groups, ${count} images` : "No images are that similar; lower the level."),
    ...groups.flatMap((group, i) => [make("div", { class: "row" }, make("p", { class: "soft grow" }, `Group ${i + 1}`), make("button", { type: "button", onclick: () => select(group.slice(1).map(item => item.row)) }, "Select all but the first")), gallery(group, { small: true })]));
  say(`${groups.length} groups of near-duplicates`);
}
