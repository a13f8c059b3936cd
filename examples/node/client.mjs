#!/usr/bin/env node
/**
 * A minimal client of timerd, written from PROTOCOL.md (version 6) on zeromq, msgpack and BLAKE2b alone.
 *
 *     const client = new Client("/run/timerd", "default");
 *     const order = client.register("order/17", 2.5);
 *     client.fire("order/17", "paid");
 *     const { fate, value } = await order.settled;
 *     await client.close();
 */
import { randomBytes } from "node:crypto";
import { readFileSync, realpathSync, statSync } from "node:fs";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { decode, encode } from "@msgpack/msgpack";
import { blake2b } from "@noble/hashes/blake2b";
import { Dealer, XSubscriber } from "zeromq";

const PROTOCOL = 6;
const PURGATORY = "demo";
const NO_SESSION = Buffer.alloc(16);

const MILLISECOND = 1_000_000n;
const SECOND = 1_000n * MILLISECOND;
const TICK_MS = 20; // how often the timers below are looked at
const FIRST_PATIENCE = 250n * MILLISECOND; // without progress, before commands are sent again
const DAEMON_LOST = 3n * SECOND; // of silence
const DAEMON_ENDED = 2n * SECOND; // of silence after the end of the connection to NAME.live
const GRACE = SECOND;

const WINDOW = 65_536;
const COMMANDS_PER_FRAME = 16_384;
const FRAME_SIZE = 4 << 20;

const Up = { COMMANDS: 1, ACK: 2, ASK: 3, HELLO: 4, BYE: 6 };
const Down = { REPORT: 1, EXPECTED: 2, HELLO_FIRST: 3, WELCOME: 4, ERROR: 6, SESSION_GONE: 7 };
const FATES = { 1: "completed", 2: "expired", 3: "cancelled", 4: "failed" };
const UNAVAILABLE = 15;
const SESSION_GONE = 21;

const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC
const shorter = (a, b) => (a < b ? a : b);

// The records, little endian and unaligned.

const HEADER_UP = 56;
const HEADER_DOWN = 96;
const OUTCOME = 96;
const ANSWER = 24;
const GRANTED = 0x04;

/** A record of `size` bytes at first; each field is [type, offset, value]. */
function pack(size, fields, ...tail) {
  const record = Buffer.alloc(size);
  for (const [type, offset, value] of fields) {
    if (type === "u8") record.writeUInt8(value, offset);
    else if (type === "u16") record.writeUInt16LE(value, offset);
    else if (type === "u32") record.writeUInt32LE(value, offset);
    else if (type === "u64") record.writeBigUInt64LE(BigInt(value), offset);
    else value.copy(record, offset);
  }
  return Buffer.concat([record, ...tail]);
}

function packHeader({ kind, count, arena, session, first, outcome, answer }) {
  return pack(HEADER_UP, [
    ["u8", 0, PROTOCOL],
    ["u8", 1, kind],
    ["u32", 4, count],
    ["bytes", 8, arena],
    ["bytes", 16, session],
    ["u64", 32, first],
    ["u64", 40, outcome],
    ["u64", 48, answer],
  ]);
}

function packRegister(purgatory, key, registeredNs, timeoutNs) {
  const bytes = Buffer.from(key);
  const fields = [
    ["u8", 0, 1], // REGISTER
    ["u8", 1, purgatory],
    ["u16", 2, 0x40], // NO_MARK
    ["u32", 4, 56 + 2 + bytes.length],
    ["u8", 9, 1], // at least one
    ["u8", 10, 1], // of one key
    ["u64", 16, registeredNs],
    ["u64", 24, timeoutNs],
  ];
  return pack(56, fields, Buffer.from([bytes.length, 0]), bytes);
}

function packFire(purgatory, key, value, wantsAnswer) {
  const bytes = Buffer.from(key);
  const payload = Buffer.from(value);
  const fields = [
    ["u8", 0, 2], // FIRE
    ["u8", 1, purgatory],
    ["u8", 2, wantsAnswer ? 0x08 : 0],
    ["u8", 3, bytes.length],
    ["u32", 4, 24 + bytes.length + payload.length],
    ["u64", 8, 1], // the amount
    ["u32", 16, payload.length],
  ];
  return pack(24, fields, bytes, payload);
}

function packCancel(number, flags) {
  return pack(32, [
    ["u8", 0, 8], // CANCEL
    ["u16", 2, flags],
    ["u32", 4, 32],
    ["u64", 8, number],
  ]);
}

const packWithdrawal = (number) => packCancel(number, 0x20); // REQUEUE
const packNothing = () => packCancel(0, 0); // no operation has the number 0

const number = (buffer, offset) => Number(buffer.readBigUInt64LE(offset));

/** The header of a frame down, its outcomes and its answers. */
function parseReport(frame) {
  const report = {
    topic: number(frame, 0),
    kind: frame.readUInt8(9),
    arena: frame.subarray(24, 32),
    applied: number(frame, 32),
    outcomeFirst: number(frame, 40),
    outcomeLast: number(frame, 48),
    outcomeNewest: number(frame, 56),
    answerPrevious: number(frame, 64),
    answerNewest: number(frame, 72),
    outcomes: [],
    answers: [],
  };
  if (report.kind !== Down.REPORT) return report;
  const answersAt = HEADER_DOWN + OUTCOME * frame.readUInt32LE(12);
  const heap = answersAt + ANSWER * frame.readUInt32LE(16); // this client has no looks
  for (let at = HEADER_DOWN; at < answersAt; at += OUTCOME) {
    const place = heap + frame.readUInt32LE(at + 72);
    report.outcomes.push({
      command: number(frame, at),
      number: number(frame, at + 8),
      value: frame.subarray(place, place + frame.readUInt32LE(at + 76)),
      error: frame.readUInt32LE(at + 88),
      fate: FATES[frame.readUInt8(at + 92)],
      flags: frame.readUInt16LE(at + 94),
    });
  }
  for (let at = answersAt; at < heap; at += ANSWER) {
    report.answers.push({ command: number(frame, at), value: number(frame, at + 8), code: frame.readUInt32LE(at + 16) });
  }
  return report;
}

/** How the daemon finds the process of a client, and whether they share a clock. */
function describeProcess() {
  const status = readFileSync("/proc/self/stat", "utf8");
  const bootId = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
  return {
    pid: process.pid,
    start_ticks: Number(status.slice(status.lastIndexOf(")") + 2).split(" ")[19]),
    pid_namespace: statSync("/proc/self/ns/pid").ino,
    time_namespace: statSync("/proc/self/ns/time").ino,
    boot_id: Buffer.from(bootId.replaceAll("-", ""), "hex"),
  };
}

/** The daemon refuses this client. */
export class ProtocolError extends Error {}

/** What the application waits for; `settled` resolves to the operation itself once it has a fate. */
class Operation {
  fate = "pending";
  error = 0;
  value = Buffer.alloc(0);
  toldNs = 0n; // when this client learned its fate
  #resolve;

  constructor(key, deadlineNs) {
    this.key = key;
    this.deadlineNs = deadlineNs;
    this.settled = new Promise((resolve) => (this.#resolve = resolve));
  }

  settle(fate, error, value) {
    Object.assign(this, { fate, error, value, toldNs: now() });
    this.#resolve(this);
  }
}

/** What a client shares with the daemon under one proof. It ends with SESSION_GONE. */
class Incarnation {
  proof = randomBytes(16);
  id = Buffer.from(blake2b(this.proof, { dkLen: 16 }));
  session = NO_SESSION;
  topic = 0; // of this client's frames down
  purgatory = 0; // its index
  greets = true; // hellos are due, until a WELCOME or a report comes
  isLive = false; // no command is sent before a report has come from the outlet
  looked = now();
  said = now();
  quiet = 0n; // how long nothing came while the client listened
  liveEnded = 0n; // when the connection to NAME.live ended; 0 = it has not
  nextLive = 0n;
  operations = new Map(); // by the number of their REGISTER
  withdrawn = new Map(); // the number of the CANCEL, by that of the REGISTER
  commands = new Map(); // not confirmed; each takes the purgatory's index
  asked = new Map(); // promises of answers, by number
  last = 0; // the numbers of commands: made, applied, sent, ever in a frame
  applied = 0;
  sent = 0;
  framed = 0;
  progress = 0n;
  patience = FIRST_PATIENCE;
  received = 0; // the newest outcome
  answered = 0; // the newest answer
  holds = []; // outcomes that wait for a CANCEL before they are acknowledged
  owesAck = false;
  nextAsk = 0n;
}

/** A connection to the daemons of one instance, one after the other. */
export class Client {
  reconnects = -1; // the first connection is none
  strays = 0; // outcomes of operations that had settled before
  refused; // rejects with a ProtocolError if the daemon refuses this client

  #path;
  #name;
  #dealer;
  #outlet = null;
  #live = null;
  #arena = Buffer.alloc(8);
  #ticks;
  #isWoken = false;
  #refuse;
  #nextHello = 0n;
  #complained = 0n;
  #pause = 0n;
  #my = new Incarnation();

  constructor(directory, instance, name = "minimal-node") {
    this.#path = `${directory}/${instance}`;
    this.#name = name;
    this.refused = new Promise((_, reject) => (this.#refuse = reject));
    this.refused.catch(() => {});
    this.#dealer = this.#open(Dealer, { immediate: true, sendTimeout: 0 });
    this.#dealer.events.on("handshake", () => (this.reconnects += 1));
    this.#dealer.connect(`ipc://${this.#path}.sock`);
    this.#ticks = setInterval(() => this.#work(), TICK_MS);
  }

  // What the application calls.

  /** An operation that a fire on `key` completes, and that expires after `seconds`. */
  register(key, seconds) {
    const registered = now();
    const timeout = BigInt(Math.round(seconds * 1e9));
    const number = this.#command((purgatory) => packRegister(purgatory, key, registered, timeout));
    const operation = new Operation(key, registered + timeout);
    this.#my.operations.set(number, operation);
    return operation;
  }

  /** Completes what waits for `key`. */
  fire(key, value = "") {
    this.#command((purgatory) => packFire(purgatory, key, value, false));
  }

  /** Like `fire`, and a promise of the number of operations that it completed. */
  count(key, value = "") {
    const number = this.#command((purgatory) => packFire(purgatory, key, value, true));
    return new Promise((resolve, reject) => this.#my.asked.set(number, { resolve, reject }));
  }

  /** A goodbye: what is pending is cancelled. */
  async close() {
    clearInterval(this.#ticks);
    if (this.#my.session !== NO_SESSION) {
      this.#send(Up.BYE);
      await sleep(20); // nothing answers it
    }
    this.#dealer.close();
    this.#outlet?.close();
    this.#live?.destroy();
  }

  // Sockets.

  #open(Kind, options) {
    const socket = new Kind({
      reconnectInterval: 20,
      reconnectMaxInterval: 200,
      receiveHighWaterMark: 0,
      linger: 0,
      ...options,
    });
    this.#read(socket);
    return socket;
  }

  #openOutlet() {
    this.#outlet?.close();
    this.#outlet = this.#open(XSubscriber, { plainUsername: "timerd", plainPassword: this.#my.session });
    this.#outlet.connect(`ipc://${this.#path}.pub`);
    this.#outlet.send("\x01");
  }

  /** Holds the connection to NAME.live, whose end says that the daemon has ended. */
  #keepLive(at) {
    const my = this.#my;
    if (this.#live || my.session === NO_SESSION || at < my.nextLive) return;
    my.nextLive = at + 100n * MILLISECOND;
    let since = 0n;
    const live = connect(`${this.#path}.live`, () => {
      since = now();
      live.write(my.session);
    });
    live.on("error", () => {}); // "close" follows
    live.on("close", () => {
      if (this.#live === live) this.#live = null;
      if (since === 0n) return; // nobody was there
      if (now() - since < SECOND) my.nextLive = now() + SECOND; // refused
      else my.liveEnded = now();
    });
    live.resume();
    this.#live = live;
  }

  // Frames up.

  #command(pack, { anyway = false } = {}) {
    const my = this.#my;
    if (HEADER_UP + pack(0).length > FRAME_SIZE) throw new RangeError("the command fits into no frame");
    if (my.last - my.applied >= WINDOW && !anyway) throw new Error("the window is full");
    my.commands.set(++my.last, pack);
    if (!this.#isWoken) {
      this.#isWoken = true;
      setImmediate(() => this.#work());
    }
    return my.last;
  }

  /** One frame, with the newest acknowledgements. One that no daemon takes is lost, and repeated like any other. */
  #send(kind, { body = Buffer.alloc(0), count = 0, first = 0 } = {}) {
    const my = this.#my;
    const outcome = Math.min(my.received, ...my.holds.map(([held]) => held - 1));
    const header = { kind, count, first, outcome, answer: my.answered, arena: this.#arena, session: my.session };
    const frame = Buffer.concat([packHeader(header), body]);
    this.#dealer.send(frame).catch(() => kind === Up.HELLO && (this.#nextHello = 0n));
    my.said = now();
    my.owesAck = false;
  }

  /** Does everything that is due. */
  #work() {
    this.#isWoken = false;
    if (this.#dealer.closed) return;
    const my = this.#my;
    const at = now();
    this.#keepLive(at);
    my.quiet += shorter(at - my.looked, SECOND); // a pause of this process is not the daemon's silence
    my.looked = at;
    const isLost = my.quiet > DAEMON_LOST || (my.liveEnded && at - my.liveEnded > DAEMON_ENDED);
    if (isLost) my.greets = true;
    if (my.greets && at >= this.#nextHello) this.#hello(at);
    if (isLost) this.#withdraw(at);
    if (!my.isLive) return;
    if (my.sent > my.applied && at - my.progress > my.patience) {
      my.sent = my.applied;
      my.progress = at;
      my.patience = shorter(2n * my.patience, SECOND);
    }
    this.#sendCommands(at);
    if (my.owesAck || at - my.said > SECOND) this.#send(Up.ACK);
  }

  #sendCommands(at) {
    const my = this.#my;
    while (my.sent < my.last) {
      const packed = [];
      for (let size = HEADER_UP; my.sent + packed.length < my.last && packed.length < COMMANDS_PER_FRAME; ) {
        const command = my.commands.get(my.sent + packed.length + 1)(my.purgatory);
        size += command.length;
        if (size > FRAME_SIZE) break;
        packed.push(command);
      }
      this.#send(Up.COMMANDS, { body: Buffer.concat(packed), count: packed.length, first: my.sent + 1 });
      if (my.sent === my.applied) my.progress = at;
      my.sent += packed.length;
      my.framed = Math.max(my.framed, my.sent);
    }
  }

  #hello(at) {
    const my = this.#my;
    this.#nextHello = at + SECOND;
    const known = [...my.operations.keys()].filter((number) => number <= my.applied); // others would be `unknown`
    const hello = {
      protocol: PROTOCOL,
      proof: my.proof,
      name: this.#name,
      ...describeProcess(),
      now_ns: at,
      orphans: 0,
      group: null,
      takeover_ms: 2000,
      waits: known,
      purgatories: [PURGATORY],
    };
    this.#send(Up.HELLO, { body: encode(hello, { useBigInt64: true }) });
  }

  /** The daemon is lost: operations whose deadline has passed become UNAVAILABLE. */
  #withdraw(at) {
    const my = this.#my;
    for (const { reject } of my.asked.values()) reject(new Error("no daemon"));
    my.asked.clear();
    for (const [number, operation] of my.operations) {
      if (at < operation.deadlineNs + GRACE) continue;
      if (number > my.applied) my.commands.set(number, packNothing);
      if (number <= my.framed) {
        my.withdrawn.set(number, this.#command(() => packWithdrawal(number), { anyway: true }));
      }
      this.#settle(number, "unavailable", UNAVAILABLE);
    }
  }

  // Frames down.

  async #read(socket) {
    for await (const [frame] of socket) {
      this.#my.quiet = this.#my.liveEnded = 0n;
      this.#receive(parseReport(frame), frame.subarray(HEADER_DOWN), socket === this.#outlet, now());
    }
  }

  #receive(report, body, fromOutlet, at) {
    const my = this.#my;
    const isMine = report.topic === my.topic; // or for an incarnation that has gone
    if ((report.kind === Down.REPORT || report.kind === Down.EXPECTED) && !isMine) return;
    switch (report.kind) {
      case Down.REPORT:
        my.greets = false;
        my.isLive ||= fromOutlet;
        this.#report(report, at);
        break;
      case Down.EXPECTED:
        this.#apply(report.applied, at);
        my.sent = my.applied;
        break;
      case Down.WELCOME:
        if (my.greets) this.#welcome(report.arena, decode(body), at);
        break;
      case Down.HELLO_FIRST:
        my.isLive = false;
        this.#complain(at);
        break;
      case Down.SESSION_GONE:
        if (my.session !== NO_SESSION) this.#gone(at);
        break;
      case Down.ERROR:
        this.#error(report.applied + 1, decode(body));
        break;
    }
  }

  #welcome(arena, welcome, at) {
    const my = this.#my;
    if (!my.id.equals(welcome.incarnation)) return;
    if (!welcome.shared_clock) {
      this.#giveUp("the daemon has another clock");
      return;
    }
    my.greets = false;
    my.topic = welcome.topic;
    my.purgatory = welcome.purgatories[PURGATORY];
    this.#arena = Buffer.from(arena);
    this.#apply(welcome.applied, at);
    my.sent = my.applied;
    for (const number of welcome.unknown) this.#settle(number, "failed", SESSION_GONE);
    if (!my.session.equals(welcome.session)) {
      my.session = Buffer.from(welcome.session);
      my.isLive = false;
      this.#openOutlet();
    }
  }

  /** The daemon wants a hello: at once, or after a growing pause if it wants one again and again. */
  #complain(at) {
    const again = at - this.#complained < 3n * SECOND;
    this.#pause = again ? shorter(2n * this.#pause || 20n * MILLISECOND, SECOND) : 0n;
    this.#complained = at;
    this.#nextHello = at + this.#pause;
    this.#my.greets = true;
  }

  /** The daemon has forgotten this client, which begins again as a new one. */
  #gone(at) {
    const gone = this.#my;
    for (const number of gone.operations.keys()) this.#settle(number, "failed", SESSION_GONE);
    for (const { reject } of gone.asked.values()) reject(new Error("the session is gone"));
    this.#outlet.close();
    this.#outlet = null;
    this.#live?.destroy();
    this.#live = null;
    this.#my = new Incarnation();
    this.#complain(at);
  }

  #giveUp(reason) {
    this.#refuse(new ProtocolError(reason));
    this.close();
  }

  /** An ERROR refuses a hello, or the next command. */
  #error(number, { code, message }) {
    const my = this.#my;
    if (my.greets) {
      this.#giveUp(`${message} (code ${code})`);
      return;
    }
    if (!my.commands.has(number)) return; // it was sent twice, and refused twice
    my.commands.set(number, packNothing);
    my.sent = Math.min(my.sent, number - 1);
    this.#settle(number, "failed", code);
  }

  /** The daemon has applied the commands up to this one. */
  #apply(applied, at) {
    const my = this.#my;
    if (applied <= my.applied || applied > my.last) return;
    while (my.applied < applied) my.commands.delete(++my.applied);
    my.sent = Math.max(my.sent, applied);
    my.progress = at;
    my.patience = FIRST_PATIENCE;
    my.holds = my.holds.filter(([, cancel]) => cancel > applied);
  }

  #report(report, at) {
    const my = this.#my;
    const lostBefore =
      report.outcomeFirst > my.received + 1 || (report.answers.length > 0 && report.answerPrevious > my.answered);
    if (!lostBefore) {
      for (const outcome of report.outcomes) if (outcome.number > my.received) this.#takeOutcome(outcome);
      my.received = Math.max(my.received, report.outcomeLast);
      for (const answer of report.answers) if (answer.command > my.answered) this.#takeAnswer(answer);
      const isReminder = report.applied === my.applied;
      my.owesAck ||= isReminder || report.outcomes.length > 0 || report.answers.length > 0;
      this.#apply(report.applied, at);
    }
    const isBehind = report.outcomeNewest > my.received || report.answerNewest > my.answered;
    if ((lostBefore || isBehind) && at >= my.nextAsk) {
      my.nextAsk = at + 50n * MILLISECOND;
      this.#send(Up.ASK);
    }
  }

  #takeOutcome({ command, number, value, error, fate, flags }) {
    const my = this.#my;
    if (my.withdrawn.has(command)) {
      const cancel = my.withdrawn.get(command);
      my.withdrawn.delete(command);
      if (flags & GRANTED && cancel > my.applied) my.holds.push([number, cancel]);
    } else if (my.operations.has(command)) {
      this.#settle(command, fate, error, value);
    } else {
      this.strays += 1;
    }
  }

  #takeAnswer({ command, value, code }) {
    const my = this.#my;
    my.answered = command;
    const asked = my.asked.get(command);
    my.asked.delete(command);
    if (code && !asked) this.#settle(command, "failed", code);
    else if (code) asked.reject(new Error(`refused with code ${code}`));
    else asked?.resolve(value);
  }

  #settle(number, fate, error, value = Buffer.alloc(0)) {
    this.#my.operations.get(number)?.settle(fate, error, value);
    this.#my.operations.delete(number);
  }
}

/** Random numbers from 0 to 1, the same ones for the same seed (mulberry32). */
function randomFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Registers operations, fires at about half of them, waits for every outcome; whether nothing went wrong. */
async function storm(client, operations, seconds, seed) {
  const random = randomFrom(seed);
  const uniform = (low, high) => low + (high - low) * random();
  const run = randomBytes(4).toString("hex");
  const fates = { completed: 0, expired: 0, cancelled: 0, failed: 0, unavailable: 0, lost: 0 };
  let early = 0;

  const one = async (number) => {
    const key = `storm/${run}/${number}`;
    const timeout = uniform(0.2, 3);
    const fireAfter = random() < 0.5 ? timeout * uniform(0.01, 1.02) : null;
    await sleep(1000 * uniform(0, seconds));
    const operation = client.register(key, timeout);
    if (fireAfter !== null) sleep(1000 * fireAfter).then(() => client.fire(key));
    const limit = new AbortController();
    const late = sleep(1000 * (timeout + 30), { fate: "lost" }, limit).catch(() => {});
    const { fate } = await Promise.race([operation.settled, late]);
    limit.abort();
    fates[fate] += 1;
    if (fate === "expired" && operation.toldNs < operation.deadlineNs) early += 1;
  };

  await Promise.all(Array.from({ length: operations }, (_, number) => one(number)));
  const report = {
    registered: operations,
    completed: fates.completed,
    expired: fates.expired,
    lost: fates.lost,
    twice: client.strays,
    early,
    unavailable: fates.unavailable,
    reconnects: client.reconnects,
  };
  console.log(JSON.stringify(report));
  return !(report.lost || report.twice || report.early);
}

const USAGE = `usage: client.mjs wait KEY [--timeout S]
       client.mjs fire KEY [VALUE]
       client.mjs storm --operations N --seconds S [--seed K]
all: [--directory DIR] [--instance NAME]`;

async function main() {
  const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      directory: { type: "string", default: process.env.TIMERD_RUNTIME_DIR ?? "/run/timerd" },
      instance: { type: "string", default: "default" },
      timeout: { type: "string", default: "60" },
      operations: { type: "string", default: "1000" },
      seconds: { type: "string", default: "10" },
      seed: { type: "string", default: String(Date.now()) },
    },
  });
  const [command, key, value] = positionals;
  const { operations, seconds, seed, timeout } = options;
  if (!["wait", "fire", "storm"].includes(command) || (command !== "storm" && !key)) {
    console.error(USAGE);
    return 2;
  }
  const client = new Client(options.directory, options.instance, `minimal-${command}`);
  const run = {
    wait: async () => {
      const { fate, value } = await client.register(key, Number(timeout)).settled;
      console.log(fate, value.toString());
      return fate === "completed";
    },
    fire: async () => {
      console.log(`${await client.count(key, value)} completed`);
      return true;
    },
    storm: () => storm(client, Number(operations), Number(seconds), Number(seed)),
  };
  try {
    return (await Promise.race([run[command](), client.refused])) ? 0 : 1;
  } catch (error) {
    console.error(error.message);
    return 1;
  } finally {
    await client.close();
  }
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  process.exitCode = await main();
}
