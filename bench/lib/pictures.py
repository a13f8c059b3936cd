"""The six pictures of bench/RESULTS.md, each with a sentence. All figures come from bench/results.

A picture whose figures were not measured is left out, and the page names the command that measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench.lib.common import Row, rows_with, shown
from bench.lib.figures import Documents, NotMeasuredError, figure, sentence, value_of
from bench.lib.svg import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, TEAL, Axis, Bar, Curve, Sheet

M = 1_000_000
# The limits of the gate for each witness's p99, in ms: see bench/attack/witnesses.py.
LIMITS_MS = {"member": 20.0, "newcomer": 100.0, "call": 50.0, "bystander": 20.0}


class Picture(NamedTuple):
    """A picture of RESULTS.md."""

    name: str  # of the file
    title: str
    suites: tuple[str, ...]  # whose documents it shows
    draw: Callable[[Documents], Sheet]  # raises NotMeasuredError
    says: Callable[[Documents], str]  # raises NotMeasuredError
    compares: bool = False  # whether other programs were measured, so that their versions matter


def rows_in(documents: Documents, suite: str, table: str, **where: Any) -> list[Row]:
    """Rows of a table. Raises NotMeasuredError if there are none."""
    found = rows_with(documents.get(suite, {}).get("tables", {}).get(table, []), where)
    if not found:
        raise NotMeasuredError(suite)
    return found


def curves_of(
    rows: list[Row], column: str, names: tuple[tuple[str, str, str, str], ...], x: str, y: str
) -> list[Curve]:
    """A line for each (name, label, colour, dash) that has points. `column` has the names."""
    points = {name: [(row[x], row[y]) for row in rows_with(rows, {column: name}) if row.get(y)] for name, *_ in names}
    return [Curve(label, points[name], colour, dash) for name, label, colour, dash in names if points[name]]


def bars_of_ways(
    rows: list[Row], ways: tuple[tuple[str, str, str], ...], value: str, says: Callable[[Row], str], most: str = ""
) -> list[Bar]:
    """A bar for each row of these ways (name, label, colour) that has a value."""
    return [
        Bar(label, row[value], says(row), colour, row.get(most))
        for way, label, colour in ways
        for row in rows_with(rows, {"way": way})
        if row.get(value) is not None
    ]


def saying(text: str) -> Callable[[Documents], str]:
    """A sentence whose figures stand as {NAME}."""
    return lambda documents: sentence(documents, text)


# the article ---------------------------------------------------------------------------------------------------------

DESIGNS = (
    ("timerd", "timerd's core", BLUE, ""),
    ("old, purge every 1,000", "the old design, rebuilt, purged every 1,000", ORANGE, ""),
    ("old, purge every 10,000", "the same, purged every 10,000", ORANGE, "6 3"),
)
QUOTES = {"Kafka, old": RED, "Kafka, timing wheels": PURPLE, "Kafka, trunk of 2024": GREEN}


def draw_article(documents: Documents) -> Sheet:
    points = rows_in(documents, "article", "points_high")
    most = max(row["asked"] for row in points)
    series = curves_of(points, "design", DESIGNS, "asked", "reached")
    for row in rows_in(documents, "article", "saturation", case="high"):
        rate, name = row.get("saturates_after"), row["design"]
        if name in QUOTES and rate is not None:
            label = f"{name}: up to {rate:,} (quoted)"
            series.append(Curve(label, [(rate, rate), (most, rate)], QUOTES[name], "2 3", has_dots=False))
    sheet = Sheet("Kafka's purgatory and timerd's core in the article's experiment")
    sheet.curves(series, Axis("requests a second, asked", log=True), Axis("requests a second, reached", log=True))
    return sheet


say_article = saying(
    "The experiment is that of Confluent's article about Kafka's timing wheels. timerd's core keeps up with "
    "{article/saturation/high/timerd/saturates_after} requests a second, at "
    "{article/saturation/high/timerd/cpu_us_per_request} us of CPU for each. The article's old design, rebuilt here, "
    "keeps up with {article/saturation/high/old, purge every 10,000/saturates_after}. Kafka's own figures are from "
    "other machines: {article/saturation/high/Kafka, old/saturates_after} for its old purgatory, "
    "{article/saturation/high/Kafka, timing wheels/saturates_after} for its timing wheels, "
    "{article/saturation/high/Kafka, trunk of 2024/saturates_after} for Kafka of 2024. Half of the requests expire "
    "(the article's case *high*), and everything is in one process."
)


# latency beside Redis ------------------------------------------------------------------------------------------------

WAYS = (
    ("timerd unix", 'timerd, transport="unix"', BLUE),
    ("timerd", "timerd, default transport (ZeroMQ)", BLUE),
    ("redis blpop", "Redis, BLPOP by redis-py", ORANGE),
    ("redis pubsub", "Redis, pub/sub by redis-py", ORANGE),
    ("hops", "no timer: two bare hops of ZeroMQ", GREY),
    ("seqpacket", "no timer: a bare hub of Unix packets", GREY),
)
BUSY = (
    ("timerd, per-op API", "timerd, single calls", BLUE, ""),
    ("timerd, bulk API", "timerd, in bulk", BLUE, "6 3"),
    ("Redis sorted set + Lua, redis-py", "Redis: sorted set and Lua by redis-py", ORANGE, ""),
    ("Redis sorted set + Lua, client by hand", "the same, with a client of its own", ORANGE, "6 3"),
    ("Redis BLPOP long polls, client by hand", "Redis: BLPOP, with a client of its own", RED, ""),
)


def draw_latency(documents: Documents) -> Sheet:
    quiet = rows_in(documents, "quiet", "latency")
    sustained = rows_in(documents, "alternatives", "runs", sustained=True)

    def says(row: Row) -> str:
        return f"{shown(row['p50_us'])} us, p99 {shown(row['p99_us'])}"

    sheet = Sheet("Latency beside Redis")
    sheet.heading("A quiet machine: from fire() to the owner")
    sheet.bars(bars_of_ways(quiet, WAYS, "p50_us", says, "p99_us"))
    sheet.heading("A busy one: the same, p99")
    sheet.note("a line ends where the way no longer kept up")
    series = curves_of(sustained, "way", BUSY, "rate", "completion_p99_ms")
    sheet.curves(series, Axis("operations a second", log=True), Axis("ms", log=True))
    return sheet


say_latency = saying(
    'On a quiet machine an outcome comes {quiet/latency/timerd unix/p50_us} us after fire() over `transport="unix"`, '
    "and {quiet/latency/timerd/p50_us} us over the default transport. With Redis it comes after "
    "{quiet/latency/redis blpop/p50_us} us (BLPOP). These are medians, and the thin lines end at p99. At 20,000 "
    "operations a second over the default transport, p99 is "
    "{alternatives/runs/timerd, per-op API/rate=20000/completion_p99_ms} ms by single calls, and "
    "{alternatives/runs/timerd, bulk API/rate=20000/completion_p99_ms} ms in bulk. With Redis it is "
    "{alternatives/runs/Redis sorted set + Lua, redis-py/rate=20000/completion_p99_ms} ms by redis-py, and "
    "{alternatives/runs/Redis sorted set + Lua, client by hand/rate=20000/completion_p99_ms} ms by a client that was "
    "written for this test."
)


# long polls ----------------------------------------------------------------------------------------------------------

POLLS = (
    ("timerd", "timerd, the default transport", BLUE),
    ("redis blpop", "Redis, BLPOP", ORANGE),
    ("redis pubsub", "Redis, pub/sub", RED),
)


def draw_longpolls(documents: Documents) -> Sheet:
    polls, restart = (rows_in(documents, "longpolls", table) for table in ("polls", "restart"))
    sheet = Sheet("HTTP long polls over four gevent workers of gunicorn")
    sheet.heading("From the post to the reader's answer")
    sheet.bars(bars_of_ways(polls, POLLS, "p50_ms", "{p50_ms:.2f} ms, p99 {p99_ms:.2f}".format_map, "p99_ms"))
    sheet.heading("Memory for each reader that waits")
    memory = "memory_kb_per_waiter"
    sheet.bars(bars_of_ways(polls, POLLS, memory, lambda row: f"{shown(row[memory])} KB"))
    sheet.heading("Messages lost while the server restarts")
    sheet.bars(bars_of_ways(restart, POLLS, "lost", "{lost:,} of {accepted:,}".format_map))
    return sheet


say_longpolls = saying(
    "{longpolls/polls/timerd/waiters} readers wait, and {longpolls/polls/timerd/rate} messages a second are posted. A "
    "reader has its answer after {longpolls/polls/timerd/p50_ms} ms, p99 {longpolls/polls/timerd/p99_ms} (BLPOP: "
    "{longpolls/polls/redis blpop/p50_ms} and {longpolls/polls/redis blpop/p99_ms}). While it waits it takes "
    "{longpolls/polls/timerd/memory_kb_per_waiter} KB (BLPOP: {longpolls/polls/redis blpop/memory_kb_per_waiter}). "
    "When the server restarts in the middle, {longpolls/restart/timerd/lost} messages are lost (BLPOP: "
    "{longpolls/restart/redis blpop/lost}, pub/sub: {longpolls/restart/redis pubsub/lost}). timerd runs over its "
    "default transport, and Redis logs its writes to a file."
)


# memory --------------------------------------------------------------------------------------------------------------

PENDING = (
    ("arena, one key", f"core/figures/{M}/bytes_per_op/median", BLUE),
    ("arena, three keys, payload of 100 bytes", f"core/figures_with_3_keys/{M}/bytes_per_op_full/median", BLUE),
    ("client, the handle of register()", "client/handle/pending, resident/bytes", TEAL),
)
REQUEST = "article/reclaiming/high/asked=10000/design={}/bytes_per_pending"
REQUESTS = (
    ("timerd's core", REQUEST.format("timerd"), BLUE),
    ("the old design, purged every 1,000", REQUEST.format("old, purge every 1,000"), ORANGE),
    ("the old design, purged every 10,000", REQUEST.format("old, purge every 10,000"), ORANGE),
)
READERS = (
    ("HTTP long poll, timerd", "longpolls/polls/timerd/memory_kb_per_waiter", BLUE),
    ("HTTP long poll, Redis BLPOP", "longpolls/polls/redis blpop/memory_kb_per_waiter", ORANGE),
    ("asyncio subscriber, a key of its own", "subscribe/subscribers/keys=10000/bytes:KB", BLUE),
)


def bars_of_figures(documents: Documents, rows: tuple[tuple[str, str, str], ...], unit: str) -> list[Bar]:
    values = [(label, float(value_of(documents, name)), colour) for label, name, colour in rows]
    return [Bar(label, value, f"{shown(value)} {unit}", colour) for label, value, colour in values]


def draw_memory(documents: Documents) -> Sheet:
    sheet = Sheet("Memory")
    sheet.heading("A pending operation")
    sheet.bars(bars_of_figures(documents, PENDING, "bytes"))
    sheet.heading("A pending request of the article")
    sheet.bars(bars_of_figures(documents, REQUESTS, "bytes"))
    sheet.heading("A reader that waits")
    sheet.bars(bars_of_figures(documents, READERS, "KB"))
    return sheet


say_memory = saying(
    f"A pending operation takes {{{PENDING[0][1]}}} bytes of the arena with one key, and {{{PENDING[1][1]}}} with "
    f"three keys and a payload. Its handle in the client takes {{{PENDING[2][1]}}}. A request of the article takes "
    f"{{{REQUESTS[0][1]}}} bytes (the old design, rebuilt: {{{REQUESTS[1][1]}}} to {{{REQUESTS[2][1]}}}). The idle "
    "daemon has {idle/idle/pending=0/private_mib} MiB of its own, and an arena of a fixed size."
)


# recovery ------------------------------------------------------------------------------------------------------------


def draw_recovery(documents: Documents) -> Sheet:
    sheet = Sheet("A start after SIGKILL")
    sheet.heading("From the start until the first turn")
    sheet.bars(
        [
            Bar(
                f"{row['pending']:,} operations pending",
                row["first_turn_ms"],
                f"{shown(row['first_turn_ms'])} ms; {shown(row['process_ms'])} with Python",
                BLUE,
                row["process_ms"],
            )
            for row in rows_in(documents, "recovery", "recovery")
        ]
    )
    sheet.note("bar: the arena; thin line: the whole process")
    return sheet


say_recovery = saying(
    "After SIGKILL a daemon with a million pending operations is back after {recovery/recovery/1,000,000/process_ms} "
    "ms, {recovery/recovery/1,000,000/first_turn_ms} of them for its arena. With four million operations it is back "
    "after {recovery/recovery/4,000,000/process_ms} ms. No operation is lost."
)


# the bystander under attack ------------------------------------------------------------------------------------------


WITNESS = {  # the heading, and the words of the sentence
    "member": ("A client's round trip", "a round trip"),
    "newcomer": ("A new client: connect and first round trip", "a new client's first round trip"),
    "call": ("A call, from due to the begin of its handler", "a call"),
    "bystander": ("A client's round trip", "a round trip"),
}


def witnesses(rows: list[Row]) -> Iterator[tuple[str, str, str]]:
    """Each witness, with its columns under attack and at peace."""
    for column in rows[0]:
        if column.endswith("p99_ms") and not column.startswith("peace_"):
            yield column.removesuffix("p99_ms").strip("_") or "bystander", column, f"peace_{column}"


def draw_attacks(documents: Documents) -> Sheet:
    rows = rows_in(documents, "gate", "gate")
    sheet = Sheet("Ordinary clients beside attackers")
    last: list[Curve] = []
    for name, column, peace in witnesses(rows):
        ordered = sorted(rows, key=lambda row: (row[column], row["attack"]))
        limit = LIMITS_MS[name]
        last = [
            Curve("without it", at_ranks(ordered, peace), GREY, is_joined=False, is_hollow=True),
            Curve("during the attack", at_ranks(ordered, column), RED, is_joined=False),
            Curve("the limit", [(0, limit), (len(rows) - 1, limit)], GREY, "6 3", has_dots=False),
        ]
        sheet.heading(WITNESS[name][0])
        worst = ordered[-1]
        label = f"attacks in order; last: {worst['attack']}, {shown(worst[column])} ms"
        sheet.curves(last, Axis(label, has_ticks=False), Axis("p99, ms", log=True), height=110, legend=False)
    sheet.legend(last)
    return sheet


def at_ranks(rows: list[Row], column: str) -> list[tuple[float, float]]:
    """A figure of each row, at the row's number."""
    return [(float(at), row[column]) for at, row in enumerate(rows)]


def say_attacks(documents: Documents) -> str:
    rows = rows_in(documents, "gate", "gate")
    held = sum(bool(row["holds"]) for row in rows)
    worst = [
        f"{WITNESS[name][1]} {shown(max(row[column] for row in rows))} ms (without one "
        f"{shown(max(row[peace] for row in rows))})"
        for name, column, peace in witnesses(rows)
    ]
    return (
        f"{len(rows)} attacks by hostile neighbours were played, and {held} keep every limit. The worst p99 of "
        f"ordinary clients during an attack: {', '.join(worst)}. No turn of the daemon took more than "
        f"{figure(documents, 'gate/gate/max turn_cpu_max_ms')} ms of CPU, and its memory grew by "
        f"{figure(documents, 'gate/gate/max grown_mb')} MB at most. A crowd of 8 or 20 attackers takes the "
        "processors, too. So its limit is for a difference: the p99, less the p99 while it attacks another daemon."
    )


LATENCY = "Latency beside Redis, on a quiet machine and on a busy one"
OF_MEMORY = ("core", "client", "article", "longpolls", "subscribe", "idle")
PICTURES = (
    Picture("article", "The article's experiment", ("article",), draw_article, say_article),
    Picture("latency", LATENCY, ("quiet", "alternatives"), draw_latency, say_latency, compares=True),
    Picture("longpolls", "HTTP long polls", ("longpolls",), draw_longpolls, say_longpolls, compares=True),
    Picture("memory", "Memory", OF_MEMORY, draw_memory, say_memory),
    Picture("recovery", "A start after SIGKILL", ("recovery",), draw_recovery, say_recovery),
    Picture("attacks", "Ordinary clients under attack", ("gate",), draw_attacks, say_attacks),
)
