/** Draws carts and the curve of their returns, in the colours of the page's style sheet. */

import { HALF_LENGTH, MAX_STEPS, X_LIMIT } from "./cartpole.js";

const MARGIN_M = 0.35; // beyond the ends of the track
const ARROW_M_PER_N = 1.5;
const FONT = "12px system-ui, sans-serif";

/** Draws a cart, which has `gust`, newtons that act on its pole. The bar below is as long as its episode. */
export function drawCart(canvas, cart) {
  const { context, width, height, colour } = prepared(canvas);
  const scale = width / 2 / (X_LIMIT + MARGIN_M); // pixels per metre
  const [x, , angle] = cart.state;
  const [middle, ground] = [width / 2 + scale * x, 0.72 * height];
  const line = (style, thickness, ...points) => {
    Object.assign(context, { strokeStyle: colour(style), lineWidth: thickness, lineCap: "round" });
    context.beginPath();
    for (const point of points) context.lineTo(...point);
    context.stroke();
  };
  const track = X_LIMIT * scale;
  line("--line", 2, [width / 2 - track, ground], [width / 2 + track, ground]);
  for (const end of [-track, track]) line("--line", 2, [width / 2 + end, ground - 6], [width / 2 + end, ground + 6]);
  context.fillStyle = colour("--ink");
  context.beginPath();
  context.roundRect(middle - 0.3 * scale, ground - 0.13 * scale, 0.6 * scale, 0.26 * scale, 3);
  context.fill();
  const along = (metres) => [middle + metres * scale * Math.sin(angle), ground - metres * scale * Math.cos(angle)];
  line("--pole", 0.1 * scale, along(0), along(2 * HALF_LENGTH));
  if (cart.gust) drawArrow(line, along(HALF_LENGTH), ARROW_M_PER_N * scale * cart.gust);
  const end = 12 + (width - 24) * (cart.steps / MAX_STEPS);
  line("--line", 3, [12, height - 10], [width - 12, height - 10]);
  line("--accent", 3, [12, height - 10], [end, height - 10]);
}

/** Of a force that acts from the side; its head is where it acts. */
function drawArrow(line, [x, y], length) {
  const back = -Math.sign(length) * Math.min(7, Math.abs(length) / 2);
  line("--trouble", 2, [x - length, y], [x, y]);
  line("--trouble", 2, [x + back, y - 4], [x, y], [x + back, y + 4]);
}

/** Draws `episodes`, each {steps, length, mean}: its return as a dot, and the mean of the newest returns as a line. */
export function drawCurve(canvas, episodes) {
  const { context, width, height, colour } = prepared(canvas);
  const [left, right, top, bottom] = [48, width - 20, 16, height - 40];
  const last = Math.max(1000, episodes.at(-1)?.steps ?? 0);
  const across = (steps) => left + ((right - left) * steps) / last;
  const up = (value) => bottom - ((bottom - top) * value) / MAX_STEPS;
  Object.assign(context, { font: FONT, fillStyle: colour("--muted"), textAlign: "right" });
  context.strokeStyle = colour("--line");
  for (let value = 0; value <= MAX_STEPS; value += 100) {
    context.strokeRect(left, up(value), right - left, 0);
    context.fillText(value, left - 8, up(value) + 4);
  }
  context.textAlign = "center";
  for (let steps = 0; steps <= last; steps += spacing(last))
    context.fillText(steps.toLocaleString("en"), across(steps), bottom + 18);
  context.fillText("steps", (left + right) / 2, bottom + 34);
  Object.assign(context, { fillStyle: colour("--pole"), globalAlpha: 0.6 });
  for (const { steps, length } of episodes) context.fillRect(across(steps) - 2, up(length) - 2, 4, 4);
  Object.assign(context, { strokeStyle: colour("--accent"), globalAlpha: 1, lineWidth: 2.5, lineJoin: "round" });
  context.beginPath();
  for (const { steps, mean } of episodes) context.lineTo(across(steps), up(mean));
  context.stroke();
}

/** Between four and ten ticks' distance: 1, 2 or 5 times a power of ten. */
function spacing(last) {
  const power = 10 ** Math.floor(Math.log10(last / 4));
  return power * [5, 2, 1].find((factor) => factor * power <= last / 4);
}

/** An empty canvas as sharp as the screen, drawn on in CSS pixels. */
function prepared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = Math.round(width * devicePixelRatio); // which also clears it
  canvas.height = Math.round(height * devicePixelRatio);
  const [context, style] = [canvas.getContext("2d"), getComputedStyle(canvas)];
  context.scale(devicePixelRatio, devicePixelRatio);
  return { context, width, height, colour: (name) => style.getPropertyValue(name) };
}
