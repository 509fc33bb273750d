// Thumbnails of images, as buttons that open them, with a mark to select them.
import { address, getResponse, thumbnail } from "./api.js";
import { make } from "./dom.js";
import { on, open, select, store } from "./store.js";

// items: {row, similarity?, token?, patch?, guess?}
export function gallery(items, { caption, act, small = false } = {}) {
  if (!items.length) return make("p", { class: "empty" }, "Nothing found.");
  return make("ul", { class: `gallery${small ? " small" : ""}` }, items.map(item => make("li", {}, tile(item, caption, act), pick(item.row))));
}

function tile(item, caption, act = each => open(each.row)) {
  const text = caption ? caption(item) : item.similarity?.toFixed(3) ?? "";
  const shot = make("span", { class: "shot" });
  if (item.patch != null) place(shot, item);
  else {
    const source = item.token == null ? thumbnail(item.row)
      : address("image/drawn", { row: item.row, show: "concept", token: item.token, size: 128 });
    shot.append(make("img", { src: source, alt: "", loading: "lazy", width: 128, height: 128 }));
  }
  return make("button", { type: "button", class: "tile", "aria-label": `Open image ${item.row}${text ? `, ${text}` : ""}`,
    "data-row": item.row, onclick: () => act(item) }, shot, make("small", {}, text));
}

// A crop around a patch, with a box around the patch itself.
async function place(shot, item) {
  const response = await getResponse("image/place", { row: item.row, patch: item.patch });
  const [x, y, width, height] = response.headers.get("X-Box").split(",").map(Number);
  const source = URL.createObjectURL(await response.blob());
  const mark = make("span", { class: "mark" });
  Object.assign(mark.style, { left: `${100 * x}%`, top: `${100 * y}%`, width: `${100 * width}%`, height: `${100 * height}%` });
  shot.append(make("img", { src: source, alt: "", onload: () => URL.revokeObjectURL(source) }), mark);
}

function pick(row) {
  const chosen = store.selected.has(row);
  return make("button", { type: "button", class: "pick", "aria-pressed": String(chosen), "data-pick": row,
    "aria-label": `Select image ${row}`, onclick: () => select([row], !store.selected.has(row)) }, "✓");
}

on("selection", () => {
  for (const button of document.querySelectorAll("[data-pick]"))
    button.setAttribute("aria-pressed", String(store.selected.has(Number(button.dataset.pick))));
});
