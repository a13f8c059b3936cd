"""timerctl top without its screen: samples, hot keys, sentences and tables, of an arena whose time the test moves."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from support.real.remains import bury
from support.real.shell import Run
from support.rig.commands import Key, Register
from support.rig.harness import MS, Rig, S, advance, fire
from timerctl.exits import Exit
from timerctl.live import hot as hot_module
from timerctl.live import views as views_module
from timerctl.live.frame import bar, spark
from timerctl.live.groups import Holder
from timerctl.live.hot import HotKeys
from timerctl.live.rows import operations_of
from timerctl.live.samples import Sample, Samples
from timerctl.live.verdict import Level, verdict
from timerctl.live.views import RESTED, VIEWS, Reading, Source
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.reader import ArenaReader


class Watched:
    """A rig, and the samples that are taken of it."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.rig, self.hot = rig, HotKeys()
        self.samples = Samples(InstancePaths(directory, "default"), lambda: rig.now_ns)

    def take(self, after_ns: int = 0) -> Sample:
        self.rig.now_ns += after_ns
        with ArenaReader.from_bytes(self.rig.memory) as reader:
            sample = self.samples.read(reader)
            self.hot.look(reader, sample.at_ns)
        return sample

    def rows(self, name: str) -> list[dict[str, object]]:
        with ArenaReader.from_bytes(self.rig.memory) as reader:
            view = next(view for view in VIEWS if view.name == name)
            return view.rows(Source(reader, self.samples.newest, self.hot))


@pytest.fixture
def watched(rig: Rig, runtime_dir: Path) -> Watched:
    return Watched(rig, runtime_dir)


def register(key: bytes, timeout_ns: int = 100 * S) -> Register:
    return Register((Key(key),), timeout_ns=timeout_ns)


# samples --------------------------------------------------------------------------------------------------------------


def test_rates_and_percentiles_are_those_of_the_last_second(watched: Watched) -> None:
    client = watched.rig.client()
    watched.rig.do(client, *(register(b"old%d" % number) for number in range(9)))
    watched.take()
    watched.rig.do(client, *(register(b"k%d" % number) for number in range(8)))
    watched.rig.do(client, *(fire(b"k%d" % number) for number in range(6)), now_ns=watched.rig.now_ns + 20 * MS)
    sample = watched.take(S - 20 * MS)
    assert (sample.rates["registered"], sample.rates["completed"], sample.rates["events"]) == (8, 6, 6)
    assert sample.wait.count == 6 and 20 * MS <= sample.wait.p50 <= 22 * MS
    assert sample.purgatories["default"]["completed"] == 6
    later = watched.take(S)
    assert not any(later.rates.values()) and later.wait.count == 0


def test_a_rate_needs_two_samples_and_is_right_over_half_a_second(watched: Watched) -> None:
    client = watched.rig.client()
    watched.rig.do(client, register(b"k"))
    assert not any(watched.take().rates.values())
    watched.rig.do(client, register(b"k1"), register(b"k2"))
    assert watched.take(S // 2).rates["registered"] == pytest.approx(4)


def test_a_limit_that_fills_says_when_it_is_full(watched: Watched) -> None:
    client = watched.rig.client()
    watched.take()
    for number in range(4):
        watched.rig.do(client, *(register(b"k%d-%d" % (number, each)) for each in range(8)))
        sample = watched.take(S)
    (ops,) = [fill for fill in sample.fills if fill.name == "ops"]
    assert (ops.used, ops.limit, ops.per_s) == (32, 64, 8) and ops.full_in_ns == 4 * S
    assert sample.fills == sorted(sample.fills, key=lambda fill: -fill.share)
    (clients,) = [fill for fill in sample.fills if fill.name == "clients"]
    assert clients.full_in_ns is None


def test_another_arena_begins_anew(watched: Watched, runtime_dir: Path) -> None:
    client = watched.rig.client()
    watched.rig.do(client, *(register(b"k%d" % number) for number in range(20)))
    watched.take()
    watched.rig = Rig(capacity=64, incarnation=77)
    sample = watched.take(S)
    assert len(watched.samples.kept) == 1 and not any(sample.rates.values())


def test_of_very_many_keys_the_most_watched_ones_are_rows(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    client = watched.rig.client()
    for number in range(6):  # key 5 has six watchers
        keys = (Key(b"k%d" % number), Key(b"a long name that does not fit into its record %d" % number, 3))
        watched.rig.do(client, *(Register(keys[: 1 + (each == 0)]) for each in range(number + 1)))
    watched.rig.do(client, advance(b"k5", 2))
    watched.take()
    whole = {row["key"]: row for row in watched.rows("keys")}
    assert len(whole) == 12 and whole["k5"]["watchers"] == 6
    monkeypatch.setattr(views_module, "ALL_KEYS", 0)
    assert {row["key"]: row for row in watched.rows("keys")} == whole
    monkeypatch.setattr(views_module, "ROWS_MAX", 2)
    few = {row["key"]: row for row in watched.rows("keys")}
    assert few == {name: whole[name] for name in ("k5", "k4")}


# hot keys -------------------------------------------------------------------------------------------------------------


def test_keys_with_the_most_events_come_first(watched: Watched) -> None:
    client = watched.rig.client()
    watched.rig.do(client, fire(b"before"))
    watched.take()
    watched.rig.do(client, *[fire(b"hot")] * 6, fire(b"cold"))
    watched.take(2 * S)
    assert list(watched.hot.rates().items()) == [(("default", b"hot"), 3.0), (("default", b"cold"), 0.5)]
    watched.take(10 * S)
    assert watched.hot.rates() == {}


def test_where_more_events_come_than_are_looked_at_each_stands_for_several(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_module, "LOOKED", 4)
    client = watched.rig.client()
    watched.take()
    watched.rig.do(client, *[fire(b"hot")] * 12)
    watched.take(S)
    assert watched.hot.rates() == {("default", b"hot"): 12.0}


def test_events_that_the_ring_has_lost_are_counted_by_those_that_it_has(watched: Watched) -> None:
    client = watched.rig.client()
    watched.take()
    for _ in range(4):
        watched.rig.do(client, *[fire(b"hot")] * 40)  # the ring has 64
    watched.take(S)
    assert watched.hot.rates()["default", b"hot"] == pytest.approx(160)


# sentences ------------------------------------------------------------------------------------------------------------


def sentences(watched: Watched) -> list[str]:
    kept = watched.samples.kept
    return [f"{each.text} {each.help}".strip() for each in verdict(kept[-1], kept[0])]


def alive(sample: Sample) -> Sample:
    """The sample, as if a daemon had the arena."""
    return sample._replace(stats=sample.stats | {"alive": True, "uptime_s": 5.0})


def test_all_is_well_or_the_most_urgent_comes_first(watched: Watched) -> None:
    sample = watched.take()
    (fine,) = verdict(alive(sample), alive(sample))
    assert (fine.level, fine.text) == (Level.FINE, "All is well.")
    assert sentences(watched)[0].startswith("The daemon is not running")
    for client in (watched.rig.client(), watched.rig.client()):
        watched.rig.do(client, *(register(b"k%d" % number) for number in range(30)))
    found = verdict(alive(watched.take(S)), alive(sample))
    assert found[0].level == Level.ERROR and "94 % of the ops are used: 60 of 64." in found[0].text
    assert "--capacity" in found[0].help


def test_a_limit_that_will_be_full_soon_is_said_before_it_is(watched: Watched) -> None:
    clients = watched.rig.client(), watched.rig.client()
    watched.take()
    for client in clients:
        watched.rig.do(client, *(register(b"k%d" % number) for number in range(20)))
    watched.take(S)
    assert any("The ops are full in 600 ms at this rate (40 a second)." in each for each in sentences(watched))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"alive": True, "stopped": True, "uptime_s": 1.0}, "kill -CONT"),
        ({"counters": {"journal_thread_dead": 1}}, "its thread has ended"),
        ({"counters": {"journal_rows_dropped": 7}}, "The journal lacks 7 rows."),
        ({"counters": {"clients_died": 2}}, "2 clients ended without a goodbye."),
        ({"counters": {"gaps": 3}}, "stopped or starved 3 times"),
    ],
)
def test_each_trouble_has_its_sentence(watched: Watched, change: dict[str, object], says: str) -> None:
    before = alive(watched.take())
    counters = before.stats["counters"] | dict(change.get("counters", {}))  # type: ignore[call-overload]
    after = before._replace(stats=before.stats | change | {"counters": counters})
    (found,) = verdict(after, before)
    assert says in f"{found.text} {found.help}"


def test_a_group_that_is_not_served_is_named_with_what_holds_it_up(watched: Watched) -> None:
    rig = watched.rig
    asker = rig.client(group=b"jobs")
    rig.do(asker, Register((Key(b"a"),), timeout_ns=S, for_group=True))
    before = alive(watched.take())
    rig.turn(rig.now_ns + S + 2 * MS)  # it expires, and no member takes outcomes
    (found,) = verdict(alive(watched.take(7 * S)), before)
    assert found.level == Level.WARNING and "Group jobs is behind" in found.text and "waited for 7" in found.text
    assert found.help == "timerctl --instance default calls --group jobs"
    (group,) = watched.samples.newest.groups
    silent = Holder("client 3 web-1, pid 7", 7, False, 12 * S, 2)
    held = alive(watched.samples.newest)._replace(groups=[group._replace(waits_ns=0, holders=[silent])])
    (found,) = verdict(held, before)
    assert "client 3 web-1, pid 7 has been silent for 12.0 s, and has 2 of its" in found.text
    stopped = held._replace(groups=[group._replace(waits_ns=0, holders=[silent._replace(stopped=True)])])
    (found,) = verdict(stopped, before)
    assert found.help == "kill -CONT 7"
    deserted = held._replace(groups=[group._replace(members=0)])
    (found,) = verdict(deserted, before)
    assert "Group jobs has no member, and 1 outcomes and calls wait" in found.text


# tables ---------------------------------------------------------------------------------------------------------------


def test_each_table_has_its_rows_in_each_order(watched: Watched) -> None:
    one, other = watched.rig.client(name=b"web-1"), watched.rig.client(name=b"web-2", group=b"jobs")
    watched.take()
    watched.rig.do(one, register(b"a"), register(b"a"), register(b"b"), fire(b"c"))
    watched.rig.do(other, register(b"a"))
    watched.take(S)
    assert {row["name"] for row in watched.rows("clients")} == {"web-1", "web-2"}
    keys = {row["key"]: (row["watchers"], row["rate"]) for row in watched.rows("keys")}
    assert keys == {"a": (3, 0.0), "b": (1, 0.0), "c": (0, 1.0)}
    assert [row["name"] for row in watched.rows("groups")] == ["jobs"]
    assert [row["name"] for row in watched.rows("purgatories")] == ["default"]
    for view in VIEWS:
        rows = watched.rows(view.name)
        for order in view.orders:
            shown = view.sorted(rows, order)
            assert sorted(map(str, shown)) == sorted(map(str, rows))
            assert view.table.lines([view.cells(row) for row in shown])
    view = next(view for view in VIEWS if view.name == "keys")
    assert [row["key"] for row in view.sorted(watched.rows("keys"), "watchers")] == ["a", "b", "c"]
    assert [row["key"] for row in view.sorted(watched.rows("keys"), "events/s")] == ["c", "a", "b"]
    assert [row["key"] for row in view.sorted(watched.rows("keys"), "key", "B")] == ["b"]


def test_the_operations_of_a_row_are_those_of_its_client_key_group_or_purgatory(watched: Watched) -> None:
    one, other = watched.rig.client(name=b"web-1"), watched.rig.client(name=b"web-2", group=b"jobs")
    watched.rig.do(one, register(b"a"), register(b"b"))
    watched.rig.do(other, register(b"a"))
    watched.take()

    def keys_of(view: str, name: str, value: object) -> list[tuple[int | None, str]]:
        (row,) = [row for row in watched.rows(view) if row[name] == value]
        with ArenaReader.from_bytes(watched.rig.memory) as reader:
            return sorted((each["client"], each["keys"][0]["key"]) for each in operations_of(reader, row))

    assert keys_of("clients", "name", "web-1") == [(one.slot, "a"), (one.slot, "b")]
    assert keys_of("keys", "key", "a") == [(one.slot, "a"), (other.slot, "a")]
    assert keys_of("purgatories", "name", "default") == [(one.slot, "a"), (one.slot, "b"), (other.slot, "a")]


def test_a_table_that_takes_long_is_read_less_often(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.take()
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def slow(_: Source) -> list[dict[str, object]]:
        clock[0] += 0.5
        return []

    reading = Reading(VIEWS[0]._replace(rows=slow))
    with ArenaReader.from_bytes(watched.rig.memory) as reader:
        source = Source(reader, watched.samples.newest, watched.hot)
        assert reading.refresh(source)
        clock[0] += 0.5 * RESTED - 0.01
        assert not reading.refresh(source)
        clock[0] += 0.02
        assert reading.refresh(source)


# the command ----------------------------------------------------------------------------------------------------------


def test_one_screen_of_a_dead_daemons_arena(
    rig: Rig, run: Run, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    rig.do(rig.client(name=b"web-1"), register(b"orders/7"))
    bury(rig, runtime_dir)
    status, out, err = run("top", "--once")
    assert status == Exit.OK, err
    assert out.splitlines()[1].startswith("The daemon is not running") and "web-1" in out and "orders/7" in out
    status, out, err = run("top", "--json")
    document = json.loads(out)
    assert status == Exit.OK and not document["alive"] and document["findings"][0]["level"] == "error"
    assert [row["key"] for row in document["keys"]] == ["orders/7"]
    assert {limit["name"] for limit in document["limits"]} >= {"ops", "clients", "payload_bytes"}


def test_what_top_needs_is_said(rig: Rig, run: Run, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = run("top")
    assert status == Exit.USAGE and "--once" in err  # no terminal here
    status, _, err = run("top", "--once", "--every", "1ms")
    assert status == Exit.USAGE and "at least 50ms" in err
    status, _, err = run("--instance", "nowhere", "top", "--once")
    assert status == Exit.NO_INSTANCE
    bury(rig, runtime_dir)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "timerctl.live.screen", None)
    status, _, err = run("top")
    assert status == Exit.USAGE and "timerd[top]" in err


def test_bars_and_histories_fill_their_columns() -> None:
    assert [bar(share) for share in (0, 0.5, 1, 2)] == ["·" * 10, "█" * 5 + "·" * 5, "█" * 10, "█" * 10]
    assert bar(0.01) == "▏" + "·" * 9
    assert spark([], 5) == "" and spark([0, 0], 5) == "  "
    assert spark([0, 4, 8], 5) == " ▄█" and len(spark(list(range(100)), 20)) == 20
