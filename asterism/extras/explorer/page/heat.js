// A picture of patches: pointing at one shows similar places in the same image, pressing it finds them elsewhere.
import { getBytes } from "./api.js";
import { heat } from "./colours.js";
import { make } from "./dom.js";

export class PatchPicture {
  constructor({ row, model = 0, grid, label, choose, hovered }) {
    Object.assign(this, { row, model, grid, choose, hovered, patch: -1, matrix: null });
    this.image = make("img", { alt: label });
    this.canvas = make("canvas", { width: 256, height: 256, "aria-hidden": "true" });
    this.element = make("div", { class: "picture", tabindex: 0, role: "application", "aria-roledescription": "picture of patches",
      "aria-label": `${label}. Arrow keys go from patch to patch and show similar places; Enter finds them in other images.`,
      onpointermove: event => this.show(this.under(event)), onpointerleave: () => this.show(-1),
      onclick: event => choose?.(this.under(event)), onkeydown: event => this.keyed(event), onblur: () => this.show(-1) }, this.image, this.canvas);
    getBytes("image/similarities", { row, model }).then(bytes => {
      this.matrix = new Uint8Array(bytes);
      const waiting = this.patch; // pointed at before the similarities were here
      this.patch = -1;
      this.show(waiting, true);
    }, () => {}); // too many patches: the picture stays without heat maps
  }
  under(event) {
    const box = this.element.getBoundingClientRect(), [rows, columns] = this.grid;
    const cell = (value, count) => Math.max(0, Math.min(count - 1, Math.floor(value * count)));
    return cell((event.clientY - box.top) / box.height, rows) * columns + cell((event.clientX - box.left) / box.width, columns);
  }
  keyed(event) {
    const [rows, columns] = this.grid;
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const from = this.patch < 0 ? Math.floor(rows / 2) * columns + Math.floor(columns / 2) : this.patch;
    if (way) {
      const y = Math.max(0, Math.min(rows - 1, Math.floor(from / columns) + way[0])), x = Math.max(0, Math.min(columns - 1, (from % columns) + way[1]));
      this.show(y * columns + x);
    } else if (event.key === "Enter") this.choose?.(from);
    else return;
    event.preventDefault();
  }
  show(patch, quiet = false) {
    if (patch === this.patch) return;
    this.patch = patch;
    this.element.dataset.patch = patch;
    if (!quiet) this.hovered?.(patch);
    const context = this.canvas.getContext("2d"), [rows, columns] = this.grid, side = this.canvas.width;
    context.clearRect(0, 0, side, side);
    const count = rows * columns;
    if (patch < 0 || this.matrix?.length !== count * count) return;
    const values = this.matrix.subarray(patch * count, (patch + 1) * count);
    let low = 255, high = 0; // of all others: the patch itself is always 255
    values.forEach((value, i) => { low = Math.min(low, value); if (i !== patch) high = Math.max(high, value); });
    const small = new OffscreenCanvas(columns, rows), pixels = new ImageData(columns, rows);
    values.forEach((value, i) => pixels.data.set(heat((value - low) / Math.max(1, high - low)), 4 * i));
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = true;
    context.drawImage(small, 0, 0, side, side);
    const cell = side / columns, x = (patch % columns) * cell, y = Math.floor(patch / columns) * (side / rows);
    context.lineWidth = 2.5;
    context.strokeStyle = "#3cff50";
    context.strokeRect(x + 1, y + 1, cell - 2, side / rows - 2);
  }
}
