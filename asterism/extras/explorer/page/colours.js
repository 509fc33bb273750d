// Colours of points: categories by number, numbers along a scale from deep blue to pale yellow.

const NAMED = [[230, 75, 53], [52, 138, 224], [245, 184, 37], [38, 166, 120], [168, 92, 214], [242, 124, 182], [96, 205, 226],
  [150, 190, 60], [246, 146, 70], [120, 120, 240]];
const STOPS = [[64, 67, 166], [140, 60, 150], [230, 92, 64], [250, 205, 90]];

export function category(number) {
  if (number < NAMED.length) return NAMED[number];
  const turn = ((number * 0.381966) % 1) * 6;
  return [0, 4, 2].map(shift => Math.round(60 + 180 * Math.max(0, Math.min(1, Math.abs(((turn + shift) % 6) - 3) - 1))));
}

export function along(share) {
  const place = Math.max(0, Math.min(1, share)) * (STOPS.length - 1), lower = Math.min(STOPS.length - 2, Math.floor(place));
  return STOPS[lower].map((low, i) => Math.round(low + (STOPS[lower + 1][i] - low) * (place - lower)));
}

export const css = ([red, green, blue]) => `rgb(${red}, ${green}, ${blue})`;

export function heat(share) { // over a picture: transparent where it is small
  return [...along(share), Math.round(215 * Math.max(0, Math.min(1, share)) ** 1.6)];
}
