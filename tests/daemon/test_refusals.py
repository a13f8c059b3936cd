"""Refused commands without a waiting caller: the next flush raises the refusal, and the daemon's log counts it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

import pytest

import timerd as td
from support.fakes import fakedaemon
from support.fakes.fakedaemon import MS, link_state
from support.fakes.networks import Peer, World
from support.fakes.no_sockets import NOWHERE, new_protocol, no_sockets
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.shell import Run, json_of
from support.rig.commands import Key, Register
from support.rig.harness import S
from timerctl.exits import Exit
from timerd_client import aio
from timerd_client.link import base
from timerd_client.link.base import Complaints
from timerd_client.link.link import Link
from timerd_client.link.promise import Reply
from timerd_client.protocol.state import LinkState
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import DAEMON_LOST_NS, HEARTBEAT_NS
from timerd_shm.declare.wire import DownKind, ReportHeader, UpKind

MakeDaemon = Callable[..., Daemon]
TWO_QUOTAS = ("holds 2 operations", "has set 1 watermarks")
ONE_WATERMARK = r"this client has set 1 watermarks, .*larger --quota-watermarks"


def test_only_the_next_flush_raises_a_refused_advance(make_daemon: MakeDaemon) -> None:
    make_daemon("--quota-watermarks=1")
    with td.connect() as client:
        client.advance("a", 1)
        client.flush()
        for key in ("b", "c"):
            client.advance(key, 1)
        with pytest.raises(td.QuotaExceededError, match=f"2 commands were refused, the first: {ONE_WATERMARK}"):
            client.flush()
        client.advance("a", 2)
        client.flush()
        assert client.stats().commands_refused == 2


def test_close_raises_a_refused_advance_without_a_flush(
    make_daemon: MakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    make_daemon("--quota-watermarks=1")
    client = td.connect()
    client.advance("a", 1)
    client.advance("b", 1)
    with pytest.raises(td.QuotaExceededError, match=ONE_WATERMARK):
        client.close()
    assert client.closed
    assert "command 2 was refused" in caplog.text


def test_thousands_of_refusals_of_one_kind_are_two_lines_of_the_clients_log(
    make_daemon: MakeDaemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an earlier version each report with refusals made a line."""
    monkeypatch.setattr(base, "AGAIN_NS", 3_600 * S)
    make_daemon("--quota-watermarks=1")
    client = td.connect()
    for key in range(3_001):
        client.advance(f"{key}", 1)
        if key % 100 == 0:
            with suppress(td.TimerdError):
                client.flush()
    with suppress(td.TimerdError):
        client.close()
    first, last = (each.getMessage() for each in caplog.records if "was refused" in each.getMessage())
    assert "command 2 was refused" in first and "of this kind" not in first
    assert "command 3001 was refused" in last and last.endswith("(and 2,998 more of this kind before it)")


def test_complaints_of_one_kind_are_logged_once_in_ten_seconds_and_counted_meanwhile() -> None:
    complaints = Complaints()
    assert complaints.line("command 1 was refused", 0) == "command 1 was refused"
    assert complaints.line("the frame was refused", 0) == "the frame was refused", "of another kind"
    for number in range(2, 5):
        assert complaints.line(f"command {number} was refused", 9 * S) == ""
    assert complaints.line("command 5 was refused", 10 * S) == (
        "command 5 was refused (and 3 more of this kind before it)"
    )
    assert complaints.line("command 6 was refused", 11 * S) == ""
    assert complaints.rest() == ["command 6 was refused"]
    assert complaints.rest() == []


def test_flush_of_an_asyncio_client_raises_a_refused_advance(make_daemon: MakeDaemon) -> None:
    make_daemon("--quota-watermarks=1")

    async def main() -> None:
        async with aio.connect() as client:
            client.advance("a", 1)
            client.advance("b", 1)
            with pytest.raises(td.QuotaExceededError, match=ONE_WATERMARK):
                await client.flush()

    asyncio.run(main())


def test_a_refusal_does_not_replace_the_exception_that_ends_a_block(
    make_daemon: MakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    make_daemon("--quota-watermarks=1")
    with pytest.raises(ValueError, match="the caller's"), td.connect() as client:
        client.advance("a", 1)
        client.advance("b", 1)
        raise ValueError("the caller's")
    assert client.closed
    assert "close() after ValueError raises QuotaExceededError: a command was refused" in caplog.text
    caplog.clear()

    async def main() -> None:
        async with aio.connect() as client:
            client.advance("c", 1)
            client.advance("d", 1)
            raise ValueError("the caller's")

    with pytest.raises(ValueError, match="the caller's"):
        asyncio.run(main())
    assert "close() after ValueError raises QuotaExceededError" in caplog.text


def test_a_refusal_that_an_operation_or_an_answer_reports_is_not_raised_by_flush(make_daemon: MakeDaemon) -> None:
    make_daemon("--quota-operations=1")
    with td.connect() as client:
        client.register("k", timeout=60)
        refused = client.register("k", timeout=60)
        with pytest.raises(td.UnknownOperationError):
            client.cancel_wait("nobody")
        client.flush()
        assert isinstance(refused.result(5).error, td.QuotaExceededError)
        assert client.stats().commands_refused == 0


def test_a_command_at_a_shell_fails_if_it_is_refused(make_daemon: MakeDaemon, run: Run) -> None:
    make_daemon("--watermarks=1")
    status, _, err = run("advance", "a", "1")
    assert (status, err) == (Exit.OK, "")
    status, out, err = run("advance", "b", "1")
    assert (status, out) == (Exit.PROBLEM, "")
    assert (
        err.startswith("timerctl: a command was refused: the arena is full: 1 of 1 watermarks are set")
        and "--watermarks" in err
    )
    assert len(err.splitlines()) == 1
    (error,) = json_of(run, "errors")
    assert (error["error"], error["count"]) == ("ARENA_FULL", 1)


def test_the_log_counts_every_refusal_by_its_reason_except_refusals_by_an_id(make_daemon: MakeDaemon, run: Run) -> None:
    daemon = make_daemon("--quota-operations=2", "--quota-watermarks=1")
    with td.connect(name="greedy") as client:
        client.register("k", timeout=60, id="one")
        known = client.register("k", timeout=60, id="one")
        assert isinstance(known.result(5).error, td.OperationExistsError)
        client.register("k", timeout=60)
        over = [client.register("k", timeout=60) for _ in range(3)]
        assert all(isinstance(one.result(5).error, td.QuotaExceededError) for one in over)
        with pytest.raises(td.UnknownOperationError):
            client.cancel_wait("nobody")
        client.advance("a", 1)
        client.advance("b", 1)
        with pytest.raises(td.QuotaExceededError):
            client.flush()
    eventually(lambda: len(json_of(run, "errors")) == 2)
    errors = {
        error["message"].partition(", as many")[0].partition(", pend")[0]: error for error in json_of(run, "errors")
    }
    assert set(errors) == {f"client 'greedy' (slot 0, process {os.getpid()}) {it}" for it in TWO_QUOTAS}
    counters = daemon.stats()["counters"]
    assert [error["count"] for error in errors.values()] == [3, 1]
    assert (counters["rejected"], counters["refused_by_id"]) == (4, 2)
    assert all(error["first"] <= error["last"] for error in errors.values())
    eventually(lambda: f"process {os.getpid()}) holds 2 operations" in daemon.log, "the log does not name the refusal")


def test_many_refusals_of_one_kind_raise_one_error() -> None:
    world = World().until_quiet()
    client = world.client("alice")
    for _ in range(3):
        client.send(*(Register((), timeout_ns=S) for _ in range(100)))
        world.settle()
    (error,) = [record for record in world.rig.arena.all_records(Region.ERRORS) if record.count]
    assert (error.code, error.count) == (ErrorCode.INVALID_KEY, 300)


# over a network that loses frames ---------------------------------------------------------------------------------

LOST_MS = DAEMON_LOST_NS // MS


class Linked(fakedaemon.World):
    """A world whose link is a real one, so that it can be flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol = new_protocol(self.now)
        self.link = Link(NOWHERE, self.protocol, no_sockets(), lambda: self.now)
        self.exchange()
        assert link_state(self) is LinkState.LIVE

    def flushes(self) -> bool:
        """Whether a flush that begins now ends at once. Raises the errors of this flush."""
        with self.link.lock:
            flush = self.link.flushes.begin()
            if not self.link.flushes.is_done(flush):
                return False
            self.link.flushes.end(flush, 0)
        return True

    def restart(self) -> None:
        """Start another daemon on the same arena. It knows the client, and has no subscriber."""
        self.daemon.session = bytes(byte ^ 0xFF for byte in self.daemon.session)
        self.daemon.subscribed = False


def is_report(frame: bytes) -> bool:
    return unpack(ReportHeader, frame).kind == DownKind.REPORT


def has_answers(frame: bytes) -> bool:
    return unpack(ReportHeader, frame).answers > 0


@pytest.mark.parametrize("arrives", [False, True])
def test_flush_does_not_report_again_a_command_already_reported_as_unknown(arrives: bool) -> None:
    """`arrives`: the commands were applied, and only the answers were lost."""
    world = Linked()
    world.daemon.refuse = dict.fromkeys((1, 2, 4), ErrorCode.OPERATION_EXISTS)
    world.silence()
    if arrives:
        world.lose_up = lambda frame: False
    replies = [Reply(world.link) for _ in range(3)]
    for reply in replies:
        world.fire(reply=reply)
    world.pass_time(LOST_MS + 100)
    for reply in replies:
        with pytest.raises(td.TimerdUnavailableError):
            reply.get()
    world.speak()
    world.pass_time(1_500, 25)
    assert world.flushes()
    assert world.protocol.statistics().commands_refused == 0
    complaints = [complaint.partition(":")[0] for complaint in world.protocol.incoming.complaints]
    assert complaints == ["command 1 was refused", "command 2 was refused"]
    assert not world.protocol.incoming._answers_unknown
    world.fire()
    world.exchange()
    with pytest.raises(td.OperationExistsError, match="a command was refused: "):
        world.flushes()


def test_a_flush_waits_for_refusals_whose_report_was_lost() -> None:
    world = Linked()
    world.daemon.refuse[2] = ErrorCode.QUOTA_EXCEEDED
    world.fire()
    world.fire()
    world.lose_down = has_answers
    world.exchange()
    world.daemon.announce()  # the report says: two commands are applied, and there is an answer
    world.exchange()
    assert world.protocol.ledger.applied == 2
    assert not world.flushes()
    world.speak()
    world.pass_time(100)
    with pytest.raises(td.QuotaExceededError):
        world.flushes()
    assert world.flushes()
    world.pass_time(100)  # the answer is acknowledged, so the daemon frees it
    assert not world.daemon.answers
    world.fire()
    world.exchange()
    assert world.flushes()


def test_a_late_older_report_does_not_hide_refusals() -> None:
    world = Linked()
    world.daemon.refuse[2] = ErrorCode.QUOTA_EXCEEDED
    world.fire()
    world.exchange()
    late = world.daemon.report(DownKind.REPORT)
    world.fire()
    world.lose_down = has_answers
    world.exchange()
    world.daemon.announce()
    world.exchange()
    world.protocol.receive(late, world.now, published=False)
    assert not world.flushes()


@pytest.mark.parametrize("refused", [True, False])
def test_a_flush_waits_for_refusals_from_before_a_restart_and_for_no_others(refused: bool) -> None:
    world = Linked()
    if refused:
        world.daemon.refuse[1] = ErrorCode.QUOTA_EXCEEDED
    world.lose_down = lambda frame: True
    world.fire()
    world.exchange()
    assert world.daemon.applied == 1
    world.restart()
    world.lose_down = is_report
    world.pass_time(400)
    assert (link_state(world), world.protocol.ledger.applied) == (LinkState.HELLO, 1)
    assert not world.flushes()  # WELCOME says that the command was applied, but not whether it was refused
    world.speak()
    world.pass_time(1_500, 25)
    if refused:
        with pytest.raises(td.QuotaExceededError):
            world.flushes()
    assert world.flushes()


def test_a_flush_waits_for_refusals_before_a_refused_frame() -> None:
    world = Linked()
    world.daemon.refuse[1] = ErrorCode.QUOTA_EXCEEDED
    world.lose_down = lambda frame: True
    world.fire()
    world.exchange()
    error = world.daemon.message(DownKind.ERROR, {"code": int(ErrorCode.MALFORMED), "message": "a frame", "id": None})
    world.speak()
    world.protocol.receive(error, world.now, published=False)
    assert world.protocol.ledger.applied == 1
    assert not world.flushes()
    world.daemon.announce()  # the daemon's heartbeat
    world.pass_time(100)
    with pytest.raises(td.QuotaExceededError):
        world.flushes()


def test_commands_from_before_the_client_was_taken_for_dead_are_reported_as_unknown() -> None:
    world = Linked()
    world.fire()
    world.exchange()
    world.lose_down = lambda frame: True
    world.fire()
    world.fire()
    world.exchange()
    world.restart()
    world.daemon.gone = world.daemon.applied  # the client's answers were freed
    world.lose_down = is_report
    world.pass_time(HEARTBEAT_NS // MS * 5)  # so that the client says hello more than once
    assert len(world.daemon.hellos) > 2
    world.speak()
    world.pass_time(1_500, 25)
    with pytest.raises(td.SessionGoneError, match=r"instance .* lost sight of this client: 2\. "):
        world.flushes()
    assert world.flushes()
    world.restart()  # the next daemon reports the same loss again, which raises nothing
    world.fire()
    world.pass_time(1_500, 25)
    assert world.flushes()


def test_a_process_with_ever_new_errors_hides_no_error_of_another_process(caplog: pytest.LogCaptureFixture) -> None:
    """The messages quote what the process sends: each of its hellos has another wrong name."""
    world = World(capacity=64, clients=8, errors=64).until_quiet()
    mallory, alice = Peer(world, "mallory"), Peer(world, "alice")
    world.network.pids.update({mallory.routing: 70, alice.routing: 71})
    for number in range(100):
        mallory.say(UpKind.HELLO, mallory.hello(group=f"No {number}"))
    alice.say(UpKind.HELLO, alice.hello(group="Hers!"))
    world.settle()
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert sum("'No " in line for line in lines) == 16
    assert sum("further errors of process 70" in line for line in lines) == 1
    assert sum("'Hers!'" in line for line in lines) == 1
    errors = [record for record in world.rig.arena.all_records(Region.ERRORS) if record.count]
    assert sum(record.count for record in errors) == 101 and len(errors) == 18


def test_processes_that_come_and_go_hide_no_error_of_another(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred processes within a minute, each with another wrong name, have 24 entries of the log together."""
    world = World(capacity=64, clients=8, errors=64).until_quiet()
    alice = Peer(world, "alice")
    world.network.pids[alice.routing] = 71
    alice.say(UpKind.HELLO, alice.hello(group="Hers!"))
    world.settle()
    for number in range(100):
        mallory = Peer(world, f"mallory-{number}")
        world.network.pids[mallory.routing] = 1_000 + number
        mallory.say(UpKind.HELLO, mallory.hello(group=f"No {number}"))
        world.settle()
    said = errors_of(world)
    assert sum(said.values()) == 101 and len(said) == 1 + 7 + 16 + 1, said
    assert said["further errors of processes that come and go: 16 different ones stand in the log"] == 100 - 7 - 16
    assert sum("'Hers!'" in message for message in said) == 1
    assert sum("refused" in record.getMessage() for record in caplog.records) == len(said)
    world.run(61 * S)
    late = Peer(world, "late")
    world.network.pids[late.routing] = 5_000
    late.say(UpKind.HELLO, late.hello(group="Late!"))
    world.settle()
    assert any("'Late!'" in message for message in errors_of(world)), "the entries are not free again"


def test_a_refusal_is_in_the_log_before_its_client_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(capacity=64, clients=8, errors=64, quota_operations=1).until_quiet()
    alice = Peer(world, "alice").connect()
    world.run(S)
    logged: list[int] = []
    monkeypatch.setattr(world.network, "publish", lambda slot, frame: logged.append(len(errors_of(world))))
    alice.send(*(Register((Key(b"k"),), timeout_ns=S) for _ in range(2)))
    world.settle()
    assert logged == [1]


def errors_of(world: World) -> dict[str, int]:
    """How often each message of the arena's log of errors was seen."""
    records = [record for record in world.rig.arena.all_records(Region.ERRORS) if record.count]
    return {record.message.rstrip(b"\0").decode(): record.count for record in records}


def test_the_log_names_each_client_and_group_whose_share_is_used_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("support.fakes.networks.PROCESSES", {70: 7, 71: 8})
    world = World(capacity=64, clients=8, errors=64, quota_operations=4).until_quiet()
    alice, bob = Peer(world, "alice"), Peer(world, "bob")
    world.network.pids.update({alice.routing: 70, bob.routing: 71})
    alice.connect(group="workers")
    bob.connect()
    for peer in (alice, bob):
        peer.send(*(Register((Key(b"k"),), timeout_ns=S) for _ in range(6)))
    alice.send(*(Register((Key(b"k"),), timeout_ns=S, for_group=True) for _ in range(5)))
    world.settle()
    said = {message.partition(" holds 4 operations")[0]: count for message, count in errors_of(world).items()}
    assert said == {
        "client 'alice' (slot 0, process 70)": 2,
        "client 'bob' (slot 1, process 71)": 2,
        "group 'workers' (made by process 70)": 1,
    }
    assert all(f"refused: QuotaExceededError: {message}" in caplog.text for message in errors_of(world))


def test_a_client_that_comes_back_under_ever_new_names_has_sixteen_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.fakes.networks.PROCESSES", {70: 7, 71: 8})
    world = World(capacity=64, clients=8, errors=64, quota_operations=1).until_quiet()
    for number in range(40):
        peer = Peer(world, f"peer-{number}")
        world.network.pids[peer.routing] = 70
        peer.connect()
        peer.send(*(Register((Key(b"k"),), timeout_ns=S) for _ in range(2)))
        world.settle()
        peer.say(UpKind.BYE)
        world.settle()
    said = errors_of(world)
    assert len(said) == 17 and sum(said.values()) == 40
    assert said["further errors of process 70: 16 different ones stand in the log"] == 24
