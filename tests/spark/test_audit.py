"""The audit on Spark: of the journal of a killed daemon, and of the same journal with falsified rows."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from support.oracle.journalplay import play
from support.oracle.olderjournals import as_older
from support.real.daemons import SMALL, Daemon
from support.real.patience import PATIENCE_S
from support.rig.commands import Key, Register
from support.rig.harness import MS, fire
from support.rig.journals import JournaledRig
from support.spark.falsify import changed, of_kind, record_of, rows_for_audit
from support.spark.spans import settle_all
from support.suite.tiers import in_tiers
from timerd_client import ALL, connect
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.journal import BLOCK_SIZE, OLDER, ROW_SIZE, RowKind
from timerd_shm.declare.states import Condition, Outcome
from timerd_shm.read.segment import segment_path, segments_of
from timerd_spark import audit
from timerd_spark.reports import audit_parcels, audit_tasks
from timerd_spark.reports.audit import AuditedArena
from timerd_spark.reports.audit_parcels import (
    EVERY,
    FRAGMENTS,
    INDEX,
    OF_ALL,
    OF_OPERATIONS,
    PARCELS,
    SHARES,
    index,
    opened,
    parcels,
    parcels_of_fragments,
    placed,
    twice,
)
from timerd_spark.reports.audit_rows import COLUMNS, FACTS, FRAGMENT, NEVER, facts_of, join_fragments, pack
from timerd_spark.reports.audit_tasks import audited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeDaemon = Callable[..., Daemon]


def events_of(spark: SparkSession, directory: Path) -> DataFrame:
    """The events view of a journal."""
    reader = spark.read.format("timerd").option("view", "events").option("columns", ",".join(COLUMNS))
    return reader.load(str(directory))


def storm(daemon: Daemon, rng: random.Random) -> None:
    """Play operations with one key, with several keys, and with ids that are replaced, over two kills of the daemon."""
    with connect() as client:
        fetch = client.purgatory("fetch")
        for number in range(2):
            waiting = []
            for at in range(40):
                name = f"{number}/{at}"
                if at % 3 == 0:
                    waiting.append(fetch.register([name, f"{name}+"], timeout=60, when=ALL))
                    fetch.fire(f"{name}+")
                    fetch.fire(name)
                elif at % 3 == 1:
                    waiting.append(client.register(name, timeout=60, id=f"id{at % 5}", if_exists="replace"))
                    client.fire(name, limit=1)
                else:
                    waiting.append(client.register(name, timeout=0.1 if at % 2 else 60))
                    if not at % 2:
                        client.fire(name)
                if at == 20:
                    time.sleep(rng.random() * 0.01)
                    daemon.kill()
                    daemon.start()
            for operation in waiting:
                operation.result(timeout=PATIENCE_S)


@pytest.mark.long  # its short form: an_audit_reads_the_files_as_they_are_at_its_start
@pytest.mark.timeout(240)
def test_the_audit_accepts_the_journal_of_a_killed_daemon_and_not_a_falsified_one(
    spark: SparkSession, make_daemon: MakeDaemon, runtime_dir: Path, rng: random.Random
) -> None:
    directory = runtime_dir / "j"
    daemon = make_daemon(*SMALL, f"--journal={directory}", "--journal-level=events", "--journal-segment-size=64KiB")
    storm(daemon, rng)
    daemon.stop()
    assert not audit_journal(directory).wrong
    table = events_of(spark, directory).toArrow()
    rows = table.to_pylist()
    outcomes = of_kind(rows, RowKind.OUTCOME)
    assert len(outcomes) == 80

    def falsified(one: dict[str, Any], **values: Any) -> list[dict[str, Any]]:
        return [changed(row, **values) if row is one else row for row in rows]

    completed, expired = (
        [row for row in outcomes if record_of(row).outcome == how][-1] for how in (Outcome.COMPLETED, Outcome.EXPIRED)
    )
    lies = {
        "it is EXPIRED": falsified(completed, outcome=Outcome.EXPIRED),
        "COMPLETED": falsified(expired, outcome=Outcome.COMPLETED),
        "due at": falsified(expired, settled_ns=record_of(expired).deadline_ns - 1),
        "should have settled: COMPLETED": [row for row in rows if row is not completed],
        "its registration says": falsified(completed, registered_ns=1),
        "its time is": falsified(completed, settled_ns=record_of(completed).settled_ns + 50 * MS),
        "error 7": falsified(completed, error=7),
        "its owner is": falsified(completed, owner="another"),
        "with id": falsified(completed, id="0" * 32),
        "not above that of the event before it": exchanged(rows),
        "it is registered twice": with_one_number(rows),
        "the row before it is not of that registration": interrupted(rows),
        "the journal's end is not known": [row for row in rows if row["bytes"][0] != RowKind.END],
    }
    # The true journal and each falsified journal get a host of their own, so one audit reads them all.
    hosts = {"truth": rows, **lies}
    together = [{**row, "host": host} for host, those in hosts.items() for row in those]
    found: dict[str, list[Any]] = {}
    df = spark.createDataFrame(pa.Table.from_pylist(together, table.schema)).coalesce(1).cache()
    for row in audit(df, partitions=3).collect():
        found.setdefault(row.host, []).append(row)
    assert set(found) == set(lies)
    for said, disagreements in found.items():
        assert any(said in row.what for row in disagreements), disagreements


def exchanged(rows: list[dict[str, Any]], at: int = 0) -> list[dict[str, Any]]:
    """Exchange the numbers of an event and the next event."""
    one, other = of_kind(rows, RowKind.EVENT)[at : at + 2]
    numbers = {id(one): record_of(other).sequence, id(other): record_of(one).sequence}
    return [changed(row, sequence=numbers[id(row)]) if id(row) in numbers else row for row in rows]


def with_one_number(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the last operation the number of the first operation, in all of its rows."""
    first, *_, last = (record_of(row).operation for row in of_kind(rows, RowKind.REGISTER))
    kinds = (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY, RowKind.OUTCOME, RowKind.ACTION)
    of_last = {id(row) for kind in kinds for row in of_kind(rows, kind) if record_of(row).operation == last}
    return [changed(row, operation=first) if id(row) in of_last else row for row in rows]


def interrupted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Exchange the places of a registration's last row and the row after it."""
    of_registrations = (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY)
    at = next(
        at
        for at, (one, other) in enumerate(itertools.pairwise(rows))
        if one["bytes"][0] == RowKind.KEY and other["bytes"][0] not in of_registrations
        and other["row"] == one["row"] + 1
    )  # fmt: skip
    one, other = rows[at : at + 2]
    return [*rows[:at], {**other, "row": one["row"]}, {**one, "row": other["row"]}, *rows[at + 2 :]]


def test_a_part_without_rows_has_no_parcels(sent: pa.Table) -> None:
    empty = pa.RecordBatch.from_pylist([], pa.schema([(name, pa.binary()) for name in COLUMNS]))
    assert [batch.num_rows for batch in parcels([])] == [batch.num_rows for batch in parcels([empty])] == [0]


@pytest.mark.parametrize("name", ("host", "incarnation", "row", "bytes"))
def test_a_row_with_a_null_instead_of_its_place_is_refused_by_name(tmp_path: Path, name: str) -> None:
    rows = play_registrations(tmp_path)
    nothing = pa.nulls(len(rows), rows.schema.field(name).type)
    rows = rows.set_column(rows.schema.get_field_index(name), name, nothing)
    with pytest.raises(InvalidValueError, match=f"column '{name}' has a null"):
        list(parcels(rows.to_batches()))


@pytest.mark.parametrize("tasks", (1, 3))
def test_two_operations_with_one_number_are_found_whichever_tasks_have_them(
    tmp_path: Path, tasks: int, rng: random.Random
) -> None:
    table = play_registrations(tmp_path)
    for rows, count in ((table.to_pylist(), 0), (with_one_number(table.to_pylist()), 1)):
        told = pa.Table.from_batches(parcels(pa.Table.from_pylist(rows, table.schema).to_batches(max_chunksize=17)))
        numbers = told.filter(pc.equal(told["first"], INDEX))
        share = numbers["share"].to_numpy()
        each = [numbers.filter(pa.array(share % tasks == at)) for at in range(tasks)]
        found = [row for part in each for batch in twice(part.to_batches()) for row in batch.to_pylist()]
        assert [row["what"] for row in found] == ["it is registered twice"] * count


def test_events_out_of_order_are_found_wherever_a_part_ends(tmp_path: Path, rng: random.Random) -> None:
    rig = JournaledRig(tmp_path)
    client = rig.client()
    for _ in range(30):
        client.issue(fire(b"k"))
        rig.turn()
    rig.end()
    table = rows_for_audit(tmp_path)
    rows = table.to_pylist()

    def fall_of(told: list[dict[str, Any]], size: int) -> int:
        batches = pa.Table.from_pylist(told, table.schema).to_batches(max_chunksize=size)
        rng.shuffle(batches)  # tasks end in any order
        packed = [row for batch in pack(batches) for row in batch.to_pylist() if row["kind"] == FACTS]
        (facts,) = facts_of((row["host"], row["incarnation"], row["bytes"]) for row in packed).values()
        assert facts.events == 30 and facts.last - facts.first == 29
        return facts.fall

    for size in (1, 2, 7, 50, 1_000):
        assert fall_of(rows, size) == NEVER
        at = rng.randrange(29)
        assert fall_of(exchanged(rows, at), size) == of_kind(rows, RowKind.EVENT)[at + 1]["row"], (size, at)
    mixed = rng.sample(rows, len(rows))
    assert fall_of(mixed, 20) == NEVER, "parts whose rows are mixed do not show the order of events"


# parcels --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """A random program's journal in small parcels, with cancels and steps of groups."""
    made = play(rng.choice((1, 4)), tmp_path)
    assert isinstance(made.rig, JournaledRig)
    made.rig.end()
    monkeypatch.setattr(audit_parcels, "PARCEL_ROWS", rng.choice((40, 400, 1_000_000)))
    return pa.Table.from_batches(parcels(rows_for_audit(tmp_path).to_batches(max_chunksize=30)))


def in_buckets(sent: pa.Table, buckets: int) -> pa.Table:
    """The parcels of rows, with buckets: one share is in one bucket, as on Spark if all keys are independent."""
    share = sent["share"].to_numpy()
    fragments = pa.Table.from_batches(parcels_of_fragments(sent.filter(share == FRAGMENTS).to_batches()))
    of_keys = pa.concat_tables([sent, fragments])
    of_keys = of_keys.filter(pc.and_(pc.greater_equal(of_keys["share"], 0), pc.less(of_keys["share"], SHARES)))
    of_keys = of_keys.append_column("bucket", pa.array(of_keys["share"].to_numpy() % buckets, pa.int32()))
    of_operations = sent.filter((share >= SHARES) & (sent["first"].to_numpy() != INDEX))
    both = [of_operations.append_column("bucket", pa.array([0] * len(of_operations), pa.int32()))]
    both += [pa.Table.from_batches(index(of_keys.to_batches()))]
    names = ("host", "incarnation", "share", "first")
    order = pa.concat_tables(both).sort_by([(name, "ascending") for name in names])
    theirs = pa.Table.from_batches(placed(order.to_batches(max_chunksize=7)))
    every = sent.filter(share == EVERY)
    given = [every.append_column("bucket", pa.array([at] * len(every), pa.int32())) for at in range(buckets)]
    return pa.concat_tables([of_keys, theirs, *given])


def test_each_row_is_in_one_parcel_and_cancels_are_with_their_registrations(sent: pa.Table, tmp_path: Path) -> None:
    given = in_buckets(sent, 3)
    found: dict[int, list[tuple[int, int, int | None]]] = {}
    for parcel, rows in opened(given.to_batches()):
        numbers = rows["row"].to_pylist()
        assert numbers == sorted(numbers) and numbers[0] == parcel["first"]
        for number, kind, operation in zip(numbers, *(rows[n].to_pylist() for n in ("kind", "operation")), strict=True):
            found.setdefault(number, []).append((parcel["bucket"], kind, operation))
    of_registrations = (RowKind.REGISTERED, RowKind.KEY)
    alone = [row["row"] for row in rows_for_audit(tmp_path).to_pylist() if row["bytes"][0] not in of_registrations]
    assert sorted(found) == alone
    assert all(len(those) == (3 if those[0][1] in OF_ALL else 1) for those in found.values())
    home = {operation: at for ((at, kind, operation), *_) in found.values() if kind == RowKind.REGISTER}
    theirs = [(at, home[number]) for ((at, kind, number), *_) in found.values() if kind in OF_OPERATIONS]
    assert len({at for at, _ in theirs}) == 3 and all(at == wanted for at, wanted in theirs)


@pytest.mark.parametrize("held", (0, 100, 10**9))
def test_an_audit_gets_the_rows_of_all_parcels_in_their_order(
    sent: pa.Table, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_tasks, "HELD_MAX", held)
    given = in_buckets(sent, 1).sort_by("first")
    assert [row for batch in audited(given.to_batches()) for row in batch.to_pylist()] == []
    shares = given["share"].to_numpy()
    lost = given.filter((shares < 0) | (shares != shares[shares >= 0][0]))
    assert any(batch.num_rows for batch in audited(lost.to_batches()))


@pytest.mark.parametrize("seed", in_tiers((2, 8), 1))
def test_spark_and_python_agree_on_a_random_program_and_on_a_lie_about_what_was_observed(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """The program has groups, requeued limited events, several keys, and the conditions OBSERVE and OWNER."""
    made = play(seed, tmp_path)
    assert isinstance(made.rig, JournaledRig)
    made.rig.end()
    assert not audit_journal(tmp_path).wrong
    table = events_of(spark, tmp_path).toArrow()
    rows = table.to_pylist()

    def completed_under(condition: Condition) -> list[dict[str, Any]]:
        registered = map(record_of, of_kind(rows, RowKind.REGISTER))
        those = {r.operation for r in registered if r.condition == condition}
        outcomes = [(row, record_of(row)) for row in of_kind(rows, RowKind.OUTCOME)]
        return [row for row, o in outcomes if o.operation in those and o.outcome == Outcome.COMPLETED]

    completed = completed_under(Condition.OBSERVE)
    assert len(completed) >= 3 and completed_under(Condition.OWNER), len(completed)
    lie = changed(completed[-1], sequence=record_of(completed[-1]).sequence - 1)
    told = [{**row, "host": "true"} for row in rows]
    told += [{**(lie if row is completed[-1] else row), "host": "false"} for row in rows]
    found = audit(spark.createDataFrame(pa.Table.from_pylist(told, table.schema)), partitions=3).collect()
    assert found and {row.host for row in found} == {"false"}, found[:5]


@pytest.mark.long
def test_an_audit_reads_the_files_as_they_are_at_its_start(
    spark: SparkSession, is_connect: bool, tmp_path: Path
) -> None:
    table, path = play_registrations(tmp_path / "journal"), tmp_path / "rows"
    true_rows = table.to_pylist()
    outcomes = of_kind(true_rows, RowKind.OUTCOME)
    false_rows = [changed(row, outcome=Outcome.COMPLETED) if row in outcomes else row for row in true_rows]
    path.mkdir()
    spark.catalog.clearCache()  # drops rows that other tests have persisted

    def loaded(rows: Any) -> DataFrame:
        pq.write_table(rows, path / "rows.parquet")
        return spark.read.parquet(str(path))

    true = loaded(table)
    left = true.select(*COLUMNS).mapInArrow(parcels, PARCELS).persist()  # as a killed audit leaves them
    assert left.count()
    before = audit(true, partitions=1)
    assert not before.collect()
    after = audit(loaded(pa.Table.from_pylist(false_rows, table.schema)), partitions=1)
    assert any("COMPLETED" in row.what for row in after.collect())
    assert not before.collect()
    left.unpersist()
    if not is_connect:
        assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


def written(directory: Path, incarnation: int) -> Path:
    """A journal of four segments, with a row END at its end."""
    rig = JournaledRig(directory, incarnation=incarnation)
    settle_all(rig, rig.client(), 0, 500)
    rig.end()
    assert len(segments_of(directory)) == 4
    return directory


@pytest.mark.long
def test_rows_that_are_left_out_are_the_first_findings_and_other_findings_may_follow_from_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`audit` and `audit_journal` read four journals: one is whole, the others lost a block, a file and the end."""
    whole, bad, lost, cut = (written(tmp_path / name, 0xA0 + at) for at, name in enumerate("wblc"))
    with segment_path(bad, 2).open("r+b") as file:
        file.seek(3 * BLOCK_SIZE)  # after the header's block: block 2
        file.write(bytes(BLOCK_SIZE))
    segment_path(lost, 3).unlink()
    segment_path(cut, 4).unlink()
    arenas: dict[int, AuditedArena] = {}
    reader = spark.read.format("timerd").option("view", "events").option("columns", ",".join(COLUMNS))
    df = reader.option("failOnDataLoss", "false").load(str(tmp_path))
    found = audit(df, show=lambda arena: arenas.update({int(arena.incarnation, 16): arena})).collect()
    of = {arena: [row for row in found if int(row.incarnation, 16) == arena] for arena in arenas}
    assert [row.cause for row in found] == sorted((row.cause for row in found), reverse=True)
    for at, directory in enumerate((whole, bad, lost, cut)):
        (plain,) = audit_journal(directory).arenas
        causes = [row for row in of[0xA0 + at] if row.cause]
        hidden = plain.row - arenas[0xA0 + at].row  # texts at the end of the files: the view has no row for a text
        assert [row.row + hidden for row in causes] == [cause.row for cause in plain.causes]
        assert all(row.follows for row in of[0xA0 + at] if not row.cause)
        assert 0 <= hidden < 20 if directory == cut else hidden == 0
    assert not of[0xA0] and len(of[0xA1]) > 2 and len(of[0xA2]) > 2
    assert [row.what for row in of[0xA3]] == [finding.what for finding in audit_journal(cut).wrong]
    assert re.fullmatch(r"rows \d+ to \d+ were left out: segment 2 is damaged in blocks 2 to 2", of[0xA1][0].what)
    assert re.fullmatch(r"rows .* left out: they are in no segment, and segment 4 begins after them", of[0xA2][0].what)
    said = [str(arenas[0xA0 + at]) for at in range(4)]
    assert [re.sub(r".* outcomes, (.*) to row .*?(, .*)?$", r"\1\2", line) for line in said] == [
        "4 segments, no gaps, complete",
        "4 segments, no gaps, 63 rows left out, complete",
        f"3 segments, no gaps, {arenas[0xA2].left_out} rows left out, complete",
        "3 segments, no gaps, complete, its end is not known",
    ]


@pytest.mark.long
def test_an_incomplete_journal_is_refused_when_audit_is_called(
    spark: SparkSession, make_daemon: MakeDaemon, runtime_dir: Path
) -> None:
    for level, part, says in (
        ("outcomes", "true", "--journal-level=events"),
        ("events", "row > 0", "needs it from row 0"),
    ):
        directory = runtime_dir / level
        daemon = make_daemon(*SMALL, f"--journal={directory}", f"--journal-level={level}")
        daemon.stop()
        with pytest.raises(InvalidValueError, match=says):
            audit(events_of(spark, directory).where(part))
    as_older(directory, min(OLDER))
    with pytest.raises(InvalidValueError, match="has segments that an older version of timerd wrote"):
        audit(events_of(spark, directory))
    with pytest.raises(
        InvalidValueError, match=r"needs the columns 'host', .* of the events view.*\"view\", \"events\""
    ):
        audit(spark.range(3))


# the rows of registrations --------------------------------------------------------------------------------------------


def packed_rows(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def play_registrations(directory: Path) -> Any:
    """A table: the events view of operations with one key and with several keys."""
    rig = JournaledRig(directory)
    client = rig.client()
    for number in range(30):
        client.issue(Register(keys_of(number), timeout_ns=MS))
        rig.turn()
        rig.turn(rig.now_ns + 2 * MS)
    rig.end()
    return rows_for_audit(directory)


def keys_of(number: int) -> tuple[Key, ...]:
    return tuple(Key(f"{number}/{at}".encode()) for at in range(1 + number % 3))


def test_registrations_are_the_same_wherever_a_part_of_the_journal_ends(tmp_path: Path, rng: random.Random) -> None:
    table = play_registrations(tmp_path)
    whole = sorted((row for row in packed_rows(pack(table.to_batches()))), key=lambda row: row[2])
    registered = [row for row in whole if row[3] == RowKind.REGISTER]
    assert len(registered) == 30 and all(row[-1] is not None for row in registered)
    assert not [row for row in whole if row[3] == FRAGMENT]

    def packed_in_parts() -> list[Any]:
        edges = sorted({0, len(table), *rng.sample(range(len(table)), 20)})
        parts = [table.slice(first, end - first) for first, end in itertools.pairwise(edges)]
        rng.shuffle(parts)
        return [batch for part in parts for batch in pack(part.to_batches(max_chunksize=3))]

    found = pa.Table.from_batches(packed_in_parts())
    fragments = found.filter(pc.equal(found["kind"], FRAGMENT)).sort_by(
        [("operation", "ascending"), ("row", "ascending")]
    )
    assert len(fragments)
    rest = packed_rows(found.filter(pc.greater(found["kind"], 0)).to_batches())
    again = packed_rows(join_fragments(fragments.to_batches(max_chunksize=2)))
    assert sorted(rest + again, key=lambda row: row[2]) == [row for row in whole if row[3] > 0]


def test_a_registration_that_lacks_rows_is_found(tmp_path: Path) -> None:
    table = play_registrations(tmp_path)
    first = of_kind(table.to_pylist(), RowKind.KEY)[0]["row"]
    cut = table.filter(pc.not_equal(table["row"], first))
    packed = pa.Table.from_batches(pack(cut.to_batches()))
    fragments = packed.filter(pc.equal(packed["kind"], FRAGMENT))
    again = packed_rows(join_fragments(fragments.to_batches()))
    assert len(again) == 2 and all(row[3] == RowKind.REGISTER and len(row[-1]) == ROW_SIZE for row in again)
    sent = pa.Table.from_batches(parcels(cut.to_batches()))
    sent = pa.Table.from_batches(parcels_of_fragments(sent.filter(pc.equal(sent["share"], FRAGMENTS)).to_batches()))
    sent = sent.filter(pc.not_equal(sent["first"], INDEX))
    (said,) = audited(sent.append_column("bucket", pa.array([0] * len(sent), pa.int32())).to_batches())
    assert {row["what"] for row in said.to_pylist()} == {"its registration lacks rows"}
