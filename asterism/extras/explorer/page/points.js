// Draws points: with WebGL, or on a plain canvas where there is none. Coordinates are 16-bit numbers.

const VERTEX = `
attribute vec2 before, after; attribute vec4 colour;
uniform vec2 centre, scale; uniform float share, size;
varying vec4 shade;
void main() {
  vec2 place = mix(before, after, share);
  gl_Position = vec4((place - centre) * scale, 0.0, 1.0);
  gl_PointSize = colour.a > 0.95 ? size * 1.7 : size;
  shade = colour;
}`;
const FRAGMENT = `
precision mediump float; varying vec4 shade;
void main() {
  float away = length(gl_PointCoord - 0.5) * 2.0;
  if (away > 1.0) discard;
  float edge = 1.0 - smoothstep(0.72, 1.0, away);
  float strength = shade.a * edge;
  gl_FragColor = vec4(shade.rgb * strength, strength);
}`;

export function pointsOn(canvas) {
  const gl = canvas.getContext("webgl", { antialias: false, alpha: true, premultipliedAlpha: true });
  return gl ? new GlPoints(gl) : new PlainPoints(canvas.getContext("2d"));
}

class GlPoints {
  kind = "WebGL";
  constructor(gl) {
    this.gl = gl;
    this.program = linked(gl);
    gl.useProgram(this.program);
    this.buffers = Object.fromEntries(["before", "after", "colour"].map(name => [name, gl.createBuffer()]));
    this.places = Object.fromEntries(["centre", "scale", "share", "size"].map(name => [name, gl.getUniformLocation(this.program, name)]));
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.count = 0;
  }
  move(before, after) {
    this.count = after.length / 2;
    this.fill("before", before, 2, this.gl.UNSIGNED_SHORT);
    this.fill("after", after, 2, this.gl.UNSIGNED_SHORT);
  }
  paint(colours) { this.fill("colour", colours, 4, this.gl.UNSIGNED_BYTE); }
  fill(name, values, width, type) {
    const gl = this.gl, place = gl.getAttribLocation(this.program, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, width, type, true, 0, 0);
  }
  draw(view, share, size) {
    const { gl, places } = this, { width, height } = gl.canvas;
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(places.centre, view.x, view.y);
    gl.uniform2f(places.scale, 2 * view.zoom * devicePixelRatio / width, -2 * view.zoom * devicePixelRatio / height);
    gl.uniform1f(places.share, share);
    gl.uniform1f(places.size, size * devicePixelRatio);
    gl.drawArrays(gl.POINTS, 0, this.count);
  }
}

class PlainPoints {
  kind = "canvas";
  constructor(context) { this.context = context; this.count = 0; }
  move(before, after) { this.before = before; this.after = after; this.count = after.length / 2; }
  paint(colours) { this.colours = colours; }
  draw(view, share, size) {
    const { context, before, after, colours } = this, { width, height } = context.canvas, zoom = view.zoom * devicePixelRatio;
    context.clearRect(0, 0, width, height);
    for (let i = 0; i < this.count; i++) {
      const x = (before[2 * i] + (after[2 * i] - before[2 * i]) * share) / 65535, y = (before[2 * i + 1] + (after[2 * i + 1] - before[2 * i + 1]) * share) / 65535;
      const [red, green, blue, strength] = colours.subarray(4 * i, 4 * i + 4), side = size * devicePixelRatio * (strength > 242 ? 1.7 : 1);
      context.fillStyle = `rgba(${red}, ${green}, ${blue}, ${strength / 255})`;
      context.fillRect((x - view.x) * zoom + width / 2 - side / 2, (y - view.y) * zoom + height / 2 - side / 2, side, side);
    }
  }
}

function linked(gl) {
  const program = gl.createProgram();
  for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(type);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  return program;
}
