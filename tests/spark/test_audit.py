"""The audit on Spark: of the journal of a killed daemon, and of the same journal with falsified rows."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from commands import Key, Register
from daemons import SMALL, Daemon
from falsify import changed, of_kind, record_of, rows_for_audit
from harness import MS
from journalplay import play
from journals import JournaledRig
from olderjournals import as_older
from patience import PATIENCE_S
from timerd_client import ALL, connect
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.journal import OLDER, ROW_SIZE, RowKind
from timerd_shm.declare.states import Condition, Outcome
from timerd_spark import audit
from timerd_spark.reports.audit_rows import COLUMNS, FRAGMENT, PACKED, audited, join_fragments, pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeDaemon = Callable[..., Daemon]


def events_of(spark: SparkSession, directory: Path) -> DataFrame:
    """The events view of a journal."""
    reader = spark.read.format("timerd").option("view", "events").option("columns", ",".join(COLUMNS))
    return reader.load(str(directory))


def storm(daemon: Daemon, rng: random.Random) -> None:
    """Operations of one key, of several, and with ids that replace each other, over two kills of the daemon."""
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


@pytest.mark.long  # its short form is the one below
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
        "the journal's end is not known": [row for row in rows if row["bytes"][0] != RowKind.END],
    }
    # Each falsified journal gets a host of its own, and so does the true one: one audit reads them all.
    hosts = {"truth": rows, **lies}
    together = [{**row, "host": host} for host, those in hosts.items() for row in those]
    found: dict[str, list[Any]] = {}
    df = spark.createDataFrame(pa.Table.from_pylist(together, table.schema)).coalesce(1).cache()
    for row in audit(df, partitions=3).collect():
        found.setdefault(row.host, []).append(row)
    assert set(found) == set(lies)
    for said, disagreements in found.items():
        assert any(said in row.what for row in disagreements), disagreements


@pytest.mark.parametrize("seed", (1, 4))
def test_spark_and_python_agree_on_a_random_program_and_on_a_lie_about_what_was_observed(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """With groups, requeued limited events, several keys, operations that observe keys, and that owners complete."""
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


def test_an_audit_reads_the_files_as_they_are_at_its_start(spark: SparkSession, tmp_path: Path) -> None:
    table, path = play_registrations(tmp_path / "journal"), tmp_path / "rows"
    true_rows = table.to_pylist()
    outcomes = of_kind(true_rows, RowKind.OUTCOME)
    false_rows = [changed(row, outcome=Outcome.COMPLETED) if row in outcomes else row for row in true_rows]
    path.mkdir()
    spark.catalog.clearCache()  # rows that other tests have persisted

    def loaded(rows: Any) -> DataFrame:
        pq.write_table(rows, path / "rows.parquet")
        return spark.read.parquet(str(path))

    true = loaded(table)
    left = true.select(*COLUMNS).mapInArrow(pack, PACKED).persist()  # as a killed audit leaves them
    assert left.count()
    before = audit(true, partitions=1)
    assert not before.collect()
    after = audit(loaded(pa.Table.from_pylist(false_rows, table.schema)), partitions=1)
    assert any("COMPLETED" in row.what for row in after.collect())
    assert not before.collect()
    left.unpersist()
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


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
    with pytest.raises(InvalidValueError, match="has segments of an older version, which lacks what an audit needs"):
        audit(events_of(spark, directory))
    with pytest.raises(InvalidValueError, match=r"needs the column 'host' of the events view.*\"view\", \"events\""):
        audit(spark.range(3))


# the rows of registrations --------------------------------------------------------------------------------------------


def packed_rows(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def play_registrations(directory: Path) -> Any:
    """The events view of operations of one key and of several, in one table."""
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
    rows = pa.Table.from_batches(join_fragments(fragments.to_batches())).append_column(
        "bucket", pa.array([0, 0], pa.int32())
    )
    (said,) = audited(rows.to_batches())
    assert {row["what"] for row in said.to_pylist()} == {"its registration lacks rows"}
