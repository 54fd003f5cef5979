/** Plays carts for a run whose address and token stand after the # of this page's address: #url=ws://…&token=… */

import { Client, Ended, RemoteError } from "./apex_acer_client.js";
import { ACTION, CartPole, OBSERVATION, STEP_S, play } from "./cartpole.js";
import { drawCart, drawCurve } from "./cartpole_drawing.js";

const CARTS = 8;
const NEWEST = 20; // episodes of a mean
const GUST_STEPS = 25; // for which a push is the same
const SHOW_MS = 250; // between two updates of the text
const RATE_OVER = 8; // such updates
const SILENT_MS = 3000; // after which the page says so

const { url, token } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const element = (id) => document.getElementById(id);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const episodes = []; // {steps, length, mean}: all steps until its end, its own, and the mean of the newest lengths
let steps = 0;
let steppedAt = performance.now();
let trouble = ""; // what the server said when it turned the page away
let refused = !url || !token;
let speed = "full";
let continued = Promise.resolve(); // not yet fulfilled while the carts pause
let goOn = () => {};

class Cart extends CartPole {
  gust = 0; // N
  due = 0; // when the next step is, in real time

  step(action) {
    if (this.steps % GUST_STEPS === 0) this.gust = element("push").value * (2 * Math.random() - 1);
    const result = super.step(action, this.gust);
    steps += 1;
    steppedAt = performance.now();
    if (result.terminated || result.truncated) note(this.steps);
    return result;
  }
}

function note(length) {
  const newest = [...episodes.slice(1 - NEWEST).map((episode) => episode.length), length];
  episodes.push({ steps, length, mean: newest.reduce((sum, each) => sum + each, 0) / newest.length });
}

// ── playing ──

/** Plays a cart for ever: a server that has ended may come back, but one that refuses the page will not think again. */
async function drive(cart) {
  while (!refused) {
    try {
      const spaces = { observation: OBSERVATION, action: ACTION, patienceMs: Infinity };
      const client = await Client.connect(url, token, spaces);
      trouble = "";
      await play(client, cart, () => pace(cart));
    } catch (error) {
      if (!(error instanceof RemoteError)) throw error;
      refused = !(error instanceof Ended);
      trouble = error.message;
      await sleep(SILENT_MS);
    }
  }
}

async function pace(cart) {
  await continued;
  if (speed !== "real") return;
  const now = performance.now();
  cart.due = Math.max(cart.due + 1000 * STEP_S, now);
  await sleep(cart.due - now);
}

element("speed").onchange = ({ target }) => {
  speed = target.value;
  goOn();
  if (speed === "paused") continued = new Promise((resolve) => (goOn = resolve));
  steppedAt = performance.now();
};
element("push").oninput = ({ target }) => (element("strength").value = Number(target.value).toFixed(2));

// ── what one sees ──

/** What is wrong, or an empty string. */
function problem() {
  const silent = performance.now() - steppedAt;
  const pause = `${Math.round(silent / 1000)} s; trying again`;
  if (!url || !token) return "The address lacks #url=…&token=…; use the one that docs.examples.cartpole_browser prints.";
  if (refused) return `The server refuses this page: ${trouble}.`;
  if (trouble) return `The server said goodbye: ${trouble}. Waiting for another one.`;
  if (speed === "paused" || silent < SILENT_MS) return "";
  if (steps) return `No answer from ${url} for ${pause}.`;
  return `No connection to ${url} for ${pause}. Is the run there?`;
}

function show() {
  const wrong = problem();
  element("state").textContent = wrong || (speed === "paused" ? "Paused." : steps ? "Learning." : "Connecting …");
  element("state").className = wrong && "trouble";
  element("mean").textContent = episodes.at(-1)?.mean.toFixed(1) ?? "–";
  element("episodes").textContent = episodes.length.toLocaleString("en");
  element("steps").textContent = steps.toLocaleString("en");
  element("rate").textContent = Math.round(rate()).toLocaleString("en");
  drawCurve(element("curve"), episodes);
}

const counted = []; // [time, steps] at the newest updates

/** Steps per second. */
function rate() {
  counted.push([performance.now(), steps]);
  if (counted.length > RATE_OVER) counted.shift();
  const [[since, before], [now, after]] = [counted[0], counted.at(-1)];
  return (1000 * (after - before)) / (now - since || 1);
}

const carts = Array.from({ length: CARTS }, () => new Cart());
const canvases = carts.map(() => element("carts").appendChild(document.createElement("canvas")));

function draw() {
  carts.forEach((cart, index) => drawCart(canvases[index], cart));
  requestAnimationFrame(draw);
}

setInterval(show, SHOW_MS);
onhashchange = () => location.reload();
draw();
carts.forEach(drive);
