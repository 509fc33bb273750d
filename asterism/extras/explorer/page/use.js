// Using the selection: export, copies, labels, their scores, and the rest sorted by them.
import { get, post, trying } from "./api.js";
import { byId, complain, make, say } from "./dom.js";
import { gallery } from "./gallery.js";
import { on, replaceSelection, select, store, tell } from "./store.js";

const page = byId("use");
const chosen = make("div"), labels = make("div"), rest = make("div", { id: "rest", "aria-live": "polite" });
let scores = { labelled: 0, classes: [], knn: null, linear: null };

export function startUse() {
  const name = make("input", { type: "text", id: "label", maxlength: 80, list: "known", placeholder: "label", "aria-label": "Label for the selected images" });
  const form = make("form", { class: "row", onsubmit: event => { event.preventDefault(); const text = name.value.trim(); if (text) trying(() => give([...store.selected], text)); else complain("Write a label first."); } },
    name, make("datalist", { id: "known" }, (store.world.classes ?? []).slice(0, 100).map(value => make("option", { value }))), make("button", { class: "main" }, "Label selection"));
  page.replaceChildren(chosen, make("h3", {}, "Label"), form, labels, rest);
  on("selection", showSelection);
  showSelection();
  showLabels();
  trying(async () => { take(await get("use/scores")); });
  document.addEventListener("keydown", event => { // 1 … 9 label the image that is open
    const number = Number(event.key) - 1;
    if (store.row == null || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || !(number in scores.classes)) return;
    trying(() => give([store.row], scores.classes[number].name));
  });
}

function showSelection() {
  const rows = [...store.selected], pill = byId("count");
  pill.hidden = !rows.length;
  pill.textContent = `${rows.length.toLocaleString()} selected`;
  const folder = make("input", { type: "text", id: "folder", maxlength: 64, placeholder: "new folder", "aria-label": "Folder to copy to" });
  chosen.replaceChildren(
    make("div", { class: "row" }, make("h2", { class: "grow" }, rows.length ? `${rows.length.toLocaleString()} images selected` : "Nothing is selected"),
      make("button", { type: "button", id: "clear", disabled: !rows.length, onclick: () => replaceSelection([]) }, "Clear")),
    rows.length ? gallery(rows.slice(0, 24).map(row => ({ row })), { small: true }) : make("p", { class: "empty" }, "Draw around points with the lasso, press Space on a point, or tick images in a gallery."),
    rows.length > 24 ? make("p", { class: "hint" }, `and ${(rows.length - 24).toLocaleString()} more`) : "",
    make("div", { class: "row" },
      make("button", { type: "button", id: "as-list", disabled: !rows.length, onclick: () => trying(() => save("list", "selection.txt")) }, "Save list"),
      make("button", { type: "button", id: "as-csv", disabled: !rows.length, onclick: () => trying(() => save("csv", "selection.csv")) }, "Save CSV"),
      make("button", { type: "button", id: "to-patches", disabled: !rows.length, onclick: patches }, "Map their patches")),
    store.world.writes
      ? make("form", { class: "row", onsubmit: event => { event.preventDefault(); trying(() => copy(folder.value)); } }, folder, make("button", { disabled: !rows.length }, "Copy to folder"))
      : make("p", { class: "soft" }, "Copying is off; start with --allow-writes DIR to copy images and keep labels."));
}

function patches() {
  byId("points").value = "patches";
  byId("points").dispatchEvent(new Event("change"));
}

async function save(kind, name) {
  const source = URL.createObjectURL(await (await post("use/export", { rows: [...store.selected], kind })).blob());
  const link = make("a", { href: source, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(source), 5000);
  say(`${name} saved`);
}

async function copy(folder) {
  const answer = await (await post("use/copy", { rows: [...store.selected], folder })).json();
  say(`${answer.copied} images copied to ${answer.folder}`);
  rest.replaceChildren(make("p", { class: "soft" }, `${answer.copied} images copied to ${answer.folder}.`));
}

async function give(rows, label) {
  if (!rows.length) { complain("Select images first, or open one."); return; }
  take(await (await post("use/label", { rows, label })).json());
  say(label == null ? "labels removed" : `${rows.length} images labelled ${label}`);
}

function take(found) {
  scores = found;
  store.labels = new Map(Object.entries(found.rows).map(([row, name]) => [Number(row), name]));
  tell("labels");
  showLabels();
}

function showLabels() {
  const percent = value => (value == null ? "–" : `${value.toFixed(0)} %`);
  const term = (name, value, hint) => make("div", { title: hint }, make("dt", {}, name), make("dd", {}, value));
  labels.replaceChildren(
    make("dl", { class: "scores" }, term("labelled", String(scores.labelled)), term("k-NN", percent(scores.knn), "Each labelled image predicted by the others"), term("linear", percent(scores.linear), "Each labelled image predicted by the others")),
    scores.classes.length ? make("div", { class: "chips" }, scores.classes.map(({ name, images }, i) => make("button", { type: "button", onclick: () => trying(() => sorted({ order: "likely", label: name }, `Most like “${name}”`, name)), title: i < 9 ? `${i + 1} labels the open image` : null }, `${name} · ${images}`)),
      scores.classes.length > 1 ? make("button", { type: "button", id: "unsure", onclick: () => trying(() => sorted({ order: "unsure" }, "Least certain", null)) }, "least certain") : "") : "",
    make("p", { class: "soft" }, scores.classes.length > 1 ? "Press a label: all other images, sorted by how much they look like it. Keys 1 to 9 label the open image." : "Two different labels are enough to sort the rest."));
}

async function sorted(parameters, title, label) {
  const { items } = await get("use/rest", parameters);
  rest.replaceChildren(
    make("div", { class: "row" }, make("h3", { class: "grow" }, title), make("button", { type: "button", onclick: () => select(items.map(item => item.row)) }, "Select all"),
      label ? make("button", { type: "button", id: "accept", onclick: () => trying(async () => { await give(items.slice(0, 12).map(item => item.row), label); await sorted(parameters, title, label); }) }, "Label the first 12") : ""),
    gallery(items, { caption: item => `${item.guess} ${item.similarity.toFixed(2)}` }));
  say(title);
}
