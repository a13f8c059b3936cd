"""The daemon as a process: files and their permissions, signals, refusals, restarts, and real sockets."""

from __future__ import annotations

import grp
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

import msgpack
from support.real.daemons import SMALL, Daemon, arenas_of
from support.real.patience import PATIENCE_S, eventually, stop
from support.rig.arenas import Memory
from support.rig.commands import Command, Key, KeyAct, Register
from support.rig.frames import encode
from support.rig.harness import MS, S
from timerd.arena.plan import plan_of
from timerd.config.command_line import read_command_line
from timerd.host.lock import InstanceLock
from timerd_shm.check.check import check
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.layout import MAGIC, Histogram, Region
from timerd_shm.declare.limits import TAKEOVER_MS
from timerd_shm.declare.states import Orphans, Outcome
from timerd_shm.declare.wire import (
    PROTOCOL_VERSION,
    CommandHeader,
    CommandKind,
    DownKind,
    OutcomeRecord,
    ReportHeader,
    UpKind,
)
from timerd_shm.host.paths import daemon_running, read_location
from timerd_shm.host.process import boot_id, namespace_inode, process_start_ticks
from timerd_wire.outlet import SUBSCRIBE, connect_outlet
from timerd_wire.proof import PROOF_SIZE

MakeDaemon = Callable[..., Daemon]
PATIENCE_MS = int(1e3 * PATIENCE_S)
PASS = "a pass of its loop"
# A daemon that writes a line to its log whenever it wakes up, whether there is something to do or not.
COUNTED = f"""
import sys
from timerd.conductor.turn import Conductor
do_work = Conductor.do_work
def counted(*arguments):
    sys.stderr.write("{PASS}\\n")
    return do_work(*arguments)
Conductor.do_work = counted
"""


class Peer:
    """A client on real sockets, of one daemon."""

    def __init__(self, daemon: Daemon, context: zmq.Context[Any]) -> None:
        self.daemon = daemon
        self.proof = os.urandom(PROOF_SIZE)
        self.session = bytes(16)
        self.arena_incarnation = 0
        self.issued = 0
        self.commands = context.socket(zmq.DEALER)
        self.outcomes = context.socket(zmq.XSUB)
        for each in (self.commands, self.outcomes):
            each.setsockopt(zmq.LINGER, 0)
        self.commands.connect(daemon.paths.commands_endpoint)
        self.outcomes.send(SUBSCRIBE)

    def say(self, kind: UpKind, body: bytes = b"", count: int = 0, first: int = 0) -> None:
        header = CommandHeader(
            PROTOCOL_VERSION, kind, 0, count, self.arena_incarnation, self.session, first or self.issued + 1, 0, 0
        )
        self.commands.send(struct_of(CommandHeader).pack(*header) + body)

    def send(self, *commands: Command) -> int:
        first = self.issued + 1
        self.issued += len(commands)
        self.say(UpKind.COMMANDS, b"".join(map(encode, commands)), len(commands), first)
        return first

    def connect(self, orphans: Orphans = Orphans.CANCEL) -> Peer:
        hello = {
            "protocol": PROTOCOL_VERSION,
            "proof": self.proof,
            "name": "peer",
            "pid": os.getpid(),
            "start_ticks": process_start_ticks(os.getpid()),
            "pid_namespace": namespace_inode("pid"),
            "time_namespace": namespace_inode("time"),
            "boot_id": boot_id(),
            "now_ns": time.monotonic_ns(),
            "orphans": int(orphans),
            "group": None,
            "takeover_ms": TAKEOVER_MS,
            "waits": [],
            "purgatories": [],
        }
        self.say(UpKind.HELLO, bytes(msgpack.packb(hello)))
        header, welcome = self.answer(DownKind.WELCOME)
        assert welcome["shared_clock"] and welcome["daemon_pid"] == self.daemon.pid
        self.session, self.arena_incarnation = welcome["session"], header.incarnation
        connect_outlet(self.outcomes, self.daemon.paths.outcomes_endpoint, self.session)
        self.report(lambda report: True)
        return self

    def answer(self, kind: DownKind) -> tuple[ReportHeader, dict[str, Any]]:
        """The next frame that ROUTER sends. It must be of this kind."""
        assert self.commands.poll(PATIENCE_MS), f"no {kind.name} came"
        frame = self.commands.recv()
        header = unpack(ReportHeader, frame)
        assert header.kind == kind, DownKind(header.kind)
        return header, msgpack.unpackb(frame[size_of(ReportHeader) :])

    def report(self, wanted: Callable[[ReportHeader], bool]) -> bytes:
        """The first report for which `wanted` is true."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self.outcomes.poll(100):
                frame: bytes = self.outcomes.recv()
                if wanted(unpack(ReportHeader, frame)):
                    return frame
        raise AssertionError("the report did not come")

    def outcome(self) -> OutcomeRecord:
        """The first outcome of the next report that has one."""
        frame = self.report(lambda report: report.outcomes > 0)
        return unpack(OutcomeRecord, frame, size_of(ReportHeader))


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a daemon that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "timerd", *SMALL, *flags],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def memory_of(daemon: Daemon) -> Memory:
    return Memory(read_location(daemon.paths).path.read_bytes())


# who may connect ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_one_process_that_opens_ever_new_clients_leaves_slots_to_others(
    daemon: Daemon, context: zmq.Context[Any]
) -> None:
    """Its share of 64 slots is 32, whatever it says of itself."""
    for _ in range(32):
        Peer(daemon, context).connect()
    one_more = Peer(daemon, context)
    with pytest.raises(AssertionError):
        one_more.connect()
    assert f"process {os.getpid()} may have 32 of 64 client slots" in daemon.log
    fires = "import timerd; timerd.connect(timeout=15).fire_wait('k')"
    subprocess.run([sys.executable, "-c", fires], check=True, timeout=60)


# garbage ----------------------------------------------------------------------------------------------------------

COLLECTED = """
import gc, sys
from timerd.conductor.loop import Loop
Loop.run = lambda loop, is_over: print(len(gc.get_objects()), gc.get_freeze_count()) or "tested"
from timerd.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_collection_of_garbage_in_a_turn_does_not_visit_what_the_start_has_made(runtime_dir: Path) -> None:
    """A full collection visits each object, and comes in the middle of a turn."""
    started = subprocess.run(
        [sys.executable, "-c", COLLECTED, *SMALL, "--ephemeral"], capture_output=True, text=True, timeout=30
    )
    assert started.returncode == 0, started.stderr
    visited, frozen = map(int, started.stdout.split())
    assert visited < 1_000 < frozen, f"a full collection visits {visited} objects, and {frozen} are frozen"


# files ----------------------------------------------------------------------------------------------------------


def test_a_ready_daemon_has_made_its_files_for_its_user_alone(daemon: Daemon, context: zmq.Context[Any]) -> None:
    paths = daemon.paths
    assert mode(paths.directory) == 0o700
    sockets = (paths.commands, paths.outcomes, paths.liveness)
    for file in (*sockets, paths.arena, paths.lock, read_location(paths).path):
        assert mode(file) == 0o600, file
    assert all(file.is_socket() for file in sockets)
    assert daemon_running(paths)
    header = memory_of(daemon).header
    assert header.pid == daemon.pid and header.start_ticks == process_start_ticks(daemon.pid)
    assert header.incarnation == read_location(paths).incarnation
    assert f"ready: instance default in {paths.directory}, pid {daemon.pid}" in daemon.log


@pytest.mark.parametrize("by", ["name", "number"])
def test_users_in_the_unix_group_may_connect_and_read_the_arena(
    make_daemon: MakeDaemon, runtime_dir: Path, context: zmq.Context[Any], by: str
) -> None:
    group = grp.getgrgid(os.getgroups()[-1] if os.getgroups() else os.getgid())
    daemon = make_daemon(f"--unix-group={group.gr_gid if by == 'number' else group.gr_name}")
    paths = daemon.paths
    Peer(daemon, context).connect()
    assert mode(runtime_dir) == 0o750
    sockets = (paths.commands, paths.outcomes, paths.liveness)
    assert [mode(path) for path in sockets] == [0o660] * 3
    assert mode(paths.arena) == mode(read_location(paths).path) == 0o640
    assert mode(paths.lock) == mode(read_location(paths).lock) == mode(read_location(paths).seed) == 0o600
    for file in (runtime_dir, *sockets, paths.arena, read_location(paths).path):
        assert file.stat().st_gid == group.gr_gid, file


def test_an_arena_may_be_a_file(make_daemon: MakeDaemon, runtime_dir: Path, context: zmq.Context[Any]) -> None:
    daemon = make_daemon(f"--arena-file={runtime_dir}/arena")
    assert read_location(daemon.paths).path == runtime_dir / "arena"
    assert (runtime_dir / "arena").read_bytes()[:8] == MAGIC
    peer = Peer(daemon, context).connect()
    peer.send(Register((Key(b"k"),), timeout_ns=5 * MS))
    assert peer.outcome().state == Outcome.EXPIRED


# signals and restarts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_cleanly_and_keeps_the_arena(daemon: Daemon, number: signal.Signals) -> None:
    location = read_location(daemon.paths)
    assert daemon._end(number) == 0
    assert f"ending: {number.name}; the arena is kept" in daemon.log
    assert location.path.exists() and read_location(daemon.paths) == location
    assert not daemon_running(daemon.paths)
    paths = daemon.paths
    assert not paths.commands.exists() and not paths.outcomes.exists() and not paths.liveness.exists()
    assert memory_of(daemon).header.pid == 0
    assert check(memoryview(memory_of(daemon).memory)) == []


@pytest.mark.long
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_restart_attaches_again_and_continues(daemon: Daemon, context: zmq.Context[Any], ending: str) -> None:
    peer = Peer(daemon, context).connect()
    peer.send(Register((Key(b"k"),), timeout_ns=60 * S), Register((Key(b"j"),), timeout_ns=5 * MS))
    assert peer.outcome().state == Outcome.EXPIRED
    incarnation = read_location(daemon.paths).incarnation
    getattr(daemon, ending)()
    daemon.start()
    assert read_location(daemon.paths).incarnation == incarnation
    assert "arena attached" in daemon.log
    # The sockets reconnect by themselves and subscribe again; the session still holds.
    peer.send(KeyAct(CommandKind.FIRE, b"k", value=b"v"))
    peer.report(lambda report: report.applied == 3)
    peer.say(UpKind.ASK)
    assert peer.commands.poll(PATIENCE_MS)
    frame = peer.commands.recv()
    header = unpack(ReportHeader, frame)
    assert (header.kind, header.outcomes) == (DownKind.REPORT, 2)
    states = [unpack(OutcomeRecord, frame, 96 + 96 * index).state for index in range(2)]
    assert states == [Outcome.EXPIRED, Outcome.COMPLETED]
    assert memory_of(daemon).count("starts") == 2


@pytest.mark.parametrize("end", [Daemon.stop, Daemon.kill])
def test_operations_that_came_due_while_no_daemon_ran_expire_at_the_start(
    daemon: Daemon, context: zmq.Context[Any], end: Callable[[Daemon], int]
) -> None:
    peer = Peer(daemon, context).connect()
    peer.send(Register((Key(b"k"),), timeout_ns=2 * S), Register((Key(b"k"),), timeout_ns=3_600 * S))
    peer.report(lambda report: report.applied == 2)
    end(daemon)
    late, _ = memory_of(daemon).records(Region.OPS)
    assert late.outcome == Outcome.NONE, "this machine took two seconds to end a daemon"
    eventually(lambda: time.monotonic_ns() > late.deadline_ns, "no time passes")
    started_ns = time.monotonic_ns()
    daemon.start()
    eventually(lambda: memory_of(daemon).count("expired", 0) == 1, "the operation did not expire")
    memory = memory_of(daemon)
    late, pending = memory.records(Region.OPS)
    assert (late.outcome, pending.outcome) == (Outcome.EXPIRED, Outcome.NONE)
    assert late.settled_ns > started_ns > late.deadline_ns, "the operation settles after the start, not when it was due"
    lateness = memory.record(Region.HISTOGRAMS, Histogram.EXPIRY_LATENESS)
    assert (lateness.count, lateness.max) == (1, late.settled_ns - late.deadline_ns)


def test_a_stopped_process_notices_the_gap(daemon: Daemon, context: zmq.Context[Any]) -> None:
    Peer(daemon, context).connect()  # with a client, turns are due for heartbeats: so a turn can be late
    stop(daemon.pid)
    time.sleep(1.8)
    os.kill(daemon.pid, signal.SIGCONT)
    eventually(lambda: memory_of(daemon).count("gaps") == 1, "no gap was counted")


def test_an_ephemeral_daemon_ends_when_idle_and_leaves_no_arena(
    make_daemon: MakeDaemon, context: zmq.Context[Any]
) -> None:
    daemon = make_daemon("--ephemeral", "--idle-exit=300ms")
    location = read_location(daemon.paths)
    peer = Peer(daemon, context).connect()
    time.sleep(0.5)
    assert daemon.process is not None and daemon.process.poll() is None, "the daemon ended, though it has a client"
    peer.say(UpKind.BYE)
    assert daemon.process.wait(PATIENCE_S) == 0
    daemon.process = None
    assert "ending: idle; the arena is removed" in daemon.log
    assert not location.path.exists() and not daemon.paths.arena.exists()


# refusals -------------------------------------------------------------------------------------------------------


def test_a_second_daemon_of_the_instance_is_refused_by_name(daemon: Daemon) -> None:
    second = run()
    assert second.returncode == 3
    assert f"instance 'default' is running in {daemon.paths.directory} (pid {daemon.pid})" in second.stderr
    assert second.stderr.count("\n") == 1
    assert daemon_running(daemon.paths)


@pytest.mark.long
def test_daemons_of_two_instances_run_side_by_side(make_daemon: MakeDaemon) -> None:
    first, second = make_daemon(), make_daemon(instance="other")
    assert read_location(first.paths).name != read_location(second.paths).name


@pytest.mark.long
def test_another_capacity_is_refused_with_both_figures_and_the_remedy(daemon: Daemon) -> None:
    daemon.stop()
    refused = run("--capacity=4096")
    assert refused.returncode == 5
    assert "capacity is 2048" in refused.stderr and "asks for 4096" in refused.stderr
    assert "start with --capacity 2048, as it was made, or remove it with every operation in it" in refused.stderr


def test_full_storage_is_a_clear_error_at_the_start_and_leaves_no_files(runtime_dir: Path) -> None:
    def little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    refused = subprocess.run(
        [sys.executable, "-m", "timerd", *SMALL], capture_output=True, text=True, timeout=30, preexec_fn=little
    )
    assert refused.returncode == 4
    assert "of 2048 operations needs" in refused.stderr and "free" in refused.stderr
    assert {file.name for file in runtime_dir.iterdir()} == {"default.lock"}


@pytest.mark.parametrize(
    ("megabytes", "flags", "says"),
    [
        (32, ("--capacity=131072",), "--capacity"),
        (64, ("--capacity=131072", "--ring-events=1048576"), "--ring-events"),
        (32, ("--capacity=131072", "--ring-events=1048576"), "--capacity"),
        (1, ("--capacity=131072",), ""),
    ],
)
def test_a_full_shared_memory_is_refused_with_both_figures_and_the_capacity_that_fits(
    runtime_dir: Path, megabytes: int, flags: tuple[str, ...], says: str
) -> None:
    script = f'mount -t tmpfs -o size={megabytes}m none /dev/shm && exec "$@"'
    inside = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("this machine does not allow a mount of a small /dev/shm")
    refused = subprocess.run(
        [*inside, sys.executable, "-m", "timerd", *flags], capture_output=True, text=True, timeout=30
    )
    assert refused.returncode == 4, refused.stderr
    needs = plan_of(read_command_line(flags, {}).settings.config).size
    assert f"of 131072 operations needs {needs} bytes" in refused.stderr
    assert f"/dev/shm has {megabytes << 20} free" in refused.stderr
    fits = re.search(r"\(No space left on device\): (--.*) would fit; else enlarge /dev/shm", refused.stderr)
    if says:
        assert fits is not None and fits[1].startswith(says), refused.stderr
        assert plan_of(read_command_line([*flags, *fits[1].split()], {}).settings.config).size <= megabytes << 20
    else:
        assert fits is None, refused.stderr


@pytest.mark.parametrize("most", [64, 20, 11, 9])
def test_a_limit_of_open_files_below_what_its_clients_need_is_refused(runtime_dir: Path, most: int) -> None:
    """The refusal comes before anything is made, because a new arena would stay behind."""
    patch = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))"
    daemon = Daemon(runtime_dir, start=False, patch=patch)
    assert daemon.spawn().wait(PATIENCE_S) == 4
    assert f"{most} files may be open, and 64 clients need 192: raise the limit" in daemon.log
    assert not arenas_of(runtime_dir) and not daemon.paths.lock.exists()


def test_a_path_that_is_too_long_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100)
    refused = run(TIMERD_RUNTIME_DIR=str(directory))
    assert refused.returncode == 4
    assert "a socket's path at most 107" in refused.stderr
    assert list(directory.iterdir()) == []


def test_a_group_that_does_not_exist_is_refused() -> None:
    refused = run("--unix-group=no-such-group")
    assert refused.returncode == 2
    assert "(flag --unix-group): no such group" in refused.stderr


def test_a_test_of_the_lock_does_not_prevent_a_start(make_daemon: MakeDaemon, runtime_dir: Path) -> None:
    daemon = make_daemon(start=False, patch="import timerd.host.lock; timerd.host.lock.ATTEMPTS = 1000")
    lock = InstanceLock(daemon.paths)
    starting = daemon.spawn()
    tries = psutil.Process(starting.pid)
    eventually(
        lambda: str(daemon.paths.lock) in [file.path for file in tries.open_files()], "the daemon did not try the lock"
    )
    lock.release()
    eventually(lambda: "ready" in daemon.log or starting.poll() is not None, "the daemon neither started nor ended")
    daemon.process = starting
    assert starting.poll() is None, daemon.log


# the service manager, idleness ----------------------------------------------------------------------------------


def test_the_daemon_says_ready_pings_the_watchdog_and_says_stopping(make_daemon: MakeDaemon, runtime_dir: Path) -> None:
    address = runtime_dir / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE_S)
        daemon = make_daemon(start=False)
        began = time.monotonic()
        daemon.process = daemon.spawn(NOTIFY_SOCKET=str(address), WATCHDOG_USEC="200000")
        assert manager.recv(100) == b"READY=1"
        assert [manager.recv(100) for _ in range(15)] == [b"WATCHDOG=1"] * 15
        # Two pings in each period of the watchdog, 0.2 s. So 15 take 1.4 s at least, however late this test reads them.
        assert 14 * 0.1 <= time.monotonic() - began < PATIENCE_S
        daemon.stop()
        said = b""
        while said != b"STOPPING=1":
            said = manager.recv(100)


def test_an_idle_daemon_with_far_operations_sleeps(make_daemon: MakeDaemon, context: zmq.Context[Any]) -> None:
    daemon = make_daemon(patch=COUNTED)
    peer = Peer(daemon, context).connect(orphans=Orphans.KEEP)
    peer.send(*(Register((Key(b"k%d" % n),), timeout_ns=7200 * S) for n in range(500)))
    peer.report(lambda report: report.applied == 500)
    peer.say(UpKind.BYE)
    eventually(lambda: memory_of(daemon).count("clients") == 0, "the client did not say goodbye")
    peer.outcomes.close()  # the socket would connect again and again, and show a session that has ended

    def passes_in(seconds: float) -> int:
        before = daemon.log.count(PASS)
        time.sleep(seconds)
        return daemon.log.count(PASS) - before

    assert PASS in daemon.log
    eventually(lambda: passes_in(0.3) == 0, "the daemon does not come to rest")
    turns = memory_of(daemon).count("turns")
    assert passes_in(2) <= 1
    assert memory_of(daemon).count("turns") - turns <= 1


# real sockets ---------------------------------------------------------------------------------------------------


def test_outcomes_travel_over_pub_and_not_over_router(daemon: Daemon, context: zmq.Context[Any]) -> None:
    peer = Peer(daemon, context).connect()
    first = peer.send(Register((Key(b"k"),), timeout_ns=60 * S), KeyAct(CommandKind.FIRE, b"k", value=b"v"))
    outcome = peer.outcome()  # read from the XSUB socket
    assert (outcome.command, outcome.state) == (first, Outcome.COMPLETED)
    assert not peer.commands.poll(100), "the ROUTER said something that nobody had asked for"


def test_the_daemon_loads_no_libzmq(daemon: Daemon, context: zmq.Context[Any]) -> None:
    """A hostile peer can end a process that has sockets of libzmq 4.3.5. And pyzmq takes memory and time to load."""
    Peer(daemon, context).connect()
    mapped = [each.path for each in psutil.Process(daemon.pid).memory_maps()]
    assert any("timerd" in path for path in mapped) and not any("zmq" in path for path in mapped)


def test_a_plain_subscriber_gets_no_outcome(daemon: Daemon, context: zmq.Context[Any]) -> None:
    peer = Peer(daemon, context).connect()
    spies = [context.socket(zmq.SUB) for _ in range(2)]
    for spy in spies:
        spy.setsockopt(zmq.SUBSCRIBE, b"")
    spies[0].connect(daemon.paths.outcomes_endpoint)  # it has no password (a session), so libzmq gives up
    connect_outlet(spies[1], daemon.paths.outcomes_endpoint, os.urandom(16))
    eventually(lambda: memory_of(daemon).count("frames_unknown_session") > 0, "the spy was not counted")
    peer.send(Register((Key(b"k"),), timeout_ns=5 * MS))
    assert peer.outcome().state == Outcome.EXPIRED
    assert not any(spy.poll(200) for spy in spies)


def test_messages_that_are_no_frames_harm_no_client(daemon: Daemon, context: zmq.Context[Any]) -> None:
    peer = Peer(daemon, context).connect()
    rude = context.socket(zmq.DEALER)
    rude.connect(daemon.paths.commands_endpoint)
    rude.send_multipart([b"a", b"b", b"c"])
    rude.send(b"")
    rude.send(os.urandom(10_000))
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(str(daemon.paths.commands))
    raw.send(b"GET / HTTP/1.1\r\n\r\n")
    peer.send(Register((Key(b"k"),), timeout_ns=5 * MS))
    assert peer.outcome().state == Outcome.EXPIRED
    # Six are counted: three parts, an empty frame, a frame of rubbish, and a connection that does not begin with a
    # greeting.
    eventually(lambda: memory_of(daemon).count("frames_malformed") == 6, "not all were counted")
    raw.close()


def test_a_snapshot_is_a_sound_arena(daemon: Daemon, context: zmq.Context[Any]) -> None:
    peer = Peer(daemon, context).connect()
    peer.send(*(Register((Key(b"k%d" % (n % 7)),), timeout_ns=60 * S) for n in range(1_000)))
    peer.report(lambda report: report.applied == 1_000)
    peer.say(UpKind.QUERY, bytes(msgpack.packb({"id": 3, "query": "snapshot"})))
    _, result = peer.answer(DownKind.RESULT)
    snapshot = Path(result["path"])
    assert [snapshot] == daemon.paths.snapshots() and mode(snapshot) == 0o600
    memory = snapshot.read_bytes()
    assert check(memoryview(memory)) == []
    assert Memory(memory).region(Region.OPS).in_use == 1_000


def test_the_death_of_a_process_is_noticed(daemon: Daemon, context: zmq.Context[Any]) -> None:
    child = os.fork()
    if child == 0:
        try:
            mine: zmq.Context[Any] = zmq.Context()
            peer = Peer(daemon, mine).connect()
            peer.send(Register((Key(b"k"),), timeout_ns=600 * S))
            peer.report(lambda report: report.applied == 1)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    eventually(lambda: memory_of(daemon).count("cancelled", 0) == 1, "the client's operation was not cancelled")
    eventually(lambda: memory_of(daemon).count("clients") == 0, "the client's slot was not freed")
