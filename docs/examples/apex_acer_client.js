/**
 * A client of apex_acer for browsers and Node (22, or 20 with --experimental-websocket). It speaks the protocol of
 * docs/remote.md in JSON and imports nothing. One client is one environment.
 */

const OPENING_MS = 10_000; // for a connection, and for the server's welcome
const CLOSING_MS = 5_000;
const FIRST_PAUSE_MS = 100; // before the client connects again; each further pause is twice as long
const LONGEST_PAUSE_MS = 5_000;
const BROKEN = 1006; // WebSocket's code

let saidSo = false; // that no server answers: once for all clients of this program

/** What is wrong, in one line. */
export class RemoteError extends Error {}
/** The server said goodbye, for example because its run has ended. */
export class Ended extends RemoteError {}
/** The server no longer has the session, so the episode is over; the next one begins with `reset`. */
export class EpisodeLost extends RemoteError {}
/** The connection broke; another one may work. */
class Broken extends Error {}

/**
 * An environment's side of the conversation. An observation is an array or a typed array of numbers, nested or flat in
 * C order, or an object with one for each of its parts; an action is a number, or an array of numbers in C order. Each call sends one message and waits for the
 * answer, for as long as the learner takes. If the connection breaks, the client makes another and goes on with the
 * episode. Calls reject with a `RemoteError`: a `EpisodeLost` if the episode cannot go on but another one can begin.
 */
export class Client {
  #url;
  #hello;
  #patienceMs;
  #answerMs;
  #connection = null;
  #session = null;
  #sequence = -1; // of the newest message
  #welcomedAt = 0;
  #asking = false;

  /**
   * Returns a client once the server has welcomed it; waits for a server that is not there yet.
   * @param {string} url such as ws://127.0.0.1:7777
   * @param {string} token the one that the server printed
   * @param {object} options
   * @param {{shape: number[], dtype: string}} options.observation with NumPy's name of the type; of parts, an object of these
   * @param {{n: number, start?: number} | {nvec: number[], start?: number[]} | {low: number[], high: number[]}} options.action all flat, too
   * @param {boolean} [options.train] whether to be learned from; true
   * @param {number} [options.patienceMs] milliseconds without a server after which the client gives up; a minute
   * @param {number} [options.answerMs] milliseconds without an answer after which it connects again; a minute
   */
  static async connect(url, token, options) {
    const client = new Client(url, token, options);
    await client.#persist(() => client.#join());
    return client;
  }

  /** Use `connect`. */
  constructor(url, token, { observation, action, train = true, patienceMs = 60_000, answerMs = 60_000 }) {
    this.#url = url;
    this.#hello = { type: "hello", version: 1, token, observation, action, train };
    this.#patienceMs = patienceMs;
    this.#answerMs = answerMs;
  }

  /** Begins an episode with its first observation; returns an action. */
  async reset(observation) {
    return (await this.#ask("reset", observation)).action;
  }

  /** Sends the result of the last action; returns the next one. */
  async step(observation, reward) {
    return (await this.#ask("step", observation, reward)).action;
  }

  /** Sends the result of an episode's last action: `terminated` by the task's own rules, or else truncated. */
  async end(observation, reward, { terminated }) {
    await this.#ask(terminated ? "terminated" : "truncated", observation, reward);
  }

  /** Leaves; an episode that has not ended counts as truncated. */
  async bye() {
    this.#connection?.send({ type: "bye", sequence: this.#sequence + 1 });
    await this.#connection?.closed();
    this.#leave();
  }

  async #ask(type, observation, reward) {
    if (this.#asking) throw new RemoteError("the message before this one has no answer yet; await it first");
    this.#asking = true;
    try {
      const message = { type, sequence: ++this.#sequence, observation: plain(observation), reward };
      return await this.#persist(() => this.#exchange(message));
    } finally {
      this.#asking = false;
    }
  }

  /** Sends `message`, unless the server has it already, and waits for its answer. */
  async #exchange(message) {
    const had = this.#connection ? message.sequence - 1 : await this.#join();
    if (had < 0 && message.sequence > 0) this.#beginAgain(message);
    if (had < message.sequence) this.#connection.send(message);
    for (;;) {
      const answer = await this.#connection.receive(this.#answerMs);
      if (answer.sequence === message.sequence) return answer; // the other one is from before the connection broke
    }
  }

  /** In a new session; only a `reset` can be its first message. */
  #beginAgain(message) {
    this.#sequence = -1;
    if (message.type !== "reset") throw new EpisodeLost("the server no longer has this episode; begin another");
    message.sequence = ++this.#sequence;
  }

  /** Returns the number of the last message that the server has of this session; -1 if there is none. */
  async #join() {
    this.#connection = new Connection(this.#url);
    await this.#connection.opened();
    this.#connection.send(this.#session ? { ...this.#hello, session: this.#session } : this.#hello);
    const { session, sequence } = await this.#connection.receive(OPENING_MS);
    this.#session = session;
    this.#welcomedAt = performance.now();
    saidSo = false;
    return sequence;
  }

  /** Attempts it until it works, or until no server has said welcome for too long. */
  async #persist(attempt) {
    this.#welcomedAt = performance.now();
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      try {
        return await attempt();
      } catch (error) {
        if (error instanceof EpisodeLost) throw error;
        this.#leave();
        if (!(error instanceof Broken)) throw error;
        const gone = performance.now() - this.#welcomedAt > this.#patienceMs;
        if (!gone && !saidSo) console.warn(`${this.#url}: ${error.message}; trying again for ${this.#patienceMs / 1000} s`);
        saidSo = true;
        if (gone) throw new RemoteError(`${this.#url}: ${error.message}; gave up after ${this.#patienceMs / 1000} s`);
      }
      await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
    }
  }

  #leave() {
    this.#connection?.close();
    this.#connection = null;
  }
}

/** Typed arrays, also those of parts, as arrays. */
function plain(value) {
  if (ArrayBuffer.isView(value)) return Array.from(value);
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, plain(part)]));
}

/** One WebSocket, whose messages are waited for. */
class Connection {
  #socket;
  #received = [];
  #code = null; // with which it was closed
  #wake = () => {};

  constructor(url) {
    if (!globalThis.WebSocket) throw new RemoteError("WebSocket is missing; Node 20 needs --experimental-websocket");
    try {
      this.#socket = new WebSocket(url);
    } catch (error) {
      throw new RemoteError(`${url}: ${error.message}; give an address such as ws://127.0.0.1:7777`);
    }
    this.#socket.onopen = () => this.#wake();
    this.#socket.onmessage = ({ data }) => this.#wake(this.#received.push(data));
    this.#socket.onclose = ({ code }) => this.#wake((this.#code = code));
    this.#socket.onerror = () => this.#wake((this.#code ??= BROKEN)); // Node 20 closes none that did not open
  }

  async opened() {
    const isOpen = () => this.#socket.readyState === WebSocket.OPEN;
    await this.#until(() => isOpen() || this.#code !== null, OPENING_MS);
    if (!isOpen()) throw new Broken("cannot connect");
  }

  send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  async receive(withinMs) {
    const decided = await this.#until(() => this.#received.length || this.#code !== null, withinMs);
    if (!decided) throw new Broken(`nothing came for ${withinMs / 1000} s`);
    if (!this.#received.length) throw new Broken(`the connection broke (code ${this.#code})`);
    const message = JSON.parse(this.#received.shift());
    if (message.type === "bye") throw new Ended(message.message);
    if (message.type === "error") throw new (message.retry ? Broken : RemoteError)(message.message);
    return message;
  }

  closed() {
    return this.#until(() => this.#code !== null, CLOSING_MS);
  }

  close() {
    this.#socket.close();
  }

  /** Waits until `holds()`, but no longer than that; returns whether it holds. */
  async #until(holds, withinMs) {
    let late = false;
    const timer = setTimeout(() => this.#wake((late = true)), withinMs);
    while (!holds() && !late) await new Promise((resolve) => (this.#wake = resolve));
    clearTimeout(timer);
    return holds();
  }
}
