"use strict";
// Texts of the arena only become text nodes, never HTML: keys and names are anybody's.

const SERIES = [
  { title: "a second", format: number, lines: ["registered", "completed", "expired", "events"] },
  { title: "how long completed operations waited", format: seconds, lines: ["wait_p50", "wait_p99"] },
  { title: "how late operations expired", format: seconds, lines: ["late_p99"] },
  { title: "pending operations", format: number, lines: ["pending"] },
  { title: "the daemon's turns, of a core", format: percent, lines: ["turns"] },
];
const NAMES = { wait_p50: "p50", wait_p99: "p99", late_p99: "p99", turns: "turns" };
const TABS = {
  overview: "overview", operations: "operations", keys: "keys", clients: "clients", purgatories: "purgatories",
  groups: "groups", calls: "calls", letters: "dead letters", journal: "journal", errors: "errors",
};
const HOUR_S = 3600, ROWS_S = 2, SLOW_S = 20, acts = { letters: ["retry", "drop"], calls: ["cancel"] };
let tab = "overview", columns = [], points = [], every = 2, asked = 0, from = 0, next = null, timer = 0;
const wishes = {};

const $ = (id) => document.getElementById(id);
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null) element.setAttribute(key, value);
  }
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}
function drawn(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// numbers for people -----------------------------------------------------------------------------------------------
function number(value) {
  if (value === null || value === undefined) return "-";
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}
function seconds(value) {
  if (value === null || value === undefined) return "-";
  const steps = [[1e-6, 1e-9, "ns"], [1e-3, 1e-6, "us"], [1, 1e-3, "ms"], [60, 1, "s"], [3600, 60, "min"], [172800, 3600, "h"]];
  for (const [limit, unit, name] of steps) if (value < limit) return `${short(value / unit)} ${name}`;
  return `${short(value / 86400)} d`;
}
function short(value) { return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2); }
function percent(value) { return value === null || value === undefined ? "-" : `${(100 * value).toFixed(1)} %`; }
function bytes(value) {
  for (const unit of ["B", "KiB", "MiB"]) { if (value < 1024) return `${unit === "B" ? value : value.toFixed(1)} ${unit}`; value /= 1024; }
  return `${value.toFixed(1)} GiB`;
}

// overview -----------------------------------------------------------------------------------------------------------
function show(message) {
  if (message.history) { [columns, points, every] = [message.columns, message.history, message.every_s]; return charts(); }
  findings(message.findings);
  if (!message.point) return;
  points.push(message.point);
  while (points.length > HOUR_S / every) points.shift();
  const life = message.alive ? `pid ${message.pid}, up ${seconds(message.uptime_s)}` : "not running";
  $("title").textContent = `timerd ${message.instance}: ${life}; arena ${bytes(message.arena_bytes)}`;
  document.title = `${message.findings[0].level === "fine" ? "" : "! "}timerd ${message.instance}`;
  tiles(message);
  limits(message.limits);
  fill($("hot"), message.hot.map((key) => [key.key, number(key.rate), key.purgatory]), [false, true, false]);
  if (tab === "overview") charts();
}
function findings(found) {
  $("findings").replaceChildren(...found.map((each) => make("li", { class: each.level }, `${each.text} `, each.help ? make("code", {}, each.help) : "")));
}
function tiles(message) {
  const rates = message.rates, late = message.lateness_ns, wait = message.wait_ns;
  const shown = [
    ["pending", number(message.pending)], ["clients", number(message.clients)],
    ["registered a second", number(rates.registered)], ["completed a second", number(rates.completed)],
    ["expired a second", number(rates.expired)], ["events a second", number(rates.events)],
    ["waited, p99", wait.count ? seconds(wait.p99 / 1e9) : "-"], ["expired late by, p99", late.count ? seconds(late.p99 / 1e9) : "-"],
  ];
  $("tiles").replaceChildren(...shown.map(([name, value]) => make("div", { class: "tile" }, make("b", {}, value), make("span", {}, name))));
}
function limits(found) {
  const rows = found.map((each) => {
    const share = each.limit ? each.used / each.limit : 0, bar = make("div");
    bar.style.width = `${100 * share}%`;
    const size = each.name.endsWith("bytes") ? bytes : number;
    const name = each.name.replaceAll("_", " ") + (each.gives_way ? " (the oldest give way)" : "");
    return [name, make("div", { class: share >= 0.9 && !each.gives_way ? "bar high" : "bar" }, bar), size(each.used), size(each.limit),
      each.per_s ? number(each.per_s) : "-", each.full_in_ns === null ? "-" : seconds(each.full_in_ns / 1e9)];
  });
  fill($("limits"), rows, [false, false, true, true, true, true]);
}
function fill(table, rows, right) {
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, at) => make("td", { class: right[at] ? "right" : null }, cell))));
  table.tBodies[0].replaceChildren(...(body.length ? body : [make("tr", {}, make("td", { colspan: right.length }, "none"))]));
}
function charts() {
  if (!$("charts").children.length) $("charts").replaceChildren(...SERIES.map(() => make("div", { class: "chart" })));
  SERIES.forEach((series, at) => chart(series, $("charts").children[at]));
}
function chart(series, place) {
  const at = series.lines.map((name) => columns.indexOf(name));
  const width = Math.max(place.clientWidth - 18, 200), height = 150, left = 62, low = 128;
  const end = points.length ? points[points.length - 1][0] : Date.now() / 1000;
  const start = Math.min(points.length ? points[0][0] : end, end - 60), top = Math.max(...points.map((point) => Math.max(...at.map((one) => point[one] ?? 0))), 0) || 1;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": series.title });
  for (const share of [0, 0.5, 1]) {
    const y = low - share * (low - 10);
    svg.append(drawn("line", { class: "grid", x1: left, x2: width, y1: y, y2: y }), drawn("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, share ? series.format(share * top) : "0"));
  }
  svg.append(drawn("text", { x: left, y: height - 4 }, clock(start)), drawn("text", { x: width, y: height - 4, "text-anchor": "end" }, clock(end)));
  at.forEach((one, line) => {
    let path = "", pen = false, before = 0;
    for (const point of points) {
      const value = point[one];
      if (value === null) { pen = false; continue; }
      if (point[0] - before > 3 * every) pen = false; // no page was open in between
      before = point[0];
      const x = left + ((point[0] - start) / (end - start)) * (width - left), y = low - (value / top) * (low - 10);
      path += `${pen ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}${pen ? "" : "h0.6"}`;
      pen = true;
    }
    svg.append(drawn("path", { class: `s${line}`, d: path }));
  });
  const newest = points[points.length - 1];
  const legend = at.map((one, line) => make("span", {}, make("i", { class: `s${line}` }, NAMES[series.lines[line]] ?? series.lines[line]), ` ${newest ? series.format(newest[one]) : "-"}`));
  place.replaceChildren(make("div", { class: "legend" }, make("b", {}, series.title), ...legend), svg);
}
function clock(at) { return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" }); }

// tables -------------------------------------------------------------------------------------------------------------
async function ask(path, query = {}) {
  const text = new URLSearchParams(query).toString();
  const answer = await fetch(text ? `${path}?${text}` : path);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
function query() {
  const wish = wishes[tab] ?? {};
  if (tab === "operations") return ["operations", { ...wish, from }];
  if (tab in { letters: 1, errors: 1, journal: 1 }) return [tab, {}];
  return ["rows", { view: tab, ...wish, from }];
}
async function refresh(add = false) {
  clearTimeout(timer);
  if (tab === "overview") return;
  const mine = ++asked;
  let wait = ROWS_S;
  try {
    const [path, wish] = query();
    const found = await ask(path, wish);
    if (mine !== asked) return; // another tab or search is shown by now
    table(found, add);
  } catch (error) {
    if (mine !== asked) return;
    $("about").textContent = error.message;
    wait = SLOW_S;
  }
  if (mine === asked && tab !== "operations" && !from) timer = setTimeout(refresh, wait * 1000);
}
function table(found, add) {
  $("lines").hidden = !found.lines;
  $("rows").hidden = Boolean(found.lines);
  if (found.lines) {
    $("lines").textContent = found.lines.join("\n") || "nothing yet";
    $("about").textContent = "the newest rows, the last one is the newest";
    return;
  }
  if (found.orders && !$("order")) orders(found.orders);
  const right = found.columns.map((column) => column[1]), buttons = document.body.dataset.act ? acts[tab] ?? [] : [];
  $("rows").tHead.replaceChildren(make("tr", {}, ...found.columns.map(([title, is]) => make("th", { class: is ? "right" : null }, title)), ...buttons.map(() => make("th"))));
  const rows = found.rows.map((row) => line(row, right, buttons));
  if (add) $("rows").tBodies[0].append(...rows); else $("rows").tBodies[0].replaceChildren(...rows);
  next = found.next ?? null;
  const shown = $("rows").tBodies[0].rows.length, all = found.count ?? shown;
  $("about").textContent = shown ? `${number(shown)} of ${number(all)}${next === null ? "" : " so far"}` : next === null ? "none" : "none so far";
  $("more").hidden = next === null && (found.count === undefined || shown >= all);
}
function line(row, right, buttons) {
  const open = () => explain(row);
  const cells = row.cells.map((cell, at) => make("td", { class: right[at] ? "right" : null, title: cell }, cell));
  const doing = buttons.map((act) => make("td", {}, make("button", { type: "button", onclick: (event) => { event.stopPropagation(); perform(act, row); } }, act)));
  return make("tr", { tabindex: 0, onclick: open, onkeydown: (event) => { if (event.key === "Enter") open(); } }, ...cells, ...doing);
}
async function perform(act, row) {
  if (!confirm(`${act} ${row.name}?`)) return;
  const wish = act === "cancel" ? { act, id: row.id, group: row.group } : { act, number: row.number };
  const answer = await fetch("act", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(wish) });
  const found = await answer.json();
  $("about").textContent = found.error ?? (found.done ? "done" : "nothing was done: it has changed meanwhile");
  setTimeout(refresh, 500);
}
async function explain(row) {
  if (tab === "operations" || tab === "calls" || tab === "letters") {
    const found = await ask("explain", { op: row.shown_number });
    text(found.lines.join("\n"));
  } else if (tab === "keys") search("operations", { key: row.key });
  else if (tab === "clients" && row.slot !== null) search("operations", { owner: row.slot });
  else if (tab === "groups") search("operations", { owner: row.name });
  else text(JSON.stringify({ ...row, cells: undefined }, null, 2));
}
function text(lines) { $("dialog").querySelector("pre").textContent = lines; $("dialog").showModal(); }
function search(name, wish) { wishes[name] = wish; go(name); }

// tabs ---------------------------------------------------------------------------------------------------------------
function go(name) {
  tab = name; from = 0; next = null;
  for (const button of $("tabs").children) button.setAttribute("aria-selected", button.dataset.tab === name);
  $("overview").hidden = name !== "overview";
  $("table").hidden = name === "overview";
  $("rows").tHead.replaceChildren(); $("rows").tBodies[0].replaceChildren();
  $("about").textContent = ""; $("more").hidden = true; $("lines").hidden = true;
  form();
  if (name === "overview") charts(); else refresh();
  location.hash = name;
}
function form() {
  const fields = tab === "operations" ? ["key", "id", "owner"] : tab in { keys: 1, clients: 1, purgatories: 1, groups: 1, calls: 1 } ? ["text"] : [];
  const wish = wishes[tab] ?? {};
  $("search").replaceChildren(...fields.map((name) => make("input", { name, placeholder: name === "text" ? "only rows with this text" : name, "aria-label": name, value: wish[name] ?? "" })),
    ...(fields.length ? [make("button", {}, "search")] : []));
}
function orders(names) {
  const wish = wishes[tab] ?? {};
  const list = make("select", { id: "order", name: "order", "aria-label": "sort by", onchange: submit }, ...names.map((name) => make("option", { value: name }, `by ${name}`)));
  if (wish.order) list.value = wish.order;
  $("search").append(list);
}
function submit(event) {
  event?.preventDefault();
  wishes[tab] = Object.fromEntries([...new FormData($("search"))].filter(([, value]) => value));
  from = 0;
  refresh();
}
function begin() {
  for (const [name, title] of Object.entries(TABS)) $("tabs").append(make("button", { type: "button", role: "tab", "data-tab": name, onclick: () => go(name) }, title));
  $("search").addEventListener("submit", submit);
  $("more").addEventListener("click", () => { from = next ?? $("rows").tBodies[0].rows.length; refresh(true); });
  const asked = location.hash.slice(1);
  go(asked in TABS ? asked : "overview");
  addEventListener("resize", () => { if (tab === "overview") charts(); });
  const stream = new EventSource("events");
  stream.onmessage = (event) => show(JSON.parse(event.data));
  stream.onerror = () => findings([{ level: "error", text: "`timerctl web` has ended, or does not answer: this is the last that it said.", help: "" }]);
}
begin();
