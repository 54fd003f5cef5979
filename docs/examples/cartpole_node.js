/**
 * Plays CartPole in Node for a run elsewhere: `node cartpole_node.js ws://127.0.0.1:7777 TOKEN_FILE [CARTS]`, with
 * `--experimental-websocket` before the file's name in Node 20. Prints mean returns, and ends when the run does.
 */

import { readFileSync } from "node:fs";
import { Client, Ended, RemoteError } from "./apex_acer_client.js";
import { ACTION, CartPole, OBSERVATION, play } from "./cartpole.js";

const NEWEST = 20; // episodes of a mean
const [url, tokenFile, carts = "8"] = process.argv.slice(2);
const lengths = []; // of episodes, which are their returns
let steps = 0;

class Counted extends CartPole {
  step(action) {
    const result = super.step(action);
    steps += 1;
    if (result.terminated || result.truncated) count(this.steps);
    return result;
  }
}

function count(length) {
  lengths.push(length);
  if (lengths.length % NEWEST) return;
  const mean = lengths.slice(-NEWEST).reduce((sum, each) => sum + each, 0) / NEWEST;
  console.log(`${steps} steps, ${lengths.length} episodes, mean return of the newest ${NEWEST}: ${mean.toFixed(1)}`);
}

/** From a file, because others on this machine can read a command line. */
function readToken() {
  if (!tokenFile) throw new RemoteError("usage: node cartpole_node.js URL TOKEN_FILE [CARTS]");
  try {
    return readFileSync(tokenFile, "utf8").trim();
  } catch (error) {
    throw new RemoteError(`${tokenFile}: ${error.message}; give the file with the run's token`);
  }
}

async function drive(token) {
  const client = await Client.connect(url, token, { observation: OBSERVATION, action: ACTION });
  await play(client, new Counted());
}

try {
  const token = readToken();
  await Promise.all(Array.from({ length: Number(carts) }, () => drive(token)));
} catch (error) {
  if (!(error instanceof RemoteError)) throw error;
  console.error(error.message);
  process.exit(error instanceof Ended ? 0 : 1);
}
