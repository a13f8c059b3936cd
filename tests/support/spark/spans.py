"""Journals for the tests of Spark's data source, and what Spark gets of them: spans, and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.oracle.journalplay import play
from support.rig.commands import Key, Register
from support.rig.harness import MS, Client, S
from support.rig.journals import JournaledRig, numbered, settle
from timerd_shm.read.segment import segments_of
from timerd_spark.format import TimerdDataSource
from timerd_spark.source.batches import batches
from timerd_spark.source.options import ReadOptions
from timerd_spark.source.readers import JournalStream
from timerd_spark.source.schema import EVENTS, TERMINAL
from timerd_spark.source.segments import Span, Walk, first_offset


def random_journal(directory: Path) -> Path:
    """A random program's journal, with groups, kills and long keys in it, over several segments."""
    played = play(4711, directory)
    rig = played.rig
    assert isinstance(rig, JournaledRig)
    client = rig.client()
    settle_all(rig, client, 0, 300)
    settle(rig, client, b"k" * 255, b"\xff\xfe not utf-8", "schlüssel".encode())
    settle_all(rig, client, 0, 300)
    rig.drop_journal()
    assert len(segments_of(directory)) > 3
    return directory


def small_journal(directory: Path) -> Path:
    """A journal of three segments. It is small because Spark needs much time for each."""
    rig = JournaledRig(directory)
    client = rig.client()
    settle_all(rig, client, 0, 390)
    client.issue(Register((Key(b"late"),), timeout_ns=MS))
    rig.turn()
    rig.turn(rig.now_ns + S)
    rig.drop_journal()
    assert len(segments_of(directory)) == 3
    return directory


def settle_all(rig: JournaledRig, client: Client, first: int, count: int) -> None:
    """Settle `count` operations, ten in each turn, because a small arena holds few."""
    for at in range(first, first + count, 10):
        settle(rig, client, *numbered(at, 10))


def spans_of(directory: Path, **more: Any) -> list[Span]:
    return list(Walk(directory, first_offset(directory), **more).spans())


def rows_of(spans: list[Span], view: str, **more: Any) -> list[dict[str, Any]]:
    columns = EVENTS if view == "events" else TERMINAL
    return [row for span in spans for batch in batches(span, columns, view, **more) for row in batch.to_pylist()]


def source(path: Path | str, **options: str) -> TimerdDataSource:
    return TimerdDataSource({"path": str(path), **options})


def stream(path: Path | str, **options: str) -> JournalStream:
    return JournalStream(ReadOptions.of({"path": str(path), **options}), TERMINAL)


def read(reader: JournalStream, start: Any, end: Any) -> list[dict[str, Any]]:
    # Offsets go through Spark's logs as JSON.
    parts = reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
