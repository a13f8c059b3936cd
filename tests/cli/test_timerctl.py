"""timerctl: what it shows of a dead daemon's arena, and what it does with a living daemon."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.remains import bury, rig_of_this_boot
from support.real.shell import LOOKING, Run, in_background, json_of
from support.rig.arenas import SEED
from support.rig.commands import Key, Register
from support.rig.damage import LONG_KEY, Pen
from support.rig.harness import Rig, S
from support.rig.makers import make, outcome
from timerctl.exits import Exit
from timerd_client import connect
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import LEASE_NS, UID_UNKNOWN
from timerd_shm.declare.states import OpState, Orphans
from timerd_shm.host.paths import InstancePaths, read_location
from timerd_shm.host.process import boot_id
from timerd_shm.read.reader import ArenaReader

# a dead daemon's arena -----------------------------------------------------------------------------------------------


def test_stats_has_the_fields_that_other_tools_rely_on(dead: Rig, run: Run) -> None:
    stats = json_of(run, "stats")
    assert (stats["instance"], stats["alive"], stats["uptime_s"], stats["pid"]) == ("default", False, None, 0)
    capacity = stats["capacity"]
    for name in ("ops", "nodes", "watermarks", "payload_bytes", "clients", "ring_events"):
        assert 0 < capacity[name]["used"] <= capacity[name]["limit"], name
    assert capacity["ops"] == {"used": 9, "limit": 64}
    assert capacity["ring_events"] == {"used": 5, "limit": 16}
    assert capacity["ring_span_s"] >= 0
    assert set(stats["counters"]) == {counter.name for counter in PURGATORY_COUNTERS + DAEMON_COUNTERS}
    counters = stats["counters"]
    ended = sum(counters[name] for name in ("completed", "expired", "cancelled", "failed"))
    assert counters["registered"] == counters["pending"] + ended == 25
    assert (counters["pending"], counters["completed"], counters["expired"]) == (7, 2, 16)
    assert stats["purgatories"]["default"]["counters"]["pending"] == 7
    for histograms in (stats["histograms"], stats["purgatories"]["default"]["histograms"]):
        assert set(histograms["expiry_lateness_ns"]) >= {"count", "p50", "p99", "p999", "max"}
        assert histograms["expiry_lateness_ns"]["count"] == 16
        assert histograms["wait_ns"]["count"] == 18
    assert stats["daemon_histograms"]["turn_cpu_ns"]["count"] == 0, "this core had no conductor"


def test_counters_of_several_purgatories_add_up(dead: Rig, run: Run, runtime_dir: Path) -> None:
    fetch = dead.core.purgatory(b"fetch")
    dead.do(dead.clients[0], Register((Key(b"k"),), purgatory=fetch))
    bury(dead, runtime_dir)
    stats = json_of(run, "stats")
    assert [stats["purgatories"][name]["counters"]["pending"] for name in ("default", "fetch")] == [7, 1]
    assert stats["counters"]["pending"] == 8
    out = run("stats")[1]
    assert "\nfetch " in out and "(all)" in out
    assert [row["purgatory"] for row in json_of(run, "ops", "--purgatory", "fetch")] == ["fetch"]


@pytest.mark.parametrize("command", LOOKING)
def test_commands_that_only_read_work_without_a_daemon_and_report_that_none_runs(
    dead: Rig, run: Run, command: str
) -> None:
    status, out, err = run(command)
    assert (status, err) == (Exit.OK, "")
    assert command == "check" or "is not running" in out, out


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [*LOOKING, "ops --state all", "ops --bucket"])
def test_output_fits_the_width_and_is_plain(
    dead: Rig, run: Run, monkeypatch: pytest.MonkeyPatch, command: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    first, second = run(*command.split())[1], run(*command.split())[1]
    lines = first.splitlines()
    assert [len(line) for line in lines if len(line) > width] == []
    assert [line for line in lines if line != line.rstrip()] == []
    assert "\x1b" not in first
    if command in ("keys", "errors", "stats"):
        # Both outputs are equal except for the line with the age that a mark may have: it changes with the clock.
        moves = "A mark may be "
        assert [line for line in lines if moves not in line] == [
            line for line in second.splitlines() if moves not in line
        ]


def test_operations_are_filtered(dead: Rig, run: Run) -> None:
    pending = json_of(run, "ops")
    assert len(pending) == 7
    assert {row["state"] for row in pending} == {"pending"}
    settled = json_of(run, "ops", "--state", "settled")
    assert [row["state"] for row in settled] == ["completed", "completed"]
    assert len(json_of(run, "ops", "--state", "all")) == 9
    assert len(json_of(run, "ops", "--client", "1")) == 1
    assert len(json_of(run, "ops", "--key", "k1")) == 3
    assert json_of(run, "ops", "--key", "k2")[0]["condition"] == "total, 98 to go"
    assert json_of(run, "ops", "--purgatory", "other") == []
    assert len(json_of(run, "ops", "--limit", "2")) == 2
    row = next(row for row in pending if row["client"] == 0)
    assert [key["key"] for key in row["keys"]][1:] == ["offset", LONG_KEY.decode()]
    assert row["condition"] == "all"
    assert row["satisfied"] == 1
    text = run("ops", "--limit", "2")[1]
    assert "There are more: raise --limit (2)." in text


def test_operations_due_soon_are_found(dead: Rig, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: dead.now_ns)
    assert len(json_of(run, "ops", "--due-within", "100ms")) == 3  # due in 1, 50 and 64 ms
    assert len(json_of(run, "ops", "--due-within", "1h")) == 7
    overdue = json_of(run, "ops", "--due-within", "1ms")
    assert [(row["due_in"], row["due_in_ns"]) for row in overdue] == [("1.00 ms", 1_000_000)]


def test_buckets_are_listed_and_opened(dead: Rig, run: Run) -> None:
    buckets = json_of(run, "ops", "--bucket")
    assert sum(bucket["count"] for bucket in buckets) == 7
    opened = [row for bucket in buckets for row in json_of(run, "ops", "--bucket", bucket["bucket"])]
    assert sorted(row["op"] for row in opened) == sorted(row["op"] for row in json_of(run, "ops"))
    assert all(row["bucket"] in {bucket["bucket"] for bucket in buckets} for row in opened)
    with ArenaReader.from_bytes(dead.memory) as reader:
        due = {reader.ops[row["op"] & 0xFFFF_FFFF].deadline_ns // 10**6 for row in opened}
    for bucket in buckets:
        assert any(bucket["first_tick"] <= tick < bucket["first_tick"] + bucket["ticks"] for tick in due), bucket
    for wrong in ("7:0", "0:128", "x", "1:"):
        status, _, err = run("ops", "--bucket", wrong)
        assert status == Exit.USAGE and "levels are 0 to 6, indexes 0 to 127" in err


def test_keys_show_watchers_and_watermarks(dead: Rig, run: Run) -> None:
    keys = {row["key"]: row for row in json_of(run, "keys")}
    assert set(keys) == {"k0", "k1", "k2", "offset"}
    assert (keys["offset"]["watermark"], keys["offset"]["watermark_watchers"]) == (3, 6)
    assert (keys["k0"]["event_watchers"], keys["k0"]["watermark"]) == (4, None)
    assert [row["key"] for row in json_of(run, "keys", "--match", "k?", "--sort", "key")] == ["k0", "k1", "k2"]
    assert json_of(run, "keys", "--limit", "1")[0]["key"] == "offset"
    assert "3 more: raise --limit (1)." in run("keys", "--limit", "1")[1]


def test_clients_shows_the_records_of_each_client(dead: Rig, run: Run) -> None:
    alice, bob = json_of(run, "clients")
    assert (alice["name"], alice["pending"], alice["orphans"]) == ("client-1", 6, "cancel")
    assert (bob["pending"], bob["backlog"], bob["answers"], bob["watermarks"]) == (1, 2, 3, 1)
    assert alice["pid"] is None and not alice["ended"] and alice["command"] is None
    assert (alice["state"], alice["group"], alice["lease_ns"], alice["silent_ns"]) == ("live", None, LEASE_NS, 0)


def test_clients_shows_how_much_of_each_quota_is_used(dead: Rig, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = json_of(run, "clients")
    header = dead.arena.header
    assert alice["quotas"]["operations"] == {"used": 6 + alice["backlog"], "limit": header.quota_operations}
    assert bob["quotas"]["watermarks"] == {"used": 1, "limit": header.quota_watermarks}
    assert set(bob["quotas"]) == {"operations", "outcomes", "bytes", "nodes", "watermarks", "ids", "answers"}
    monkeypatch.setenv("COLUMNS", "250")
    titles, first, second = run("clients")[1].splitlines()[-3:]
    assert "share" in titles and re.search(r"\d+ % \w+", first) and re.search(r"\d+ % \w+", second)


def test_stats_counts_purgatories_and_groups(runtime_dir: Path, run: Run) -> None:
    rig = Rig()
    Pen(rig.memory).header("boot_id", boot_id())
    rig.core.purgatory(b"other")
    rig.client(group=b"workers")
    bury(rig, runtime_dir)
    capacity = json_of(run, "stats")["capacity"]
    assert (capacity["purgatories"]["used"], capacity["groups"]["used"]) == (2, 1)
    assert capacity["purgatories"]["limit"] >= 2 and "groups" in run("stats")[1]


def test_operations_of_a_group_are_not_listed_under_the_client_that_has_the_slot_now(
    runtime_dir: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(clients=4)
    Pen(rig.memory).header("boot_id", boot_id())
    member = rig.client(group=b"workers")
    tenant = rig.client(Orphans.GROUP, group=b"workers")
    kept = rig.client(Orphans.KEEP)
    for client in (tenant, kept):
        rig.do(client, Register((Key(b"k"),), timeout_ns=3_600 * S))
    rig.do(member, Register((Key(b"k"),), timeout_ns=3_600 * S, for_group=True))
    for client in (tenant, kept):
        rig.close(client, goodbye=True)
    innocent = rig.client()
    assert innocent.slot in (tenant.slot, kept.slot)
    rig.do(innocent, Register((Key(b"k"),), timeout_ns=3_600 * S))
    bury(rig, runtime_dir)
    (own,) = json_of(run, "ops", "--client", str(innocent.slot))
    assert (own["client"], own["group"]) == (innocent.slot, None)
    owners = [(row["client"], row["group"]) for row in json_of(run, "ops")]
    assert sorted(owners, key=str) == sorted(
        [(None, "workers"), (None, None), (None, "workers"), (innocent.slot, None)], key=str
    )
    monkeypatch.setenv("COLUMNS", "200")
    assert "group" in run("ops")[1] and "workers" in run("ops")[1]


def test_an_unknown_purgatory_has_no_operations_and_is_named(dead: Rig, run: Run) -> None:
    assert (
        run("ops", "--purgatory", "nosuch")[1].splitlines()[-1] == "No operations: there is no purgatory 'nosuch' now."
    )


def test_clients_shows_who_holds_the_arena_also_when_they_have_ended(
    runtime_dir: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(clients=4, groups=4, quota_operations=32)
    Pen(rig.memory).header("boot_id", boot_id())
    for group, count in ((b"web", 3), (b"mail", 20)):
        make(rig, group, count, uid=0)
    make(rig, b"web", 2, uid=UID_UNKNOWN)
    make(rig, b"mail", 1, uid=0, what=Register((Key(b"k"),), orphans=Orphans.KEEP))
    alive = make(rig, b"web", 5, uid=4_294_000_000, ends=False, what=outcome(b"four"))
    bury(rig, runtime_dir)
    first, *ended = json_of(run, "clients", "--sort", "slot")
    assert (first["slot"], first["uid"], first["user"]) == (alive.slot, 4_294_000_000, "4294000000")
    assert first["made"] == {"pending": 0, "outcomes": 5, "nodes": 0, "bytes": 20}
    assert [(row["state"], row["slot"], row["uid"], row["group"], row["backlog"]) for row in ended] == [
        ("ended", None, None, "web", 2),
        ("ended", None, 0, "web", 3),
        ("ended", None, 0, "mail", 20),
        ("ended", None, 0, None, 0),
    ]
    assert ended[3]["pending"] == 1, "it has no owner"
    assert ended[2]["quotas"]["operations"] == {"used": 24, "limit": 32}, "one share for all groups of the user"
    assert set(first) == set(ended[0])
    monkeypatch.setenv("COLUMNS", "250")
    lines = run("clients", "--sort", "slot")[1].splitlines()
    assert re.search(r"other users +ended +web", lines[-4])
    assert re.search(r"user root +ended +mail .*75 % operations", lines[-2])
    assert re.search(r"user root +ended +- .*75 % operations", lines[-1])


def test_clients_shows_silent_and_dead_clients_and_their_group(
    runtime_dir: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    rig = Rig()
    Pen(rig.memory).header("boot_id", boot_id())
    member, gone = (rig.client() for _ in range(2))
    group = rig.core.group(b"workers")
    rig.core.open_client(b"m" * 16, b"h" * 16, name=b"member", now_ns=rig.now_ns, group=group, listens=True)
    rig.core.silence(member.slot, rig.now_ns)
    rig.core.set_silent_ns(member.slot, 16 * S)
    rig.core.close_client(gone.slot, rig.now_ns)
    rig.turn()
    bury(rig, runtime_dir)
    silent, dead, workers = json_of(run, "clients")
    assert (silent["state"], silent["silent_ns"], silent["died_ago_ns"]) == ("silent", 16 * S, None)
    assert (dead["state"], dead["died_ago_ns"] is None, dead["pending"]) == ("tombstone", False, 0)
    assert (workers["state"], workers["group"], workers["listens"]) == ("live", "workers", True)
    titles, first, second, third = run("clients")[1].splitlines()[-4:]
    assert titles.split()[3:8] == ["state", "group", "silent", "pending", "backlog"]
    assert "16.0 s" in first and "tombstone" in second and "workers" in third


def test_clients_shows_for_how_long_a_silent_client_keeps_what_it_is_doing(runtime_dir: Path, run: Run) -> None:
    rig = Rig()
    Pen(rig.memory).header("boot_id", boot_id())
    member = rig.client(group=b"workers", listens=True)
    rig.core.silence(member.slot, rig.now_ns, keeps=True)
    rig.core.set_silent_ns(member.slot, 48 * S)
    rig.turn()
    bury(rig, runtime_dir)
    (row,) = json_of(run, "clients")
    assert (row["state"], row["keeps"], row["takeover_ns"]) == ("silent", True, 300 * S)
    assert "silent, keeps for 4 min 12 s" in run("clients")[1]


def test_errors_are_counted_and_safe_to_print(dead: Rig, run: Run) -> None:
    (row,) = json_of(run, "errors")
    assert (row["error"], row["count"]) == ("MALFORMED", 2)
    assert (row["first"], row["last"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z")
    assert row["message"] == r"a frame of 3 bytes from \x1b[31m nobody"


def test_check_names_the_error_and_fails(dead: Rig, run: Run, runtime_dir: Path) -> None:
    status, out, _ = run("check")
    assert status == Exit.OK and out.startswith("Sound: 9 operations checked in ")
    Pen(dead.memory).set(Region.CLIENTS, 0, "pending", 77)
    bury(dead, runtime_dir)
    status, out, _ = run("check")
    assert status == Exit.PROBLEM
    assert out.splitlines()[0] == "client 0 says pending=77, and it is 6"
    status, out, _ = run("check", "--json", "--file", str(runtime_dir / "arena"))
    found = json.loads(out)
    assert (status, found["sound"], found["truth"], len(found["derived"])) == (Exit.PROBLEM, False, [], 1)
    assert not found["hashes_verified"] and found["hashes_unverified"] == "a copy (--file) has no seed"


def test_check_computes_hashes_again_if_it_may_read_the_seed_and_otherwise_says_why_not(
    dead: Rig, run: Run, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the seed, `check` trusts the hashes in the records. It always compares the tables with these hashes."""
    seed = read_location(InstancePaths(runtime_dir, "default")).seed

    def checked() -> tuple[bool, list[str]]:
        found = json.loads(run("check", "--json")[1])
        return found["hashes_verified"], [*found["truth"], *found["derived"]]

    def refused(path: Path, **_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    def note() -> str:
        """The reason at the end of the text. JSON has it, too."""
        why = json.loads(run("check", "--json")[1])["hashes_unverified"]
        said = run("check")[1].splitlines()[-2:]
        assert said == [f"Hashes were not computed again: {why}.", f"ARENA.seed is {seed}"]
        return str(why)

    assert checked() == (False, [])
    assert note() == "ARENA.seed is missing: a start makes a new one"
    seed.write_bytes(SEED)
    with monkeypatch.context() as patch:
        patch.setattr("timerctl.look.check.open_plain", refused)
        assert note() == "only the daemon's user can read ARENA.seed"
    seed.write_bytes(SEED[1:])
    assert note() == "ARENA.seed has 15 bytes, and a seed has 16"
    seed.unlink()
    os.mkfifo(seed)
    assert note() == "ARENA.seed cannot be read: it is no plain file", "check does not wait for a writer of the FIFO"
    seed.unlink()
    seed.write_bytes(SEED)
    assert checked() == (True, []) and len(run("check")[1].splitlines()) == 1
    with ArenaReader.from_bytes(dead.memory) as reader:
        last, count = reader.header().newest, reader.events.count
    Pen(dead.memory).set(Region.EVENTS, last % count, "key", b"another".ljust(48, b"\0"))
    bury(dead, runtime_dir)
    verified, found = checked()
    assert verified and any(f"event {last} says its key's hash is" in sentence for sentence in found)
    seed.unlink()
    assert checked() == (False, [])
    seed.write_bytes(bytes(16))
    assert checked() == (False, ["ARENA.seed is not the seed of this arena: the next start makes its hashes anew"])
    assert note() == "ARENA.seed is not the seed of this arena"


def test_an_unfinished_turn_of_a_killed_daemon_is_reported_and_is_no_error(
    dead: Rig, run: Run, runtime_dir: Path
) -> None:
    pen = Pen(dead.memory)
    pen.set(Region.CLIENTS, 0, "pending", 77)
    pen.header("turn", 7)
    bury(dead, runtime_dir)
    status, out, _ = run("check")
    assert status == Exit.OK
    assert "killed in the middle of a turn. 1 derived things" in out
    assert "killed in the middle of a turn" in run("stats")[1]
    with ArenaReader.from_bytes(dead.memory) as reader:
        pending = next(index for index, op in enumerate(reader.ops.used()) if op.state == OpState.PENDING)
    pen.set(Region.OPS, pending, "keys", 0)
    bury(dead, runtime_dir)
    assert run("check")[0] == Exit.PROBLEM


def test_the_prometheus_parser_reads_the_output_of_stats(runtime_dir: Path, run: Run) -> None:
    rig = rig_of_this_boot()
    rig.core.purgatory(b"fetch")
    bury(rig, runtime_dir)
    stats = json_of(run, "stats")
    status, out, _ = run("stats", "--prometheus")
    assert status == Exit.OK
    families = list(text_string_to_metric_families(out))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a metric is declared twice"
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    assert len(samples) == sum(len(family.samples) for family in families), "two samples are the same series"
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    default = (("instance", "default"), ("purgatory", "default"))
    counters = stats["purgatories"]["default"]["counters"]
    assert samples["timerd_registered_total", default] == counters["registered"] > 0
    assert samples["timerd_pending", default] == counters["pending"] > 0
    assert samples["timerd_pending", (("instance", "default"), ("purgatory", "fetch"))] == 0
    assert samples["timerd_turns_total", (("instance", "default"),)] == stats["counters"]["turns"]
    assert samples["timerd_busy_seconds_total", (("instance", "default"),)] == stats["counters"]["busy_ns"] / S
    assert samples["timerd_up", (("instance", "default"),)] == 0
    wait = stats["purgatories"]["default"]["histograms"]["wait_ns"]
    assert samples["timerd_wait_seconds_count", default] == wait["count"] > 0
    turns = stats["daemon_histograms"]["turn_cpu_ns"]
    assert samples["timerd_turn_cpu_seconds_count", (("instance", "default"),)] == turns["count"] == 0
    buckets = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in samples.items()
        if name == "timerd_wait_seconds_bucket" and ("purgatory", "default") in labels
    ]
    assert [value for _, value in sorted(buckets)] == sorted(value for _, value in buckets), "not cumulative"
    assert dict(buckets)[float("inf")] == wait["count"]
    assert sum(value for le, value in buckets if le * S < wait["p50"] / 2) < wait["count"], "p50 is in a higher bucket"
    assert run("stats", "--prometheus", "--watch")[0] == Exit.USAGE


def test_stats_can_be_watched(dead: Rig, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    status, out, _ = run("stats", "--watch", "0.5", "--json")
    assert status == Exit.INTERRUPTED
    assert [json.loads(line)["instance"] for line in out.splitlines()] == ["default"] * 3
    assert naps == [0.5] * 3


# a living daemon -----------------------------------------------------------------------------------------------------


def wait_until_watched(run: Run, key: str) -> None:
    eventually(lambda: json_of(run, "ops", "--key", key), f"nobody watches {key}")


def test_one_shell_registers_and_another_fires(daemon: Daemon, run: Run) -> None:
    waiting = in_background("register", "inbox/7", "--timeout", "30s", "--payload", "back again", "--json")
    wait_until_watched(run, "inbox/7")
    (client,) = json_of(run, "clients")
    assert (client["name"], client["pid"], client["pending"]) == ("timerctl", waiting.pid, 1)
    assert "timerctl" in client["command"] and client["rss_bytes"] > 0 and client["cpu_percent"] >= 0
    assert run("fire", "inbox/7", "--value", "hello", "--wait") == (Exit.OK, "1\n", "")
    out, _ = waiting.communicate(timeout=20)
    outcome = json.loads(out)
    assert waiting.returncode == Exit.OK
    assert (outcome["state"], outcome["key"], outcome["value"]["text"]) == ("completed", "inbox/7", "hello")
    assert outcome["payload"] == {"bytes": 10, "text": "back again", "cut": False}
    assert run("fire", "inbox/7", "--wait") == (Exit.PROBLEM, "0\n", "")


@pytest.mark.long
def test_a_shell_shows_outcomes(daemon: Daemon, run: Run) -> None:
    status, out, _ = run("register", "quiet", "other", "--timeout", "20ms", "--when", "all")
    assert status == Exit.PROBLEM and out.startswith("expired after ") and "missing quiet other" in out
    assert run("advance", "p0", "812")[0] == Exit.OK
    status, out, _ = run("register", "--reach", "p0=800", "--timeout", "5s")
    assert status == Exit.OK and out.startswith("completed after")
    assert run("forget", "p0")[0] == Exit.OK
    assert run("register", "--reach", "p0=1", "--timeout", "10ms")[0] == Exit.PROBLEM
    status, out, err = run("register", "a", "--timeout", "10ms", "--id", "once")
    assert out.startswith("expired"), err
    status, out, err = run("register", "a", "--timeout", "10ms", "--id", "once")
    assert status == Exit.PROBLEM and out.startswith("failed"), err


@pytest.mark.long
@pytest.mark.parametrize(("act", "says"), [("fail", "failed"), ("cancel-for-key", "cancelled")])
def test_another_shell_settles_the_operation_that_a_shell_waits_for(
    daemon: Daemon, run: Run, act: str, says: str
) -> None:
    waiting = in_background("register", "k", "--timeout", "30s", "--purgatory", "fetch")
    wait_until_watched(run, "k")
    assert run(act, "k", "--purgatory", "fetch")[0] == Exit.OK
    out, _ = waiting.communicate(timeout=20)
    assert waiting.returncode == Exit.PROBLEM
    assert out.startswith(f"{says} after"), out


@pytest.mark.long
def test_an_operation_with_an_id_is_rescheduled_and_cancelled(daemon: Daemon, run: Run) -> None:
    waiting = in_background("register", "k", "--timeout", "30s", "--id", "session/9", "--purgatory", "fetch")
    wait_until_watched(run, "k")
    place = ("session/9", "--purgatory", "fetch")
    said = "Operation session/9 of purgatory fetch was"
    assert run("reschedule", *place, "--timeout", "none") == (Exit.OK, f"{said} rescheduled.\n", "")
    (row,) = json_of(run, "ops")
    assert row["deadline_ns"] is None
    assert run("cancel", *place) == (Exit.OK, f"{said} cancelled.\n", "")
    out, _ = waiting.communicate(timeout=20)
    assert waiting.returncode == Exit.PROBLEM and out.startswith("cancelled after"), out
    for command in (("cancel",), ("reschedule", "--timeout", "5s")):
        status, out, err = run(*command, *place)
        assert (status, out) == (Exit.PROBLEM, "") and "of id 'session/9' is" in err, err


@pytest.mark.long
def test_a_living_daemon_is_checked_on_a_copy(daemon: Daemon, run: Run) -> None:
    with connect() as client:
        operations = [client.register(f"k{number % 7}", timeout=60) for number in range(500)]
        done = threading.Event()

        def keep_it_busy() -> None:
            while not done.is_set():
                client.fire(f"k{len(operations) % 7}")
                operations.append(client.register("k1", timeout=60))
                time.sleep(0.001)

        busy = threading.Thread(target=keep_it_busy)
        busy.start()
        try:
            for _ in range(3):
                status, out, err = run("check")
                assert status == Exit.OK, out + err
                assert out.startswith("Sound: ")
        finally:
            done.set()
            busy.join()
        eventually(lambda: not daemon.paths.snapshots(), "a copy was left")
        stats = daemon.stats()
        assert stats["alive"] and stats["pid"] == daemon.pid and 0 < stats["uptime_s"] < 600
        for operation in operations:
            operation.cancel_wait()
