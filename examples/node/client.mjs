#!/usr/bin/env node
/**
 * A minimal client of timerd, written from PROTOCOL.md (version 6) on zeromq and msgpack alone.
 *
 *     const client = new Client("/run/timerd/default");
 *     const order = client.register("order/17", 2.5);
 *     client.fire("order/17", "paid");
 *     const { fate, value } = await order;
 *     await client.close();
 *
 * The daemon may be killed and started again at any time: no outcome is lost, and none comes twice. The head of
 * ../minimal_client/client.py says how, and what a minimal client leaves out. After SESSION_GONE or ERROR this client
 * rejects all operations with a ProtocolError, and the application makes another Client.
 */
import { randomBytes } from "node:crypto";
import { readFileSync, realpathSync, statSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { decode, encode } from "@msgpack/msgpack";
import { Dealer, XSubscriber } from "zeromq";

const PROTOCOL = 6;
const PURGATORY = "demo";

// Times in ms.
const HELLO_AGAIN = 1_000;
const SEND_AGAIN = 500; // commands, if the daemon has applied none of them meanwhile
const ASK_AGAIN = 50;
const SIGN_OF_LIFE = 1_000;
const TICK = 10; // how often these times are looked at, and commands are sent

const WINDOW = 65_536; // the most commands that are not applied
const COMMANDS_PER_FRAME = 60; // of the largest ones, too: a frame has at most 4 MiB
const KEY_SIZE = 255;
const VALUE_SIZE = 65_536;

const Up = { COMMANDS: 1, ACK: 2, ASK: 3, HELLO: 4, BYE: 6 };
const Down = { REPORT: 1, EXPECTED: 2, HELLO_FIRST: 3, WELCOME: 4, ERROR: 6, SESSION_GONE: 7 };
const FATES = { 1: "completed", 2: "expired", 3: "cancelled", 4: "failed" };
const SESSION_GONE = 21; // the code of an operation whose fate the daemon does not know

// The records, little endian and unaligned: a letter for each field of 1, 2, 4 or 8 bytes.
const SIZES = { B: 1, H: 2, I: 4, Q: 8 };
const HEADER_DOWN = "QBBHIIIQQQQQQQQQ";
const OUTCOME = "QQQQQQQQQIIIIIBBBB";
const ANSWER = "QQII";
const REGISTER = "BBHIBBBBIQQQQQ";
const FIRE = "BBBBIQII";
const REGISTER_KIND = 1;
const FIRE_KIND = 2;
const NO_MARK = 0x40; // a flag
const AT_LEAST = 0; // a condition
const EVENT_KEY = 0; // a kind of key

const sizeOf = (format) => [...format].reduce((size, letter) => size + SIZES[letter], 0);

function pack(format, ...values) {
  const fields = [...format].map((letter, index) => {
    const field = Buffer.alloc(SIZES[letter]);
    if (letter === "Q") field.writeBigUInt64LE(BigInt(values[index]));
    else field.writeUIntLE(values[index], 0, field.length);
    return field;
  });
  return Buffer.concat(fields);
}

function unpack(format, buffer, offset) {
  let at = offset;
  return [...format].map((letter) => {
    const value = letter === "Q" ? Number(buffer.readBigUInt64LE(at)) : buffer.readUIntLE(at, SIZES[letter]);
    at += SIZES[letter];
    return value;
  });
}

/** A frame of the daemon. Its outcomes and answers stand behind the header, and its heap with values behind them. */
function parse(frame) {
  const [, , kind, , outcomeCount, answerCount, , , ...numbers] = unpack(HEADER_DOWN, frame, 0);
  const [applied, outcomeFirst, outcomeLast, outcomeNewest, answerPrevious, answerNewest] = numbers;
  const body = frame.subarray(sizeOf(HEADER_DOWN));
  const report = { kind, applied, outcomeFirst, outcomeLast, outcomeNewest, answerPrevious, answerNewest, body };
  report.arena = frame.subarray(24, 32);
  const [outcomeSize, answerSize] = [sizeOf(OUTCOME), sizeOf(ANSWER)];
  const answersAt = outcomeCount * outcomeSize;
  const heap = answersAt + answerCount * answerSize;
  report.outcomes = Array.from({ length: outcomeCount }, (_, index) => {
    const [command, number, , , , , , , , place, length, , , error, fate] = unpack(OUTCOME, body, index * outcomeSize);
    return { command, number, error, fate: FATES[fate], value: body.subarray(heap + place, heap + place + length) };
  });
  report.answers = Array.from({ length: answerCount }, (_, index) => {
    const [command, , code] = unpack(ANSWER, body, answersAt + index * answerSize);
    return { command, code };
  });
  return report;
}

/** Bytes that the application gives, with their size checked. */
function checked(what, data, least, most) {
  const bytes = Buffer.from(data);
  if (bytes.length >= least && bytes.length <= most) return bytes;
  throw new RangeError(`a ${what} has ${bytes.length} bytes, and not ${least} to ${most}`);
}

/** The daemon refuses this client, or does not know it any more. */
export class ProtocolError extends Error {}

/** A client of the daemons that serve one instance, one after the other. `path` is DIRECTORY/NAME. */
export class Client {
  failure = null; // a ProtocolError after which the client is closed

  #path;
  #name;
  #dealer;
  #outlet = null;
  #ticks;
  #proof = randomBytes(16);
  #session = Buffer.alloc(16);
  #arena = Buffer.alloc(8);
  #purgatory = 0; // its index
  #isLive = false; // whether reports come. Before that no command is sent
  #operations = new Map(); // the pending ones, by the number of their REGISTER
  #commands = new Map(); // those that are not applied, by number; each makes its bytes from the purgatory's index
  #last = 0; // the newest command: of all, of those sent, of those applied
  #sent = 0;
  #applied = 0;
  #received = 0; // the newest outcome, and the newest answer
  #answered = 0;
  #owesAck = false;
  #helloAt = 0; // when to do it again
  #sendAgainAt = 0;
  #askAt = 0;
  #signAt = 0;

  constructor(path, name = "minimal-node") {
    this.#path = path;
    this.#name = name;
    // Without `immediate`, frames for a daemon that has ended would wait, and all of them reach the next daemon.
    this.#dealer = new Dealer({ immediate: true, sendTimeout: 0, linger: 0 });
    this.#dealer.connect(`ipc://${path}.sock`); // libzmq itself connects to each later daemon
    this.#read(this.#dealer);
    this.#ticks = setInterval(() => this.#sendWhatIsDue(performance.now()), TICK);
  }

  // Calls of the application.

  /** A promise of {fate, error, value}: a fire on `key` completes the operation, and it expires after `seconds`. */
  register(key, seconds) {
    const bytes = checked("key", key, 1, KEY_SIZE);
    const keys = Buffer.concat([Buffer.from([bytes.length, EVENT_KEY]), bytes]);
    const size = sizeOf(REGISTER) + keys.length;
    const times = [process.hrtime.bigint(), Math.round(seconds * 1e9)]; // CLOCK_MONOTONIC
    const number = this.#command((purgatory) => {
      const head = [REGISTER_KIND, purgatory, NO_MARK, size, AT_LEAST, 1, 1, 0, 0];
      return Buffer.concat([pack(REGISTER, ...head, ...times, 0, 0, 0), keys]);
    });
    return new Promise((resolve, reject) => this.#operations.set(number, { resolve, reject }));
  }

  /** Complete the operations of all clients that wait for `key`. */
  fire(key, value = "") {
    const tail = Buffer.concat([checked("key", key, 1, KEY_SIZE), checked("value", value, 0, VALUE_SIZE)]);
    const keySize = Buffer.byteLength(key);
    const size = sizeOf(FIRE) + tail.length;
    this.#command((purgatory) => {
      const record = pack(FIRE, FIRE_KIND, purgatory, 0, keySize, size, 1, tail.length - keySize, 0);
      return Buffer.concat([record, tail]);
    });
  }

  /** How many commands are not applied, as far as this client knows. */
  get unconfirmed() {
    return this.#last - this.#applied;
  }

  /** Say goodbye: the daemon cancels what is pending. */
  async close() {
    clearInterval(this.#ticks);
    if (this.#dealer.closed) return;
    if (this.#outlet) this.#send(Up.BYE);
    await sleep(20); // no frame answers a BYE
    this.#dealer.close();
    this.#outlet?.close();
  }

  // Up.

  /** Give a command its number, and keep it until it is applied. */
  #command(make) {
    if (this.unconfirmed >= WINDOW) throw new Error("the window is full: wait until commands are applied");
    this.#commands.set(++this.#last, make);
    return this.#last;
  }

  /** Send a frame. Each frame acknowledges what was received. A frame that no daemon takes is sent again later. */
  #send(kind, body = Buffer.alloc(0), count = 0) {
    const start = pack("BBHI", PROTOCOL, kind, 0, count);
    const end = pack("QQQ", this.#sent + 1, this.#received, this.#answered);
    const frame = Buffer.concat([start, this.#arena, this.#session, end, body]);
    this.#dealer.send(frame).catch(() => kind === Up.HELLO && (this.#helloAt = 0));
    this.#owesAck = false;
    this.#signAt = performance.now() + SIGN_OF_LIFE;
  }

  #sendWhatIsDue(now) {
    if (!this.#isLive) {
      if (now >= this.#helloAt) this.#hello(now);
      return;
    }
    if (this.#sent > this.#applied && now >= this.#sendAgainAt) this.#sent = this.#applied; // frames were lost
    while (this.#sent < this.#last) this.#sendCommands(now);
    if (this.#owesAck || now >= this.#signAt) this.#send(Up.ACK);
  }

  #hello(now) {
    this.#helloAt = now + HELLO_AGAIN;
    // The pid and the start ticks name this process. The rest shows whether the daemon has the same pids and clock.
    const status = readFileSync("/proc/self/stat", "utf8");
    const bootId = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    const hello = {
      protocol: PROTOCOL,
      proof: this.#proof,
      name: this.#name,
      pid: process.pid,
      start_ticks: Number(status.slice(status.lastIndexOf(")") + 2).split(" ")[19]),
      pid_namespace: statSync("/proc/self/ns/pid").ino,
      time_namespace: statSync("/proc/self/ns/time").ino,
      boot_id: Buffer.from(bootId.replaceAll("-", ""), "hex"),
      orphans: 0, // cancel them
      takeover_ms: 2_000,
      // WELCOME names those that the daemon does not know. It need not know a REGISTER that it has not confirmed.
      waits: [...this.#operations.keys()].filter((number) => number <= this.#applied),
      purgatories: [PURGATORY],
    };
    this.#send(Up.HELLO, encode(hello));
  }

  #sendCommands(now) {
    const commands = [];
    const last = Math.min(this.#sent + COMMANDS_PER_FRAME, this.#last);
    for (let number = this.#sent + 1; number <= last; number++) {
      commands.push(this.#commands.get(number)(this.#purgatory));
    }
    this.#send(Up.COMMANDS, Buffer.concat(commands), commands.length);
    if (this.#sent === this.#applied) this.#sendAgainAt = now + SEND_AGAIN;
    this.#sent = last;
  }

  // Down.

  async #read(socket) {
    try {
      for await (const [frame] of socket) this.#take(parse(frame), socket === this.#outlet);
    } catch (error) {
      this.failure ??= error;
      for (const { reject } of this.#operations.values()) reject(this.failure);
      await this.close();
    }
  }

  #take(report, isPublished) {
    switch (report.kind) {
      case Down.REPORT:
        this.#isLive ||= isPublished;
        this.#takeReport(report, performance.now());
        break;
      case Down.EXPECTED: // a frame was lost
        this.#confirm(report.applied);
        this.#sent = this.#applied;
        break;
      case Down.HELLO_FIRST:
        this.#isLive = false;
        break;
      case Down.WELCOME:
        if (!this.#isLive) this.#takeWelcome(report.arena, decode(report.body));
        break;
      case Down.SESSION_GONE:
        if (this.#outlet) throw new ProtocolError("the daemon does not know this client any more");
        break;
      case Down.ERROR:
        throw new ProtocolError(decode(report.body).message);
    }
  }

  #takeWelcome(arena, welcome) {
    if (!welcome.shared_clock) throw new ProtocolError("the daemon has another clock");
    this.#arena = Buffer.from(arena);
    this.#purgatory = welcome.purgatories[PURGATORY];
    this.#confirm(welcome.applied);
    this.#sent = this.#applied;
    for (const number of this.#operations.keys()) {
      const isUnknown = number <= welcome.gone || welcome.unknown.includes(number);
      if (isUnknown) this.#settle(number, { fate: "failed", error: SESSION_GONE });
    }
    if (!this.#session.equals(welcome.session)) {
      this.#session = Buffer.from(welcome.session);
      this.#openOutlet();
    }
  }

  /** Connect for reports. The first one shows that the session was accepted. */
  #openOutlet() {
    this.#outlet?.close();
    this.#outlet = new XSubscriber({ plainUsername: "timerd", plainPassword: this.#session, linger: 0 });
    this.#outlet.connect(`ipc://${this.#path}.pub`);
    this.#outlet.send("\x01"); // the subscription
    this.#read(this.#outlet);
  }

  /** The daemon has applied the commands up to this one: forget them. */
  #confirm(applied) {
    if (applied <= this.#applied || applied > this.#last) return;
    while (this.#applied < applied) this.#commands.delete(++this.#applied);
    this.#sent = Math.max(this.#sent, applied);
    this.#sendAgainAt = performance.now() + SEND_AGAIN;
  }

  /** Take a report, unless one before it is missing. Ask for what is missing. */
  #takeReport(report, now) {
    this.#owesAck = true; // an empty report may be a reminder
    const isAfterGap =
      report.outcomeFirst > this.#received + 1 || (report.answers.length > 0 && report.answerPrevious > this.#answered);
    if (!isAfterGap) {
      this.#takeRecords(report);
      this.#confirm(report.applied);
    }
    const isBehind = report.outcomeNewest > this.#received || report.answerNewest > this.#answered;
    if ((isAfterGap || isBehind) && now >= this.#askAt) {
      this.#askAt = now + ASK_AGAIN;
      this.#send(Up.ASK);
    }
  }

  #takeRecords({ outcomes, outcomeLast, answers }) {
    for (const { command, number, ...outcome } of outcomes) {
      if (number > this.#received) this.#settle(command, outcome); // otherwise it came before
    }
    this.#received = Math.max(this.#received, outcomeLast);
    for (const { command, code } of answers) {
      if (command <= this.#answered) continue;
      this.#answered = command;
      if (this.#operations.has(command)) this.#settle(command, { fate: "failed", error: code });
      else console.warn(`a fire was refused with code ${code}`);
    }
  }

  #settle(number, { fate, error, value = Buffer.alloc(0) }) {
    const operation = this.#operations.get(number);
    this.#operations.delete(number);
    operation.resolve({ fate, error, value }); // a TypeError would mean that an outcome came twice
  }
}

async function main([command, key, rest]) {
  if (!["wait", "fire"].includes(command) || !key) {
    console.error("usage: client.mjs wait KEY [SECONDS]\n       client.mjs fire KEY [VALUE]");
    return;
  }
  const client = new Client(`${process.env.TIMERD_RUNTIME_DIR ?? "/run/timerd"}/default`);
  if (command === "wait") {
    const { fate, value } = await client.register(key, Number(rest ?? 60));
    console.log(fate, value.toString());
  } else {
    client.fire(key, rest);
    while (client.unconfirmed && !client.failure) await sleep(10);
    console.log(client.failure?.message ?? "fired");
  }
  await client.close();
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  await main(process.argv.slice(2));
}
