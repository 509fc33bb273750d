// Starts the parts of the page in order, and switches between tabs.
import { get, trying } from "./api.js";
import { byId } from "./dom.js";
import { startEdit } from "./edit.js";
import { startFind } from "./find.js";
import { startImage } from "./image.js";
import { startMap } from "./map.js";
import { startRuns } from "./runs.js";
import { on, store, tell } from "./store.js";
import { startUse } from "./use.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", String(chosen));
    each.tabIndex = chosen ? 0 : -1;
    byId(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  tell("tab", tab.getAttribute("aria-controls"));
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    next.focus();
    show(next);
  });
}

await trying(async () => {
  store.world = await get("world");
  const { world } = store;
  const names = world.models.map(model => model.name).join(" and ");
  byId("about").textContent = `${names} on ${world.images.toLocaleString()} images of ${world.name}`;
  document.title = `${world.name} · Asterism explorer`;
  startImage();
  startEdit();
  startFind();
  startUse();
  startRuns();
  // An image opened from the map or a gallery is shown, unless Edit or Runs are open: these show it themselves.
  on("open", () => { if (!["tab-edit", "tab-runs"].some(id => byId(id).getAttribute("aria-selected") === "true")) show(byId("tab-image")); });
  await startMap();
  document.body.dataset.ready = "true";
});
