/**
 * Many operations of the minimal client in Node.js, with every outcome counted. It prints the counts as JSON.
 *
 *     node storm.mjs CLIENT PATH OPERATIONS SECONDS SEED
 *
 * CLIENT is the file of the client, PATH is DIRECTORY/NAME of the daemon. Each operation is registered at a random time
 * within SECONDS, and about half of them are fired, some of these close to their deadline.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const PATIENCE = 30; // seconds after its deadline; an operation that has not settled by then is lost

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

const [file, path, operations, seconds, seed] = process.argv.slice(2);
const { Client } = await import(pathToFileURL(file));
const random = randomFrom(Number(seed));
const uniform = (low, high) => low + (high - low) * random();
const client = new Client(path);
const found = { completed: 0, expired: 0, cancelled: 0, failed: 0, lost: 0, twice: 0, early: 0 };

async function one(number) {
  const [key, timeout, start] = [`storm/${number}`, uniform(0.2, 3), uniform(0, Number(seconds))];
  const fireAfter = random() < 0.5 ? timeout * uniform(0.01, 1.02) : null;
  await sleep(1000 * start);
  const deadline = performance.now() + 1000 * timeout;
  const settled = client.register(key, timeout);
  if (fireAfter !== null) sleep(1000 * fireAfter).then(() => client.fire(key));
  const limit = new AbortController();
  const late = sleep(1000 * (timeout + PATIENCE), { fate: "lost" }, limit).catch(() => {});
  const { fate } = await Promise.race([settled, late]);
  limit.abort();
  found[fate] += 1;
  if (fate === "expired" && performance.now() < deadline) found.early += 1;
}

await Promise.all(Array.from({ length: Number(operations) }, (_, number) => one(number)));
console.log(JSON.stringify(found));
await client.close();
