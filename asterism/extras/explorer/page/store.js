// What all parts of the page share: the world, the image looked at, and the selection.

const listeners = new Map();

export const store = { world: null, row: null, selected: new Set(), keys: new Map(), labels: new Map() };

export function on(name, listener) {
  if (!listeners.has(name)) listeners.set(name, []);
  listeners.get(name).push(listener);
}

export function tell(name, ...values) {
  for (const listener of listeners.get(name) ?? []) listener(...values);
}

export function open(row) {
  store.row = row;
  tell("open", row);
}

export function select(rows, chosen = true) {
  for (const row of rows) chosen ? store.selected.add(row) : store.selected.delete(row);
  tell("selection");
}

export function replaceSelection(rows) {
  store.selected = new Set(rows);
  tell("selection");
}
