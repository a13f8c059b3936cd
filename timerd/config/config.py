"""The daemon's knobs, each declared once: everything else about a knob follows from its line in `Config`, by name.

For example, `quota_ids` is declared here with its unit, sentence, limits, default and formula. From that line follow
the flag --quota-ids, the variable TIMERD_QUOTA_IDS, the key `quota-ids` of a file, the checks, --help and
--show-config; its effective number (sizes_of); and the word `quota_ids` of the arena's header (arena/plan.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

from timerd_shm.declare.journal import BUFFER_ROWS_MIN, ROW_SIZE, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, JournalLevel
from timerd_shm.declare.limits import (
    ANSWERS_PER_CLIENT_MAX,
    CAPACITY_DEFAULT,
    CAPACITY_MAX,
    CAPACITY_MIN,
    CLIENTS_MAX,
    DEAD_LETTERS,
    GROUP_KEPT_NS,
    HEARTBEAT_NS,
    LEASE_NS,
    OUTCOMES_PER_CLIENT_MAX,
    RING_EVENTS_DEFAULT,
    RING_EVENTS_MAX,
    RING_EVENTS_MIN,
    RING_VALUE_BYTES,
    SCHEDULE_KEPT_NS,
    SETTLED_IDS_KEPT_NS,
    TICK_NS_DEFAULT,
    TICK_NS_MAX,
    TICK_NS_MIN,
)
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.host.paths import INSTANCE_DEFAULT
from timerd_shm.host.quantity import DURATIONS

from .knobs import Formula, Knob

JOURNAL_LEVELS = tuple(level.name.lower() for level in JournalLevel if level)
LOG_LEVELS = ("debug", "info", "warning", "error")
FRAME_MEMORY = 32 << 20  # bytes
YEAR_NS = 366 * DURATIONS["d"]
RECORDS_MAX = 4 * CAPACITY_MAX


def part(name: str, times: int = 1, over: int = 1) -> Callable[[Config], int]:
    """A formula: the number of another knob, multiplied by `times`, divided by `over`."""
    return lambda config: int(getattr(config, name)) * times // over


def share_of_client(name: str) -> Callable[[Config], int]:
    """A formula: a client may hold half of the records, or more, if it may hold more than half of the operations."""

    def share(config: Config) -> int:
        records: int = getattr(config, name)
        return max(records // 2, records * min(config.quota_operations or 0, config.capacity) // config.capacity)

    return share


class Config(NamedTuple):
    """All knobs with their defaults. None: the knob's formula computes the value, from knobs before it.

    A knob without a formula says in `derived` what None stands for.
    """

    instance: Annotated[str, Knob("name", "the instance: daemons of several names run side by side")] = INSTANCE_DEFAULT
    runtime_dir: Annotated[
        str | None, Knob("path", "directory of sockets, lock and NAME.arena", derived="the first writable one")
    ] = None
    capacity: Annotated[
        int,
        Knob(
            "count",
            "operations the arena holds, pending or unacknowledged: 450 bytes of memory for each, from the start",
            CAPACITY_MIN,
            CAPACITY_MAX,
        ),
    ] = CAPACITY_DEFAULT
    nodes: Annotated[
        int | None,
        Knob(
            "count",
            "watch nodes: one for each key of an operation after its first",
            1,
            RECORDS_MAX,
            formula=Formula("0.75 x capacity", part("capacity", 3, 4)),
        ),
    ] = None
    watermarks: Annotated[
        int | None,
        Knob(
            "count",
            "watermarks of keys",
            1,
            RECORDS_MAX,
            formula=Formula("0.125 x capacity", part("capacity", 1, 8)),
        ),
    ] = None
    blocks: Annotated[
        int | None,
        Knob(
            "count",
            f"pieces of {BLOCK_DATA} bytes for payloads, values and long keys",
            1,
            RECORDS_MAX,
            formula=Formula("0.75 x capacity", part("capacity", 3, 4)),
        ),
    ] = None
    ids: Annotated[
        int | None,
        Knob(
            "count",
            "ids of operations, pending or remembered",
            1,
            RECORDS_MAX,
            formula=Formula("0.5 x capacity", part("capacity", 1, 2)),
        ),
    ] = None
    tick: Annotated[
        int, Knob("duration", "width of the wheel's finest bucket: a timer may be late by it", TICK_NS_MIN, TICK_NS_MAX)
    ] = TICK_NS_DEFAULT
    ring_events: Annotated[
        int, Knob("count", "events remembered for late registrations; a power of two", RING_EVENTS_MIN, RING_EVENTS_MAX)
    ] = RING_EVENTS_DEFAULT
    ring_bytes: Annotated[
        int, Knob("bytes", "bytes of values that the ring's events may hold", 0, 1 << 40, word="ring_bytes_max")
    ] = RING_VALUE_BYTES
    clients: Annotated[int, Knob("count", "connected clients at most", 1, 4096)] = CLIENTS_MAX
    quota_clients: Annotated[
        int | None,
        Knob(
            "count",
            "client slots that one process may have; processes in other pid namespaces share twice this number",
            1,
            4096,
            formula=Formula(
                "0.25 x clients, 32 at least, clients at most",
                lambda known: min(max(known.clients // 4, 32), known.clients),
            ),
        ),
    ] = None
    quota_operations: Annotated[
        int | None,
        Knob(
            "count",
            "operations a client may hold; more than capacity is no limit",
            1,
            CAPACITY_MAX,
            formula=Formula("half of capacity", part("capacity", 1, 2)),
        ),
    ] = None
    quota_bytes: Annotated[
        int | None,
        Knob(
            "bytes",
            "bytes of payloads, values and long keys that a client may hold",
            1,
            1 << 40,
            formula=Formula("half of what blocks hold", part("blocks", BLOCK_DATA, 2)),
        ),
    ] = None
    quota_watermarks: Annotated[
        int | None,
        Knob(
            "count",
            "watermarks a client may set",
            1,
            RECORDS_MAX,
            formula=Formula("half of watermarks", part("watermarks", 1, 2)),
        ),
    ] = None
    quota_ids: Annotated[
        int | None,
        Knob(
            "count",
            "pending operations with ids a client may hold",
            1,
            RECORDS_MAX,
            formula=Formula("half of ids", part("ids", 1, 2)),
        ),
    ] = None
    quota_nodes: Annotated[
        int | None,
        Knob(
            "count",
            "watch nodes a client may hold: keys of its operations after the first",
            1,
            RECORDS_MAX,
            formula=Formula("half of nodes, more with a larger quota-operations", share_of_client("nodes")),
        ),
    ] = None
    quota_outcomes: Annotated[
        int, Knob("count", "a client with this many unacknowledged outcomes may not register", 1, CAPACITY_MAX)
    ] = OUTCOMES_PER_CLIENT_MAX
    quota_answers: Annotated[
        int, Knob("count", "unacknowledged refusals and answers a client may have", 1, ANSWERS_PER_CLIENT_MAX)
    ] = ANSWERS_PER_CLIENT_MAX
    frame_memory: Annotated[
        int,
        Knob(
            "bytes", "memory for the frames of all clients, incoming or waiting; processes share it", 8 << 20, 1 << 40
        ),
    ] = FRAME_MEMORY
    lease: Annotated[
        int, Knob("duration", "how long a client may say nothing before it is silent", 2 * HEARTBEAT_NS, YEAR_NS)
    ] = LEASE_NS
    group_retention: Annotated[
        int,
        Knob(
            "duration",
            "how long a group's outcomes are kept while it has no member",
            DURATIONS["s"],
            YEAR_NS,
            word="group_kept_ns",
        ),
    ] = GROUP_KEPT_NS
    dead_letters: Annotated[
        int, Knob("count", "dead letters that a group keeps; the oldest give way", 0, 65_536, word="letters_max")
    ] = DEAD_LETTERS
    schedule_retention: Annotated[
        int,
        Knob(
            "duration",
            "how long the call of a schedule is kept while no worker serves it; group-retention at least",
            DURATIONS["s"],
            YEAR_NS,
            word="schedule_kept_ns",
        ),
    ] = SCHEDULE_KEPT_NS
    settled_ids_kept: Annotated[
        int,
        Knob(
            "duration",
            "how long the id of a settled operation is remembered",
            DURATIONS["s"],
            YEAR_NS,
            word="ids_kept_ns",
        ),
    ] = SETTLED_IDS_KEPT_NS
    arena_file: Annotated[str | None, Knob("path", "keep the arena in this file", derived="POSIX shared memory")] = None
    unix_group: Annotated[
        str | None,
        Knob("group", "users in this unix group (a name or a number) may connect and look", derived="this user alone"),
    ] = None
    ephemeral: Annotated[bool, Knob("flag", "remove the arena at the end, and end when idle")] = False
    idle_exit: Annotated[
        int, Knob("duration", "with --ephemeral: end this long after the last client left", 0, YEAR_NS)
    ] = 10 * DURATIONS["s"]
    log_level: Annotated[
        str, Knob("level", f"least level of what is logged to stderr: {', '.join(LOG_LEVELS)}", choices=LOG_LEVELS)
    ] = "info"
    journal: Annotated[
        str | None, Knob("path", "write how operations settle into this directory", derived="no journal")
    ] = None
    journal_level: Annotated[
        str, Knob("level", "outcomes, or events: registrations and events as well", choices=JOURNAL_LEVELS)
    ] = "outcomes"
    journal_segment_size: Annotated[
        int, Knob("bytes", "bytes of a file of the journal", SEGMENT_SIZE_MIN, SEGMENT_SIZE_MAX)
    ] = 64 << 20
    journal_keep: Annotated[
        int, Knob("bytes", "bytes of the journal; beyond it the oldest files are removed", SEGMENT_SIZE_MIN, 1 << 50)
    ] = 1 << 30
    journal_hold_limit: Annotated[
        int, Knob("bytes", "bytes beyond journal-keep, for files that a consumer holds", 0, 1 << 50)
    ] = 4 << 30
    journal_buffer: Annotated[
        int | None,
        Knob(
            "bytes",
            "shared memory for rows that are not written yet; rounded up to a power of two",
            BUFFER_ROWS_MIN * ROW_SIZE,
            1 << 30,
            derived="at most 16MiB, as fits",
        ),
    ] = None


def dashed(name: str) -> str:
    """A knob's name in files and on the command line."""
    return name.replace("_", "-")


def _knobs() -> dict[str, Knob]:
    hints = get_type_hints(Config, include_extras=True)
    return {name: next(mark for mark in hint.__metadata__ if isinstance(mark, Knob)) for name, hint in hints.items()}


KNOBS: dict[str, Knob] = _knobs()


def sizes_of(config: Config) -> dict[str, int]:
    """The value of each knob that is a number, by the knob's name: the given one, or the one that its formula gives.

    For example, with capacity=1000 and nothing else, `nodes` is 750.
    """
    for name, knob in KNOBS.items():
        if knob.formula is not None and getattr(config, name) is None:
            made: dict[str, Any] = {name: max(knob.formula.of(config), 1)}
            config = config._replace(**made)
    return {name: value for name, value in config._asdict().items() if type(value) is int}
