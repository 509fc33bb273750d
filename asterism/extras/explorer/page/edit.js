// Edits: drop, move and swap the concepts of an image, and see it reconstructed.
import { address, get, post, thumbnail, trying } from "./api.js";
import { byId, make, say } from "./dom.js";
import { on, store } from "./store.js";

const page = byId("edit");
let edit = null, asked = 0, visible = false;

export function startEdit() {
  if (!store.world.models[0].reconstructs) {
    page.replaceChildren(make("p", { class: "empty" }, "This model has no decoder, so images cannot be made from its concepts. STELLAR trains one."));
    return;
  }
  page.replaceChildren(make("p", { class: "empty" }, "Open an image first: its concepts can then be dropped, moved and swapped."));
  on("open", row => { if (edit && edit.choosing) { edit.other = row; edit.choosing = false; trying(draw); } else { edit = fresh(row); if (visible) trying(draw); } });
  on("tab", name => { visible = name === "edit"; if (visible && edit && edit.drawn !== edit.row) trying(draw); });
}

const fresh = row => ({ row, other: null, token: null, drop: new Set(), move: new Map(), swap: new Map(), choosing: false, drawn: null });

async function draw() {
  const own = edit, facts = await get("image/facts", { row: own.row }), theirs = own.other == null ? null : await get("image/facts", { row: own.other });
  if (own !== edit) return;
  own.drawn = own.row;
  own.token ??= facts.concepts.reduce((best, each, i, all) => (each.share > all[best].share ? i : best), 0);
  const made = make("img", { alt: "the reconstruction after the edit", id: "made" });
  own.made = made;
  own.quality = make("figcaption", { id: "quality" }, "…");
  page.replaceChildren(
    make("div", { class: "pair" },
      make("figure", {}, make("div", { class: "picture" }, make("img", { src: thumbnail(own.row, 448), alt: facts.key })), make("figcaption", {}, facts.key)),
      make("figure", {}, make("div", { class: "picture" }, made), own.quality)),
    make("h3", {}, "Concepts of this image: choose one"), strip(facts, own.row, own.token, token => { own.token = token; refresh(); }, own),
    make("div", { class: "row", id: "edits" }),
    make("h3", {}, "Swap with another image"),
    make("div", { class: "row" },
      make("button", { type: "button", id: "choose-other", "aria-pressed": String(own.choosing), onclick: event => { own.choosing = !own.choosing; event.currentTarget.setAttribute("aria-pressed", String(own.choosing)); say("Open the other image on the map or in a gallery."); } },
        own.other == null ? "Choose the other image" : "Choose another one"),
      make("span", { class: "soft" }, own.other == null ? "then click it on the map or in a gallery" : `${theirs.key}: click its concept to put it in place of the chosen one`)),
    theirs ? strip(theirs, own.other, null, token => { own.swap.set(own.token, token); refresh(); }, null) : "",
  );
  refresh();
}

function strip(facts, row, chosen, act, own) {
  return make("ul", { class: "gallery small", "data-strip": own ? "mine" : "theirs" }, facts.concepts.map(({ share, name }, token) => make("li", {},
    make("button", { type: "button", class: "tile", "data-token": token, "aria-current": String(token === chosen), "aria-label": `${name ?? `concept ${token}`}, ${Math.round(100 * share)} %`, onclick: () => act(token) },
      make("span", { class: "shot" }, make("img", { src: address("image/drawn", { row, show: "concept", token, size: 128 }), alt: "", loading: "lazy" })),
      make("small", {}, `${name ?? token} · ${Math.round(100 * share)} %`)))));
}

function refresh() {
  const own = edit, gone = own.drop.has(own.token), [down, right] = own.move.get(own.token) ?? [0, 0];
  for (const tile of page.querySelectorAll("[data-strip=mine] .tile")) {
    const token = Number(tile.dataset.token);
    tile.setAttribute("aria-current", String(token === own.token));
    tile.classList.toggle("gone", own.drop.has(token));
  }
  const shift = (y, x) => () => { own.move.set(own.token, [down + y, right + x]); refresh(); };
  const arrow = (text, label, y, x) => make("button", { type: "button", "aria-label": `Move ${label}`, onclick: shift(y, x), disabled: gone }, text);
  const focused = document.activeElement?.getAttribute("aria-label");
  byId("edits").replaceChildren(
    make("button", { type: "button", id: "drop", "aria-pressed": String(gone), onclick: () => { gone ? own.drop.delete(own.token) : own.drop.add(own.token); refresh(); } }, gone ? "Dropped" : "Drop it"),
    make("div", { class: "pad", role: "group", "aria-label": "Move the concept" }, make("i"), arrow("↑", "up", -1, 0), make("i"), arrow("←", "left", 0, -1), arrow("↓", "down", 1, 0), arrow("→", "right", 0, 1)),
    make("span", { class: "soft" }, [`concept ${own.token}`, down || right ? `moved by ${down} down, ${right} right` : null, own.swap.has(own.token) ? `from the other image: ${own.swap.get(own.token)}` : null].filter(Boolean).join(", ")),
    make("button", { type: "button", id: "undo", onclick: () => { const { row, other } = own; edit = { ...fresh(row), other }; trying(draw); } }, "Undo all"),
  );
  if (focused) byId("edits").querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  trying(reconstruct);
}

async function reconstruct() {
  const own = edit, number = ++asked, started = performance.now();
  const response = await post("edit", {
    row: own.row, drop: [...own.drop], move: [...own.move].filter(([token]) => !own.drop.has(token)).map(([token, [down, right]]) => ({ token, down, right })),
    ...(own.swap.size ? { other: own.other, swap: [...own.swap].map(([token, theirs]) => ({ token, theirs })) } : {}),
  });
  const source = URL.createObjectURL(await response.blob());
  if (number !== asked) return;
  own.made.onload = () => URL.revokeObjectURL(source);
  own.made.src = source;
  const took = Math.round(performance.now() - started), plain = !own.drop.size && !own.move.size && !own.swap.size;
  own.quality.textContent = `${plain ? "reconstructed" : "edited"}, ${Number(response.headers.get("X-Quality")).toFixed(1)} dB, ${took} ms`;
  own.quality.dataset.milliseconds = took;
}
