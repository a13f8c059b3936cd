"""Copies of the arena, which the daemon makes for clients, and removes: on a manual clock, and with real daemons."""

from __future__ import annotations

import grp
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.fakes.networks import World
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.shell import Run, in_background
from support.rig.harness import MS, S
from timerctl import main
from timerctl.exits import Exit
from timerd.conductor.bounds import RECORDS_WHILE_COPYING
from timerd.snapshots import COPY_NS_MAX, KEEP_NS, LOOK_NS, REST, WAITED_FOR_NS, CopyGivenUpError
from timerd_client import Client, State, connect
from timerd_shm.declare.errors import TimeoutOutOfRangeError, TimerdUnavailableError
from timerd_shm.declare.wire import DownKind, UpKind
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

MakeDaemon = Callable[..., Daemon]
ASK = {"query": "snapshot"}
# A copy takes so long that the client asks again meanwhile.
SLOW = """
import time
import timerd.arena.snapshot
copy = timerd.arena.snapshot.copy
def slow(copier):
    copy(copier)
    time.sleep(0.3)
timerd.arena.snapshot.copy = slow
"""
FULL = """
import timerd.arena.snapshot
def full(copier):
    raise OSError(28, "No space left on device")
timerd.arena.snapshot.copy = full
"""
NO_THREAD = """
import timerd.arena.snapshot
def none(*_):
    raise RuntimeError("can't start new thread")
timerd.arena.snapshot.start_new_thread = none
"""


@pytest.fixture
def world() -> World:
    return World()


def copies_in(directory: Path) -> list[Path]:
    return list(directory.glob("*.snapshot*"))


# on a manual clock ------------------------------------------------------------------------------------------------


def test_a_repeated_question_is_answered_with_the_same_copy(world: World) -> None:
    alice = world.client("alice")
    first = alice.ask({"id": 4, **ASK})
    again = alice.ask({"id": 4, **ASK})
    assert first == again == (DownKind.RESULT, {"id": 4, "path": world.copies.path})
    assert world.copies.whole == 1


def test_a_copy_is_removed_when_the_clients_that_asked_have_ended(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    for client in (alice, bob):
        client.say(UpKind.QUERY, {"id": 4, **ASK})
    world.settle()
    assert (world.copies.whole, world.copies.there) == (1, 1), "one copy answers all who asked in a turn"
    alice.say(UpKind.BYE)
    world.settle()
    assert world.copies.there == 1
    bob.say(UpKind.BYE)
    world.settle()
    assert world.copies.there == 0


def test_a_copy_is_removed_in_time_although_its_client_lives(world: World) -> None:
    alice = world.client("alice")
    alice.ask({"id": 4, **ASK})
    world.run(KEEP_NS - MS)
    assert world.copies.there == 1
    world.run(2 * MS)
    assert world.copies.there == 0


def test_there_is_one_copy_at_a_time_and_a_waiting_client_gets_the_next(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    _, first = alice.ask({"id": 4, **ASK})
    bob.say(UpKind.QUERY, {"id": 4, **ASK})
    world.run(WAITED_FOR_NS - MS)
    assert world.copies.whole == 1 and not bob.take_answers()
    world.run(2 * MS)
    [(kind, second)] = bob.take_answers()
    assert kind is DownKind.RESULT and second["path"] != first["path"]
    assert (world.copies.whole, world.copies.there) == (2, 1)


def test_no_copy_is_made_for_a_client_that_has_ended(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.ask({"id": 4, **ASK})
    bob.say(UpKind.QUERY, {"id": 4, **ASK})
    world.settle()
    bob.say(UpKind.BYE)
    world.run(2 * KEEP_NS)
    assert world.copies.whole == 1


def test_questions_one_after_the_other_get_a_copy_each(world: World) -> None:
    world.copies.free_ns = 100 * MS  # the memory of a removed copy is not free at once
    alice = world.client("alice")
    for number in range(5):
        alice.say(UpKind.QUERY, {"id": number, **ASK})
        world.run(WAITED_FOR_NS + world.copies.free_ns + LOOK_NS)
        assert alice.take_answers() == [(DownKind.RESULT, {"id": number, "path": world.copies.path})]
    assert world.copies.whole == 5


def test_clients_that_ask_again_and_again_delay_another_by_one_copy_at_most(world: World) -> None:
    world.copies.take_ns, world.copies.free_ns = 100 * MS, 100 * MS
    greedy = [world.client(f"greedy {number}") for number in range(3)]
    for number, client in enumerate(greedy):
        client.say(UpKind.QUERY, {"id": 0, **ASK})
        world.run(number * 30 * MS)
    late = world.client("late")
    late.say(UpKind.QUERY, {"id": 4, **ASK})
    asked_ns = world.clock.now_ns()
    while not (answers := late.take_answers()):
        for client in greedy:
            for kind, body in client.take_answers():
                assert kind is DownKind.RESULT, body
                client.say(UpKind.QUERY, {"id": body["id"] + 1, **ASK})
        world.run(LOOK_NS)
    assert [kind for kind, _ in answers] == [DownKind.RESULT]
    one = (1 + REST) * world.copies.take_ns + WAITED_FOR_NS + world.copies.free_ns
    assert world.clock.now_ns() - asked_ns <= one + world.copies.take_ns + 10 * LOOK_NS


def test_memory_that_is_never_free_again_is_an_error_in_the_end(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.ask({"id": 4, **ASK})
    world.copies.free_ns = 10 * COPY_NS_MAX
    alice.say(UpKind.BYE)
    world.settle()
    bob.say(UpKind.QUERY, {"id": 4, **ASK})
    world.run(COPY_NS_MAX - MS)
    assert not bob.take_answers()
    world.run(MS + LOOK_NS)
    [(kind, error)] = bob.take_answers()
    assert kind is DownKind.ERROR and "the memory is not free yet" in error["message"]
    world.run(REST * LOOK_NS)
    assert bob.ask({"id": 5, **ASK})[0] is DownKind.ERROR, "the daemon answers at once: only the first question waits"


def test_a_copy_that_waited_for_a_processor_has_a_short_rest(world: World) -> None:
    world.copies.take_ns, world.copies.cpu_ns = 2 * S, 100 * MS
    alice = world.client("alice")
    alice.say(UpKind.QUERY, {"id": 4, **ASK})
    world.run(2 * S + LOOK_NS)
    assert world.copies.there
    alice.say(UpKind.QUERY, {"id": 5, **ASK})
    world.run(2 * S + LOOK_NS)
    assert world.copies.is_copying, "the rest is nine times the CPU time, not nine times 2 s"


def test_copying_takes_a_tenth_of_the_time_at_most(world: World) -> None:
    world.copies.take_ns = 2 * S
    began_ns = world.clock.now_ns()
    for number in range(5):
        client = world.client(f"client {number}")
        client.say(UpKind.QUERY, {"id": 4, **ASK})
        world.run(world.copies.take_ns + LOOK_NS)
        client.say(UpKind.BYE)
        world.run(REST * world.copies.take_ns // 2)
    assert world.copies.whole * world.copies.take_ns * (REST + 1) <= world.clock.now_ns() - began_ns + 20 * S
    assert world.copies.whole == 3


def test_a_copy_that_cannot_be_written_is_an_error_of_each_question_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    def full() -> None:
        nonlocal tried
        tried += 1
        world.clock.move(100 * MS)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world.copies, "begin", full)
    alice = world.client("alice")
    for _ in range(2):
        kind, error = alice.ask({"id": 9, **ASK})
        assert kind is DownKind.ERROR and error["id"] == 9 and "No space left" in error["message"]
    assert tried == 1


def test_a_copy_ends_when_nobody_waits_for_it_any_more(world: World) -> None:
    world.copies.take_ns = 2 * S
    alice = world.client("alice")
    alice.say(UpKind.QUERY, {"id": 4, **ASK})
    world.settle()
    assert world.copies.is_copying
    alice.say(UpKind.BYE)
    world.settle()
    assert not world.copies.is_copying and world.copies.whole == 0


@pytest.mark.parametrize("fails", (False, True))
def test_a_client_may_end_while_its_copy_is_made_and_others_get_their_answer(world: World, fails: bool) -> None:
    world.copies.take_ns = 2 * COPY_NS_MAX if fails else 2 * S
    alice, bob = world.client("alice"), world.client("bob")
    for client in (alice, bob):
        client.say(UpKind.QUERY, {"id": 4, **ASK})
    world.settle()
    alice.say(UpKind.BYE)
    world.run(COPY_NS_MAX + 2 * LOOK_NS)
    [(kind, _)] = bob.take_answers()
    assert kind is (DownKind.ERROR if fails else DownKind.RESULT)


def test_a_copy_that_takes_too_long_is_given_up_with_an_error(world: World) -> None:
    world.copies.take_ns = 2 * COPY_NS_MAX
    alice = world.client("alice")
    alice.say(UpKind.QUERY, {"id": 4, **ASK})
    world.run(COPY_NS_MAX + LOOK_NS)
    [(kind, error)] = alice.take_answers()
    assert kind is DownKind.ERROR and "within 60 s" in error["message"]
    assert not world.copies.is_copying and not world.copies.there


def test_a_copy_whose_log_was_overrun_is_an_error_and_a_later_question_gets_a_copy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overrun() -> None:
        raise CopyGivenUpError("too many changes: ask again")

    alice = world.client("alice")
    with monkeypatch.context() as patch:
        patch.setattr(world.copies, "made", overrun)
        kind, error = alice.ask({"id": 4, **ASK})
    assert kind is DownKind.ERROR and "too many changes: ask again" in error["message"]
    world.run(REST * LOOK_NS)
    assert alice.ask({"id": 5, **ASK})[0] is DownKind.RESULT


def test_turns_go_on_while_a_copy_is_made_and_touch_fewer_records(world: World) -> None:
    world.copies.take_ns = 2 * S
    alice, bob = world.client("alice"), world.client("bob")
    alice.say(UpKind.QUERY, {"id": 4, **ASK})
    world.settle()
    assert bob.ask({"id": 5, "query": "mark"})[0] is DownKind.RESULT, "the copy is still being made"
    assert world.conductor._bounds.records == RECORDS_WHILE_COPYING
    world.run(2 * S + LOOK_NS)
    assert world.copies.there and world.conductor._bounds.records == world.records_per_step


# real daemons -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.long)])
def test_checks_of_an_arena_that_is_slow_to_copy_leave_no_copies(
    make_daemon: MakeDaemon, runtime_dir: Path, count: int
) -> None:
    make_daemon(patch=SLOW)
    checks = [in_background("check") for _ in range(count)]
    for check in checks:
        out, _ = check.communicate(timeout=60)
        assert check.returncode == Exit.OK and out.startswith("Sound: "), out
    eventually(lambda: not copies_in(runtime_dir), "a copy was left")
    time.sleep(0.4)  # time for a second copy, if a question was asked again
    assert not copies_in(runtime_dir)


@pytest.mark.long
def test_snapshots_one_after_the_other_and_a_check_beside_them_succeed(make_daemon: MakeDaemon) -> None:
    make_daemon()
    with connect() as client:
        paths = [client.snapshot() for _ in range(2)]
        check = in_background("check")
        while check.poll() is None:
            paths.append(client.snapshot())
        out, _ = check.communicate(timeout=60)
        assert check.returncode == Exit.OK and out.startswith("Sound: "), out
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(("missed", "status"), [(2, Exit.OK), (99, Exit.NO_DAEMON)])
def test_a_check_that_comes_too_late_for_a_copy_asks_for_the_next_one(
    daemon: Daemon, run: Run, monkeypatch: pytest.MonkeyPatch, missed: int, status: Exit
) -> None:
    paths = iter(["/nowhere"] * missed)
    snapshot = Client.snapshot
    monkeypatch.setattr(Client, "snapshot", lambda client: next(paths, None) or snapshot(client))
    ended, out, err = run("check")
    assert ended == status and ("Sound: " in out or "before this process could open it" in err), out + err


@pytest.mark.parametrize("timeout", [float("nan"), "1", True])
def test_an_impossible_timeout_of_a_snapshot_is_refused(daemon: Daemon, timeout: object) -> None:
    with connect() as client, pytest.raises(TimeoutOutOfRangeError, match="give the "):
        client.snapshot(timeout=timeout)  # type: ignore[arg-type]


def test_a_client_that_stops_waiting_and_ends_leaves_no_copy(make_daemon: MakeDaemon, runtime_dir: Path) -> None:
    make_daemon(patch=SLOW)
    with connect() as client:
        client.snapshot()
        with pytest.raises(TimerdUnavailableError, match=r"no copy of the arena within 0\.01 s"):
            client.snapshot(timeout=0.01)
        assert copies_in(runtime_dir)
    eventually(lambda: not copies_in(runtime_dir), "a copy was left")
    time.sleep(0.4)
    assert not copies_in(runtime_dir)


@pytest.mark.long
def test_no_copy_outlives_the_daemon(make_daemon: MakeDaemon, runtime_dir: Path) -> None:
    daemon = make_daemon()
    with connect() as client:
        assert [Path(client.snapshot())] == copies_in(runtime_dir)
        daemon.kill()
        assert copies_in(runtime_dir)
        daemon.start()
        assert not copies_in(runtime_dir), "the copy of a killed daemon is not removed at the next start"
    with connect() as client:
        client.snapshot()
        daemon.stop()
        assert not copies_in(runtime_dir)


def test_the_daemon_answers_while_it_copies(make_daemon: MakeDaemon, runtime_dir: Path) -> None:
    make_daemon(patch=SLOW)
    check = in_background("check")
    with connect() as client:
        eventually(lambda: copies_in(runtime_dir), "no copy was begun")
        for number in range(20):
            outcome = client.register(f"key {number}", timeout=0.001).result(timeout=5)
            assert outcome.state is State.EXPIRED
    out, _ = check.communicate(timeout=60)
    assert check.returncode == Exit.OK, out


@pytest.mark.long
@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_a_daemon_that_ends_while_it_copies_leaves_no_copy(
    make_daemon: MakeDaemon, runtime_dir: Path, ends: str
) -> None:
    daemon = make_daemon(patch=SLOW)
    check = in_background("check")
    eventually(lambda: copies_in(runtime_dir), "no copy was begun")
    getattr(daemon, ends)()
    check.kill()
    check.communicate()
    if ends == "kill":
        daemon.start()
    assert not copies_in(runtime_dir)


@pytest.mark.root("becomes another user")
def test_a_check_by_a_user_in_the_unix_group_leaves_no_copy(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    group = grp.getgrnam("daemon")
    # Not below TMPDIR, which may be in a directory that only this user may enter.
    with tempfile.TemporaryDirectory(prefix="td-", dir="/tmp") as name:
        directory = Path(name)
        monkeypatch.setenv(RUNTIME_DIR_VARIABLE, name)
        with Daemon(directory, f"--unix-group={group.gr_name}"):
            assert main(["check"]) == Exit.OK  # imports the modules first: these, too, may be in such a directory
            child = os.fork()
            if child == 0:
                status = 99
                try:
                    os.setgroups([])
                    os.setgid(group.gr_gid)
                    os.setuid(65534)
                    status = main(["check"])
                finally:
                    os._exit(status)
            _, ended = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(ended) == Exit.OK, capfd.readouterr()
            eventually(lambda: not copies_in(directory), "a copy was left")


def test_a_daemon_that_may_start_no_thread_makes_no_copy_and_goes_on(
    make_daemon: MakeDaemon, runtime_dir: Path, run: Run
) -> None:
    make_daemon(patch=NO_THREAD)
    for _ in range(2):
        status, _, err = run("check")
        assert status == Exit.NO_DAEMON and "cannot be written: can't start new thread" in err
    assert not copies_in(runtime_dir)


def test_a_half_written_copy_is_removed(make_daemon: MakeDaemon, runtime_dir: Path, run: Run) -> None:
    make_daemon(patch=FULL)
    status, _, err = run("check")
    assert status == Exit.NO_DAEMON, "the arena could not be checked"
    assert "cannot be written" in err
    assert not copies_in(runtime_dir)
