"""The versions of the topics: when a broker reads one, takes it up, and acknowledges it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

import timerd as td
from support.kafka.realbrokers import brokers
from timerd.testing import Manual
from timerd_client.operations import topic_key
from timerd_kafka.apis.topics.changes import all_read
from timerd_kafka.broker.broker import ANY, CATALOG
from timerd_kafka.cluster.catalog import Catalog


def test_a_broker_reports_changes_that_it_has_read_with_its_own(manual: Manual, tmp_path: Path) -> None:
    """Two brokers create topics at once. The second has read the first one's topics before it reports its own topic."""

    async def main() -> list[list[str]]:
        fired: list[list[str]] = []
        with brokers(tmp_path, 2) as (one, two):
            two.waits.fire = lambda purgatory, *keys: fired.append(sorted(keys)) if purgatory == "topic" else None  # type: ignore[method-assign]
            for name in ("x", "z"):
                one.catalog.create({name: (1, 1, {})})
                one.say_catalog_changed()
            two.catalog.create({"y": (1, 1, {})})
            two.say_catalog_changed()
            one.refresh()
            one.catalog.delete(lambda topic: topic.name == "z")
            one.catalog.create({"z": (1, 1, {})})  # a new topic with the same name
            two.say_catalog_changed()
        return fired

    x, y, z = (topic_key(name) for name in "xyz")
    assert manual.run(main()) == [[ANY, x, y, z], [ANY, z]]


def test_two_changes_within_a_tick_of_the_file_systems_clock_are_both_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file may have the size, the time and even the inode of the file before it."""
    writer, reader = Catalog(tmp_path), Catalog(tmp_path)
    writer.create({"x": (1, 1, {})})
    later = time.time() + 3_600  # so the file counts as new, however slow this test is
    os.utime(tmp_path / "topics.json", (later, later))
    same = (tmp_path / "topics.json").stat()
    monkeypatch.setattr(Path, "stat", lambda path: same)
    assert reader.refresh() and set(reader.by_name) == {"x"}
    writer.delete(lambda topic: True)
    writer.create({"y": (1, 1, {})})
    assert reader.refresh() and set(reader.by_name) == {"y"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the loop stands still while a purgatory is made
def test_a_wait_for_a_topic_sees_brokers_that_have_read_a_newer_version(manual: Manual, tmp_path: Path) -> None:
    """A broker waits until the others have read its version of the topics. One of them reads only a newer version."""

    async def main() -> int:
        with brokers(tmp_path, 3) as (one, two, three):
            for broker in (one, two, three):
                await asyncio.to_thread(broker.readers.prepare, CATALOG)  # as a worker does before its loop runs
            one.catalog.create({"y": (1, 1, {})})
            three.refresh()
            two.catalog.create({"z": (1, 1, {})})
            waiting = asyncio.ensure_future(all_read(one, {"y": ErrorCode.none}, 5.0))
            for other in (two, three):
                await asyncio.sleep(0.1)
                other._looked = 0.0  # otherwise the broker would not look at the file again so soon
                other.refresh()
            return (await waiting)["y"].error

    assert manual.run(main()) == ErrorCode.none


def test_a_broker_acknowledges_no_topics_that_it_has_read_and_not_taken_up(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker is opening the partitions of version 1. For a change of its own it reads version 2, but does not use it.

    The change fails, because the disk is full. The broker acknowledges version 1 when its partitions are open, and
    version 2 only after it has opened the partitions of version 2.
    """

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        with brokers(tmp_path, 2) as (one, two):
            one.catalog.create({"x": (8, 1, {})})
            with monkeypatch.context() as busy:
                busy.setattr("timerd_kafka.broker.broker.OPEN_S", 0.0)  # so it opens no partition yet
                two.refresh()
            one.catalog.create({"y": (1, 1, {})})
            with monkeypatch.context() as full:
                full.setattr(Path, "replace", refuse)
                with pytest.raises(OSError, match="No space"):
                    two.catalog.create({"z": (1, 1, {})})
            fired: list[list[str]] = []
            two.waits.fire = lambda _, *keys: fired.append(sorted(keys))  # type: ignore[method-assign]
            two._open()
            assert (two._opened, two.catalog.version) == (1, 2) and fired == [[ANY, topic_key("x")]]
            two.say_catalog_changed()
            assert two._opened == 2 and fired[1] == [ANY, topic_key("y")]

    manual.run(main())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the loop stands still while a purgatory is made
def test_a_version_of_the_topics_that_the_timer_daemon_has_refused_is_acknowledged_later(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each change at another broker would wait for its timeout, until the topics change again."""

    def refuse(*_: object) -> None:
        raise td.BackpressureError("65,536 of 65,536 commands are unacknowledged")

    async def main() -> int:
        with brokers(tmp_path, 2) as (one, two):
            for broker in (one, two):
                await asyncio.to_thread(broker.readers.prepare, CATALOG)  # as a worker does before its loop runs
            one.catalog.create({"x": (1, 1, {})})
            with monkeypatch.context() as full:
                full.setattr(two.readers, "acknowledge", refuse)
                two._looked = 0.0  # otherwise the broker would not look at the file again so soon
                two.look()
            assert two._opened == 1
            one._looked = 0.0
            one.refresh()
            waiting = asyncio.ensure_future(all_read(one, {"x": ErrorCode.none}, 5.0))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            two.look()
            return (await waiting)["x"].error

    assert manual.run(main()) == ErrorCode.none


def test_a_change_of_the_topics_is_seen_although_the_file_looks_as_before(tmp_path: Path) -> None:
    """A file system's clock may tick only every 4 ms, and a new file may get the inode number of an old file."""
    first, second = Catalog(tmp_path), Catalog(tmp_path)
    first.create({"a": (1, 1, {})})
    first.refresh()
    second.create({"b": (1, 1, {})})
    found = (tmp_path / "topics.json").stat()
    first._seen = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    first.create({"c": (1, 1, {})})
    second.refresh()
    assert set(second.by_name) == {"a", "b", "c"} and second.version == 3
