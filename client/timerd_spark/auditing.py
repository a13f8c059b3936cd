"""audit(): every outcome of a journal computed again on Spark, with the one implementation in timerd_client.audit.

Operations have to do with each other only through the keys that they watch, their ids, and what limited events on their
keys hand over; the states of clients matter to all. So rows are grouped by (host, incarnation, purgatory, key), where
all operations of a purgatory have one key and an id of their own, else by (host, incarnation, purgatory); each group is
audited in the order of its rows, and CLIENT, SEGMENT and GAP rows are given to each task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from timerd_client.audit import NEEDS_EVENTS, Audit, Finding, Key, Registration
from timerd_shm.errors import InvalidValueError
from timerd_shm.journal import GroupStep, RowFlag
from timerd_shm.layout import ClientFlag, ClientState, Condition, EventKind, Orphans, Outcome
from timerd_shm.limits import NO_DEADLINE
from timerd_shm.wire import CommandKind

from .inputs import need_view
from .schema import EVENTS

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

# The columns of the events view that an audit needs; name them with option("columns", ",".join(COLUMNS)).
COLUMNS: Final = (
    "host", "incarnation", "row", "kind", "level", "flags", "operation", "purgatory", "key", "id", "group", "condition",
    "needed", "keys", "command_flags", "orphans", "command", "registered_ns", "deadline_ns", "mark_sequence",
    "mark_command", "client", "client_generation", "total", "applied_ns", "key_kind", "ordinal", "target", "event_kind",
    "sequence", "amount", "limit", "command_kind", "state", "at_ns", "outcome", "settled_key", "settled_ns", "step",
    "deliveries", "watermark", "rows", "newest",
)  # fmt: skip
FINDINGS: Final = "host string, incarnation string, row bigint, op_id string, what string"
PARTITIONS: Final = 8
PARTS: Final = "array<struct<ordinal:bigint,key:string,key_kind:string,target:bigint>>"  # of keys
_PLACE: Final = ("bucket", "host", "incarnation", "row", "kind")
_WORD: Final = (1 << 64) - 1

# What is given to a task: the columns of each kind of row, in the order in which its function below takes them.
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "register": (
        "operation", "flags", "command_flags", "condition", "needed", "orphans", "command", "registered_ns",
        "deadline_ns", "mark_sequence", "mark_command", "client", "client_generation", "total", "applied_ns",
        "purgatory", "id", "key", "key_kind", "target", "parts",
    ),
    "event": (
        "event_kind", "flags", "purgatory", "key", "sequence", "applied_ns", "amount", "command", "limit", "client",
        "client_generation",
    ),
    "outcome": (
        "outcome", "settled_key", "flags", "key", "operation", "registered_ns", "deadline_ns", "settled_ns", "sequence",
    ),
    "action": ("command_kind", "flags", "orphans", "operation", "deadline_ns", "client", "client_generation"),
    "group": ("step", "deliveries", "group", "operation", "client", "client_generation"),
    "watermark": ("purgatory", "key", "watermark"),
    "client": ("client", "client_generation", "state", "flags", "orphans", "group", "at_ns"),
    "segment": ("flags", "newest"),
    "gap": ("rows",),
}  # fmt: skip
_SENT: Final = tuple(dict.fromkeys(name for names in _FIELDS.values() for name in names))


def audit(df: DataFrame, partitions: int = PARTITIONS) -> DataFrame:
    """What a journal's events say should have happened, and did not: no row, or a defect of the daemon.

    `df` is the events view of whole journals, of any number of hosts, from before their first operation on; it may be
    stored as Parquet between. Columns: host, incarnation, row (number of the row that shows it; -1: the journal's end),
    op_id (null: of no operation) and what is wrong. It is looked at once when this is called, and again when the
    result is read; `partitions` tasks each hold the events and the pending operations of their share.

    Raises InvalidValueError for another DataFrame, and for a journal of level outcomes.
    """
    from pyspark.sql import functions as F

    need_view(df, "events", COLUMNS, "audit()")
    if not isinstance(partitions, int) or not 1 <= partitions <= 100_000:
        raise InvalidValueError(f"audit(): partitions={partitions!r}: give 1 to 100,000")
    df = df.select(*COLUMNS)
    heads = _heads(df)
    kind = F.col("kind")
    registrations = _registrations(df, any(head["keys"] > 1 for head in heads))
    tied = _tied(registrations, heads)
    bucket = _bucket(tied, partitions)
    every = F.explode(F.sequence(F.lit(0), F.lit(partitions - 1)))
    of_keys = df.where(kind.isin("event", "outcome", "watermark")).withColumn("bucket", bucket)
    of_all = df.where(kind.isin("client", "gap") | (kind == "segment")).withColumn("bucket", every)
    parts = [_sent(registrations.withColumn("bucket", bucket)), _sent(of_keys), _sent(of_all)]
    if any(head["others"] for head in heads):
        places = registrations.select("host", "incarnation", "operation", bucket.alias("bucket"))
        others = df.where(kind.isin("action", "group")).join(places, ["host", "incarnation", "operation"], "left")
        parts.append(_sent(others.withColumn("bucket", F.coalesce("bucket", F.lit(0)))))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    ordered = rows.repartitionById(partitions, F.col("bucket")).sortWithinPartitions(*_PLACE[:-1])
    found = ordered.mapInArrow(_audited, FINDINGS).dropDuplicates()
    missing = [(h["host"], h["incarnation"], -1, None, h["missing"]) for h in heads if h["missing"]]
    if missing:
        found = found.unionByName(df.sparkSession.createDataFrame(missing, FINDINGS))
    return found


def _heads(df: DataFrame) -> list[dict[str, Any]]:
    """What has to be known of each arena before: one look at the whole. Raises InvalidValueError."""
    from pyspark.sql import functions as F

    kind, event = F.col("kind"), F.col("kind") == "event"
    rows = (
        df.groupBy("host", "incarnation")
        .agg(
            F.max((kind == "segment") & (F.col("level") != "events")).alias("silent"),
            F.max(F.when(kind == "segment", 1)).alias("begun"),
            F.coalesce(F.max(F.when(kind == "register", F.col("keys"))), F.lit(0)).alias("keys"),
            F.count(F.when(kind == "registered", F.col("id"))).alias("ids"),
            F.count(F.when(kind.isin("action", "group"), 1)).alias("others"),
            F.count(F.when((kind == "register") & (F.col("flags").bitwiseAND(int(RowFlag.SNAPSHOT)) != 0), 1)).alias(
                "snapshots"
            ),
            F.min(F.when(event, F.col("sequence"))).alias("first"),
            F.max(F.when(event, F.col("sequence"))).alias("last"),
            F.count(F.when(event, 1)).alias("events"),
        )
        .collect()
    )
    found = []
    for row in rows:
        if row["silent"]:
            raise InvalidValueError("audit(): " + NEEDS_EVENTS.format(f"the journal of {row['host']}"))
        head = row.asDict()
        wanted = row["last"] - row["first"] + 1 if row["events"] else 0
        head["missing"] = f"{wanted} events are numbered, and {row['events']} are there" * (wanted != row["events"])
        found.append(head)
    return found


def _registrations(df: DataFrame, several: bool) -> DataFrame:
    """A row for each operation, from its REGISTER, REGISTERED and KEY rows: it stands where the first of them stood.

    `several`: some have more than one key, and `parts` holds them; else `key`, `key_kind` and `target` do.
    """
    from pyspark.sql import functions as F

    snapshot = F.col("flags").bitwiseAND(int(RowFlag.SNAPSHOT)) != 0
    own = (F.col("kind") == "register") & ~snapshot  # of one that was registered in this journal it says nothing new
    told, key = F.col("kind") == "registered", F.col("kind") == "key"

    def of(which: Column, *names: str) -> list[Column]:
        return [F.max(F.when(which, F.col(name))).alias(name) for name in names]

    parts = F.sort_array(F.collect_set(F.when(key, F.struct("ordinal", "key", "key_kind", "target"))))
    return (
        df.where(F.col("kind").isin("register", "registered", "key"))
        .groupBy("host", "incarnation", "operation")
        .agg(
            F.coalesce(F.min(F.when(own, F.col("row"))), F.min("row")).alias("row"),
            F.coalesce(F.min(F.when(own, 0)), F.lit(int(RowFlag.SNAPSHOT))).cast("bigint").alias("flags"),
            *of(own, "command_flags", "condition", "needed", "orphans", "command", "registered_ns", "deadline_ns"),
            *of(own, "mark_sequence", "mark_command"),
            *of(told, "client", "client_generation", "total", "purgatory", "id"),
            F.min(F.when(told, F.col("applied_ns"))).alias("applied_ns"),
            *of(key & (F.col("ordinal") == 0), "key", "key_kind", "target"),
            (parts if several else F.lit(None).cast(PARTS)).alias("parts"),
        )
        .withColumn("kind", F.lit("register"))
    )


def _tied(registrations: DataFrame, heads: Sequence[dict[str, Any]]) -> list[str]:
    """The purgatories in which operations share more than a key, as _purgatory() names them."""
    from pyspark.sql import functions as F

    found: set[str] = set()
    if any(head["keys"] > 1 for head in heads):
        some = registrations.where(F.size("parts") > 1).select(_purgatory().alias("name")).distinct().collect()
        found |= {row.name for row in some}
    if any(head["ids"] for head in heads):
        again = registrations.where("id IS NOT NULL").groupBy(_purgatory().alias("name"), "id").count()
        found |= {row.name for row in again.where("count > 1").select("name").distinct().collect()}
    return sorted(found)


def _purgatory() -> Column:
    from pyspark.sql import functions as F

    return F.concat_ws("/", "host", "incarnation", "purgatory")


def _bucket(tied: Sequence[str], partitions: int) -> Column:
    """The task that audits a row which has a purgatory and a key."""
    from pyspark.sql import functions as F

    key = F.col("key")
    if tied:
        key = F.when(_purgatory().isin(*tied), F.lit("")).otherwise(key)
    return F.pmod(F.xxhash64("host", "incarnation", "purgatory", key), F.lit(partitions)).cast("int")


def _sent(df: DataFrame) -> DataFrame:
    """Rows of some kinds with the columns that tasks are given, null where these kinds have them not."""
    from pyspark.sql import functions as F

    types = {column.name: column.type for column in EVENTS} | {"parts": PARTS}
    there = set(df.columns)
    return df.select(
        *_PLACE, *(F.col(name) if name in there else F.lit(None).cast(types[name]).alias(name) for name in _SENT)
    )


# in the tasks ---------------------------------------------------------------------------------------------------------


def _numbers(kind: type[IntEnum]) -> dict[str | None, int]:
    return {member.name.lower(): int(member) for member in kind}


def _audited(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Audits rows that come sorted: one Audit for each arena in each bucket."""
    import pyarrow

    def told(of: tuple[Any, str, str], audit: Audit) -> Iterator[tuple[str, str, int, str | None, str]]:
        _, host, incarnation = of
        for row, operation, what in audit.end():
            yield host, incarnation, row, f"{incarnation}-{operation:016x}" if operation else None, what

    now: tuple[Any, str, str] | None = None
    audit = Audit(whole=False)
    found: list[tuple[str, str, int, str | None, str]] = []
    for batch in batches:
        for first, end in _runs(batch):
            part = batch.slice(first, end - first)
            of = (part["bucket"][0].as_py(), part["host"][0].as_py(), part["incarnation"][0].as_py())
            if of != now:
                if now is not None:
                    found += told(now, audit)
                now, audit = of, Audit(whole=False)
            take(audit, part)
    if now is not None:
        found += told(now, audit)
    names = [field.split()[0] for field in FINDINGS.split(", ")]
    columns: list[Sequence[Any]] = list(zip(*found, strict=True)) or [()] * len(names)
    types = [pyarrow.string(), pyarrow.string(), pyarrow.int64(), pyarrow.string(), pyarrow.string()]
    arrays = [pyarrow.array(list(c), t) for c, t in zip(columns, types, strict=True)]
    yield pyarrow.RecordBatch.from_arrays(arrays, names=names)


def _runs(batch: pyarrow.RecordBatch) -> Iterator[tuple[int, int]]:
    """Where a batch goes on with another bucket or arena."""
    import numpy as np

    if batch.num_rows == 0:
        return
    columns = [batch[name] for name in _PLACE[:3]]
    last = batch.num_rows - 1
    if all(column[0] == column[last] for column in columns):
        yield 0, batch.num_rows  # they are sorted
        return
    changes = np.zeros(last, bool)
    for column in columns:
        values = column.to_numpy(zero_copy_only=False)
        changes |= values[1:] != values[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    yield from pairwise(edges)


def take(audit: Audit, batch: pyarrow.RecordBatch) -> None:
    """Give an audit rows of one arena, in their order."""
    import pyarrow.compute as pc

    takers = _takers(audit)
    kinds = batch["kind"].to_pylist()
    rows: dict[str, Iterator[tuple[Any, ...]]] = {}
    for kind in set(kinds):
        some = batch.filter(pc.equal(batch["kind"], kind))
        rows[kind] = zip(some["row"].to_pylist(), *(some[name].to_pylist() for name in _FIELDS[kind]), strict=True)
    following = {kind: (takers[kind], rows[kind].__next__) for kind in rows}
    for kind in kinds:
        taker, following_row = following[kind]
        taker(following_row())


def _takers(audit: Audit) -> dict[str, Callable[[tuple[Any, ...]], None]]:
    """For each kind of row, what gives one to the audit: names of the view are numbers of the journal again."""
    events, outcomes, orphan_kinds = _numbers(EventKind), _numbers(Outcome), _numbers(Orphans)
    commands, conditions = _numbers(CommandKind), _numbers(Condition)
    states, steps = {s.name.lower(): s for s in ClientState}, {s.name.lower(): s for s in GroupStep}

    def register(row: tuple[Any, ...]) -> None:
        (number, operation, flags, command_flags, condition, needed, orphans, command, registered_ns, deadline_ns,
         mark_sequence, mark_command, client, generation, total, applied_ns, purgatory, id_, key, key_kind, target,
         parts) = row  # fmt: skip
        if parts:
            keys: Iterable[Key] = (_key(part["key"], part["key_kind"], part["target"]) for part in parts)
        else:
            keys = (_key(key, key_kind, target),)
        if client is None:
            audit.wrong.append(Finding(number, operation, "its registration lacks rows"))
            return
        due = NO_DEADLINE if deadline_ns is None else deadline_ns
        audit.registration(
            Registration(
                row=number,
                operation=operation,
                flags=flags,
                command_flags=command_flags or 0,
                condition=conditions.get(condition, 0),
                needed=needed or 0,
                orphans=orphan_kinds.get(orphans, 0),
                command=command or 0,
                registered_ns=registered_ns or 0,
                deadline_ns=due,
                mark_sequence=mark_sequence or 0,
                mark_command=mark_command or 0,
                client=(client, generation),
                total=total & _WORD,
                applied_ns=applied_ns,
                owner=None,
                purgatory=purgatory,
                id=id_,
                keys=tuple(keys),
            )
        )

    def event(row: tuple[Any, ...]) -> None:
        number, kind, flags, purgatory, key, sequence, applied_ns, amount, command, limit, client, generation = row
        place = (purgatory, key)
        audit.event(
            number,
            events[kind],
            flags,
            place,
            sequence,
            applied_ns,
            amount & _WORD,
            command,
            limit,
            (client, generation),
        )

    def outcome(row: tuple[Any, ...]) -> None:
        number, state, settled_key, flags, key, operation, registered_ns, deadline_ns, settled_ns, sequence = row
        due = NO_DEADLINE if deadline_ns is None else deadline_ns
        audit.outcome(
            number, outcomes[state], settled_key, flags, key, operation, registered_ns, due, settled_ns, sequence, None
        )

    def action(row: tuple[Any, ...]) -> None:
        number, kind, flags, orphans, operation, deadline_ns, client, generation = row
        due = NO_DEADLINE if deadline_ns is None else deadline_ns
        audit.action(number, commands[kind], flags, orphan_kinds.get(orphans, 0), operation, due, (client, generation))

    def group(row: tuple[Any, ...]) -> None:
        number, step, deliveries, name, operation, client, generation = row
        audit.group(number, steps[step], deliveries, name, operation, (client, generation))

    def client(row: tuple[Any, ...]) -> None:
        number, slot, generation, state, flags, orphans, name, at_ns = row
        listens = bool(flags & ClientFlag.LISTENS)
        audit.client(number, (slot, generation), states[state], listens, orphan_kinds.get(orphans, 0), name, at_ns)

    return {
        "register": register,
        "event": event,
        "outcome": outcome,
        "action": action,
        "group": group,
        "client": client,
        "watermark": lambda row: audit.watermark(row[0], (row[1], row[2]), row[3] & _WORD),
        "segment": lambda row: audit.segment(*row),
        "gap": lambda row: audit.gap(*row),
    }


def _key(name: str, kind: str, target: int | None) -> Key:
    return Key(name, (target or 0) & _WORD if kind == "watermark" else None)
