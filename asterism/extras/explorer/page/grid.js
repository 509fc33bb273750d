// Points by place, in cells: the nearest one to the pointer, the next one in a direction, all inside an outline.

const CELLS = 128;

export class Grid {
  constructor(points) {
    this.points = points;
    this.count = points.length / 2;
    this.first = new Uint32Array(CELLS * CELLS + 1);
    const cell = new Uint32Array(this.count);
    for (let i = 0; i < this.count; i++) this.first[(cell[i] = this.cellOf(i)) + 1]++;
    for (let i = 0; i < CELLS * CELLS; i++) this.first[i + 1] += this.first[i];
    const next = this.first.slice();
    this.members = new Uint32Array(this.count);
    for (let i = 0; i < this.count; i++) this.members[next[cell[i]]++] = i;
  }
  x(i) { return this.points[2 * i] / 65535; }
  y(i) { return this.points[2 * i + 1] / 65535; }
  cellOf(i) { return (this.points[2 * i + 1] >> 9) * CELLS + (this.points[2 * i] >> 9); }

  nearest(x, y, reach) {
    let best = -1, least = reach * reach;
    const clip = value => Math.max(0, Math.min(CELLS - 1, Math.floor(value * CELLS)));
    for (let row = clip(y - reach); row <= clip(y + reach); row++)
      for (let column = clip(x - reach); column <= clip(x + reach); column++)
        for (let k = this.first[row * CELLS + column]; k < this.first[row * CELLS + column + 1]; k++) {
          const i = this.members[k], away = (this.x(i) - x) ** 2 + (this.y(i) - y) ** 2;
          if (away < least) { least = away; best = i; }
        }
    return best;
  }

  // The point that is nearest in a direction, sideways counting three times.
  towards(from, dx, dy) {
    let best = -1, least = Infinity;
    for (let i = 0; i < this.count; i++) {
      const along = (this.x(i) - this.x(from)) * dx + (this.y(i) - this.y(from)) * dy;
      if (along <= 1e-6) continue;
      const aside = Math.abs((this.x(i) - this.x(from)) * dy) + Math.abs((this.y(i) - this.y(from)) * dx);
      if (along + 3 * aside < least) { least = along + 3 * aside; best = i; }
    }
    return best;
  }

  inside(outline) { // corners [x, y]
    const found = [];
    for (let i = 0; i < this.count; i++) {
      const x = this.x(i), y = this.y(i);
      let within = false;
      for (let a = 0, b = outline.length - 1; a < outline.length; b = a++) {
        const [ax, ay] = outline[a], [bx, by] = outline[b];
        if ((ay > y) !== (by > y) && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) within = !within;
      }
      if (within) found.push(i);
    }
    return found;
  }
}
