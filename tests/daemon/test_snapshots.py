"""Copies of the arena, which the daemon makes for who asks, and removes: on a manual clock, and with real daemons."""

from __future__ import annotations

import grp
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemons import Daemon
from harness import MS, S
from networks import World
from patience import eventually
from shell import Run, in_background
from timerctl import main
from timerctl.exits import Exit
from timerd.snapshots import KEEP_NS, REST
from timerd_client import connect
from timerd_shm.declare.errors import TimerdUnavailableError
from timerd_shm.declare.wire import DownKind, UpKind
from timerd_shm.host.paths import RUNTIME_DIR_VARIABLE

MakeDaemon = Callable[..., Daemon]
ASK = {"query": "snapshot"}
# A copy takes so long that its asker asks again meanwhile.
SLOW = """
import time
import timerd.snapshots
write = timerd.snapshots.write_snapshot
def slow(*arguments):
    write(*arguments)
    time.sleep(0.3)
timerd.snapshots.write_snapshot = slow
"""
FULL = """
import io
import timerd.arena.snapshot
def full(*arguments, **knobs):
    file = io.open(*arguments, **knobs)
    class Full:
        def __enter__(self): return self
        def __exit__(self, *_): file.close()
        def write(self, what):
            raise OSError(28, "No space left on device")
    return Full()
timerd.arena.snapshot.open = full
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
    assert world.copies.made == 1


def test_a_copy_is_removed_when_the_clients_that_asked_have_ended(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    for client in (alice, bob):
        client.say(UpKind.QUERY, {"id": 4, **ASK})
    world.settle()
    assert (world.copies.made, world.copies.there) == (1, 1), "one copy answers all who asked in a turn"
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
    world.run(KEEP_NS - MS)
    assert world.copies.made == 1 and not bob.take_answers()
    world.run(2 * MS)
    [(kind, second)] = bob.take_answers()
    assert kind is DownKind.RESULT and second["path"] != first["path"]
    assert (world.copies.made, world.copies.there) == (2, 1)


def test_no_copy_is_made_for_a_client_that_has_ended(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.ask({"id": 4, **ASK})
    bob.say(UpKind.QUERY, {"id": 4, **ASK})
    world.settle()
    bob.say(UpKind.BYE)
    world.run(2 * KEEP_NS)
    assert world.copies.made == 1


def test_copying_takes_a_tenth_of_the_time_at_most(world: World) -> None:
    world.copies.take_ns = 2 * S
    began_ns = world.clock.now_ns()
    for number in range(5):
        client = world.client(f"client {number}")
        client.say(UpKind.QUERY, {"id": 4, **ASK})
        world.settle()
        client.say(UpKind.BYE)
        world.run(REST * world.copies.take_ns // 2)
    assert world.copies.made * world.copies.take_ns * (REST + 1) <= world.clock.now_ns() - began_ns + 20 * S
    assert world.copies.made == 3


def test_a_copy_that_cannot_be_written_is_an_error_of_each_question_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    def full() -> str:
        nonlocal tried
        tried += 1
        world.clock.move(100 * MS)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world.copies, "make", full)
    alice = world.client("alice")
    for _ in range(2):
        kind, error = alice.ask({"id": 9, **ASK})
        assert kind is DownKind.ERROR and error["id"] == 9 and "No space left" in error["message"]
    assert tried == 1


# real daemons -----------------------------------------------------------------------------------------------------


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
    time.sleep(0.4)  # a second copy, of a question that was asked again
    assert not copies_in(runtime_dir)


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


def test_no_copy_outlives_the_daemon(make_daemon: MakeDaemon, runtime_dir: Path) -> None:
    daemon = make_daemon()
    with connect() as client:
        assert [Path(client.snapshot())] == copies_in(runtime_dir)
        daemon.kill()
        assert copies_in(runtime_dir)
        daemon.start()
        assert not copies_in(runtime_dir), "what a killed one has left is removed at the start"
    with connect() as client:
        client.snapshot()
        daemon.stop()
        assert not copies_in(runtime_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_check_by_a_member_of_the_unix_group_leaves_no_copy(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    group = grp.getgrnam("daemon")
    # Not below TMPDIR, which may be in a directory of this user's own.
    with tempfile.TemporaryDirectory(prefix="td-", dir="/tmp") as name:
        directory = Path(name)
        monkeypatch.setenv(RUNTIME_DIR_VARIABLE, name)
        with Daemon(directory, f"--unix-group={group.gr_name}"):
            assert main(["check"]) == Exit.OK  # which imports what may be in such a directory as well
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


def test_a_half_written_copy_is_removed(make_daemon: MakeDaemon, runtime_dir: Path, run: Run) -> None:
    make_daemon(patch=FULL)
    status, _, err = run("check")
    assert status == Exit.PROBLEM and "cannot be written" in err
    assert not copies_in(runtime_dir)
