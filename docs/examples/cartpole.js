/**
 * CartPole: a pole on a cart, which is to be kept upright by pushing the cart left or right. The equations are those of
 * Barto, Sutton and Anderson (1983), and the constants, the order of the Euler step and the limits those of gymnasium's
 * CartPole-v1. A force from outside may act on the pole.
 */

import { EpisodeLost } from "./apex_acer_client.js";

export const OBSERVATION = { shape: [4], dtype: "float32" };
export const ACTION = { n: 2 }; // to the left, to the right
export const X_LIMIT = 2.4; // m
export const ANGLE_LIMIT = (12 * Math.PI) / 180; // rad
export const HALF_LENGTH = 0.5; // m, from the pole's foot to its centre of mass
export const STEP_S = 0.02;
export const MAX_STEPS = 500;

const GRAVITY = 9.8; // m/s²
const POLE_KG = 0.1;
const TOTAL_KG = 1.0 + POLE_KG;
const FORCE_N = 10.0; // of an action

export class CartPole {
  /** x [m], its velocity [m/s], the pole's angle from upright [rad, positive to the right], its velocity [rad/s] */
  state = [0, 0, 0, 0];
  /** of this episode */
  steps = 0;

  /** Begins near the middle, or in `state`; returns the observation, which is the state. */
  reset(state = Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05)) {
    this.state = [...state];
    this.steps = 0;
    return this.state;
  }

  /**
   * Euler's step of 0.02 s, while a horizontal force of `push` newtons acts on the pole's centre of mass.
   * Returns {observation, reward, terminated, truncated}; each step pays 1.
   */
  step(action, push = 0) {
    const [x, velocity, angle, spin] = this.state;
    const [acceleration, angular] = accelerations(action === 1 ? FORCE_N : -FORCE_N, push, angle, spin);
    this.state = [
      x + STEP_S * velocity,
      velocity + STEP_S * acceleration,
      angle + STEP_S * spin,
      spin + STEP_S * angular,
    ];
    this.steps += 1;
    const terminated = Math.abs(this.state[0]) > X_LIMIT || Math.abs(this.state[2]) > ANGLE_LIMIT;
    return { observation: this.state, reward: 1, terminated, truncated: this.steps === MAX_STEPS };
  }
}

/** Of the cart [m/s²] and of the pole [rad/s²], by Lagrange's equations of a uniform rod on a cart. */
function accelerations(force, push, angle, spin) {
  const [sin, cos] = [Math.sin(angle), Math.cos(angle)];
  const moved = (force + push + POLE_KG * HALF_LENGTH * spin ** 2 * sin) / TOTAL_KG;
  const turning = GRAVITY * sin - cos * moved + (push / POLE_KG) * cos; // N per kg of the pole
  const angular = turning / (HALF_LENGTH * (4 / 3 - (POLE_KG * cos ** 2) / TOTAL_KG));
  return [moved - (POLE_KG * HALF_LENGTH * angular * cos) / TOTAL_KG, angular];
}

/** Plays episode after episode of `cart`, until the server ends; `pace()` is awaited before each step. */
export async function play(client, cart, pace = async () => {}) {
  for (;;) {
    try {
      await playEpisode(client, cart, pace);
    } catch (error) {
      if (!(error instanceof EpisodeLost)) throw error;
    }
  }
}

async function playEpisode(client, cart, pace) {
  let action = await client.reset(cart.reset());
  for (;;) {
    await pace();
    const { observation, reward, terminated, truncated } = cart.step(action);
    if (terminated || truncated) return client.end(observation, reward, { terminated });
    action = await client.step(observation, reward);
  }
}
