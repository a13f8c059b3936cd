"""The audit on Spark: of what a daemon wrote that was killed, and of the same with something falsified."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from daemons import SMALL, Daemon
from patience import PATIENCE_S
from timerd_client import ALL, connect
from timerd_client.audit_journal import audit_journal
from timerd_shm.errors import InvalidValueError
from timerd_spark import audit
from timerd_spark.auditing import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeDaemon = Callable[..., Daemon]


def events_of(spark: SparkSession, directory: Path) -> DataFrame:
    """The events of a journal."""
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


def test_a_killed_daemons_journal_holds_and_a_falsified_one_does_not(
    spark: SparkSession, make_daemon: MakeDaemon, runtime_dir: Path, rng: random.Random
) -> None:
    directory = runtime_dir / "j"
    daemon = make_daemon(*SMALL, f"--journal={directory}", "--journal-level=events", "--journal-segment-size=64KiB")
    storm(daemon, rng)
    daemon.stop()
    assert not audit_journal(directory).wrong
    told = events_of(spark, directory).toArrow()
    rows = told.to_pylist()
    outcomes = [row for row in rows if row["kind"] == "outcome"]
    assert len(outcomes) == 80

    def falsified(one: dict[str, Any], **values: Any) -> list[dict[str, Any]]:
        return [{**row, **values} if row is one else row for row in rows]

    completed, expired = ([row for row in outcomes if row["outcome"] == how][-1] for how in ("completed", "expired"))
    lies = {
        "it is EXPIRED": falsified(completed, outcome="expired"),
        "COMPLETED": falsified(expired, outcome="completed"),
        "due at": falsified(expired, settled_ns=expired["deadline_ns"] - 1),
        "should have settled: COMPLETED": [row for row in rows if row is not completed],
        "its times differ": falsified(completed, registered_ns=1),
    }
    # Another host each, and the truth with them: all are audited at once.
    hosts = {"truth": rows, **lies}
    together = [{**row, "host": host} for host, those in hosts.items() for row in those]
    found: dict[str, list[Any]] = {}
    df = spark.createDataFrame(pa.Table.from_pylist(together, told.schema)).coalesce(1).cache()
    for row in audit(df, partitions=3).collect():
        found.setdefault(row.host, []).append(row)
    assert set(found) == set(lies)
    for said, disagreements in found.items():
        assert any(said in row.what and row.op_id for row in disagreements), disagreements


def test_what_cannot_be_audited_is_refused_when_audit_is_called(
    spark: SparkSession, make_daemon: MakeDaemon, runtime_dir: Path
) -> None:
    directory = runtime_dir / "j"
    daemon = make_daemon(*SMALL, f"--journal={directory}")
    daemon.stop()
    with pytest.raises(InvalidValueError, match="--journal-level=events"):
        audit(events_of(spark, directory))
    with pytest.raises(InvalidValueError, match=r"needs the column 'host' of the events view.*\"view\", \"events\""):
        audit(spark.range(3))
