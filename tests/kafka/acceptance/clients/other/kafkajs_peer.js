// Plays the roles of ../peer.py with kafkajs: node kafkajs_peer.js PLAN. Plan and lines are those of ../errand.py.
"use strict";

const fs = require("fs");
const readline = require("readline");
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require("kafkajs");

const AFTER_S = 0.3; // for this time a consumer waits for unexpected records
const PATIENCE_S = 120; // for this time a consumer waits for missing records
const SIZE = 100; // bytes of a record's value
const FETCH_MS = 100; // kafkajs sends heartbeats only between two fetches, so a fetch waits less than its 5 s

const plan = JSON.parse(process.argv[2]);
let stopped = false;

const now = () => Number(process.hrtime.bigint()) / 1e9;
const say = (what) => fs.writeSync(1, JSON.stringify({ at: now(), ...what }) + "\n");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function listen() {
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    stopped ||= line.trim() === "stop";
  });
  lines.on("close", () => {
    stopped = true;
  });
}

function client() {
  try {
    CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");
  } catch (error) {
    if (error.code !== "MODULE_NOT_FOUND") throw error;
  }
  return new Kafka({
    clientId: plan.name,
    brokers: plan.bootstrap.split(","),
    logLevel: logLevel.ERROR,
    // By default kafkajs gives up after five retries. A broker that was killed may be away for longer.
    retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 60 },
  });
}

const CODECS = { gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy };

function timeOf(number) {
  if (!plan.times) return {};
  const time = plan.step === undefined ? plan.times[number] : plan.times[0] + number * plan.step;
  return { timestamp: String(time) };
}

async function produce(kafka) {
  const idempotent = (plan.acks ?? "all") === "all";
  const producer = kafka.producer({ idempotent });
  await producer.connect();
  say({ ready: true });
  const acked = [];
  const failed = [];
  const most = plan.count || Infinity;
  const begun = now();
  const end = begun + (plan.seconds || Infinity);
  let sent = 0;

  // One call sends one batch. If a call sends to several brokers and one of them fails, kafkajs may send a batch to
  // another one twice, and count its sequence twice.
  async function sendTo(partition, numbers) {
    const at = now();
    const messages = numbers.map((number) => ({
      partition,
      value: `${plan.tag} ${number} `.padEnd(plan.size ?? SIZE, "."),
      ...timeOf(Math.floor(number / plan.partitions)),
    }));
    try {
      const compression = plan.codec ? CODECS[plan.codec] : CompressionTypes.None;
      const acks = idempotent ? -1 : plan.acks;
      const [answer] = await producer.send({ topic: plan.topic, acks, compression, messages });
      const base = answer === undefined ? NaN : Number(answer.baseOffset); // there is no answer without acks
      numbers.forEach((number, place) => acked.push([number, Number.isNaN(base) ? -1 : base + place, now() - at]));
    } catch (error) {
      for (const number of numbers) failed.push([number, error.type || error.name]);
    }
  }

  // The next batches are sent when all of these are answered.
  async function send(numbers) {
    const byPartition = new Map();
    for (const number of numbers) {
      const partition = number % plan.partitions;
      if (!byPartition.has(partition)) byPartition.set(partition, []);
      byPartition.get(partition).push(number);
    }
    await Promise.all([...byPartition].map(([partition, mine]) => sendTo(partition, mine)));
  }

  while (!stopped && sent < most && now() <= end) {
    const numbers = [];
    const room = plan.one_batch ? most : plan.in_flight ?? 500;
    while (numbers.length < room && sent < most) {
      if (plan.rate && begun + sent / plan.rate > now()) break;
      numbers.push(sent++);
    }
    await (numbers.length ? send(numbers) : sleep(2));
  }
  const seconds = now() - begun;
  await producer.disconnect();
  return { sent, acked, failed, seconds, throttles_ms: [] };
}

async function consume(kafka) {
  const consumer = kafka.consumer({
    groupId: plan.group ?? `alone-${plan.name}`, // kafkajs reads only as a member of a group
    maxWaitTimeInMs: FETCH_MS,
    ...(plan.session_ms ? { sessionTimeout: plan.session_ms, heartbeatInterval: plan.heartbeat_ms } : {}),
  });
  const rows = [];
  const places = new Set();
  const begun = now();
  let last = begun;
  let before = "[]";
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const assigned = Object.values(payload.memberAssignment)
      .flat()
      .sort((one, other) => one - other);
    if (plan.role === "member" && JSON.stringify(assigned) !== before) {
      before = JSON.stringify(assigned);
      say({ assigned });
    }
  });
  consumer.on(consumer.events.CRASH, ({ payload }) => console.error("crash:", payload.error, payload.restart));
  await consumer.connect();
  await consumer.subscribe({ topics: plan.topics ?? [plan.topic], fromBeginning: true });
  await consumer.run({
    eachBatch: async ({ batch }) => {
      for (const { offset, value } of batch.messages) {
        rows.push([batch.partition, Number(offset), value.toString().replace(/[. ]+$/, "")]);
        places.add(`${batch.partition} ${offset}`);
      }
      last = now();
      say({ read: places.size });
    },
  });
  say({ ready: true });
  while (!stopped) {
    await sleep(20);
    const patience = rows.length >= plan.expect ? AFTER_S : plan.patience ?? PATIENCE_S;
    if (plan.expect !== undefined && now() > last + patience) break;
  }
  say({ closing: true });
  await consumer.disconnect();
  say({ closed: true });
  return { rows, seconds: last - begun };
}

async function withAdmin(kafka, play) {
  const admin = kafka.admin();
  await admin.connect();
  const result = await play(admin);
  await admin.disconnect();
  return result;
}

const listed = (offsets) =>
  Object.entries(offsets).map(([partition, to]) => ({ partition: Number(partition), offset: String(to) }));

function commit(kafka) {
  return withAdmin(kafka, async (admin) => {
    await admin.setOffsets({ groupId: plan.group, topic: plan.topic, partitions: listed(plan.offsets) });
    return {};
  });
}

function committed(kafka) {
  return withAdmin(kafka, async (admin) => {
    const [found] = await admin.fetchOffsets({ groupId: plan.group, topics: [plan.topic] });
    const offsets = found.partitions.map(({ partition, offset }) => [partition, Math.max(0, Number(offset))]);
    return { offsets: Object.fromEntries(offsets) };
  });
}

function ask(kafka) {
  return withAdmin(kafka, async (admin) => {
    await admin.fetchTopicOffsets(plan.topic); // else kafkajs 2.2.4 does not know the leaders when it deletes records
    if (plan.delete) await admin.deleteTopicRecords({ topic: plan.topic, partitions: listed(plan.delete) });
    const found = await admin.fetchTopicOffsetsByTimestamp(plan.topic, plan.at);
    return {
      at: Object.fromEntries(found.map(({ partition, offset }) => [partition, Number(offset)])),
      largest: null, // kafkajs has no call for it
    };
  });
}

async function main() {
  listen();
  const roles = { produce, consume, member: consume, commit, committed, ask };
  const result = await roles[plan.role](client());
  fs.writeFileSync(`${plan.result}.draft`, JSON.stringify(result));
  fs.renameSync(`${plan.result}.draft`, plan.result);
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
