"""Clients and daemons that die, stop and come back, and clients that fork: with real processes.

Each client that ends here has a process of its own. Most of these clients are threaded: the daemon notices the end of a
process by its connection and its session, and the code of both is the same in both faces. One test shows this with an
asyncio client.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import timerd_client as td
from support.real.daemons import Daemon
from support.real.faces import Face
from support.real.patience import PATIENCE_S, eventually, stop
from support.suite.tiers import in_tiers
from timerd_client.transport.lifeline import REFUSED_NS, Lifeline
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import ClientRecord
from timerd_shm.declare.states import ClientState
from timerd_shm.host.paths import read_location
from timerd_shm.read.reader import ArenaReader
from timerd_wire.transports import TRANSPORT_VARIABLE

MakeDaemon = Callable[..., Daemon]
Spawn = Callable[..., "Child"]
AT_ONCE_S = 0.1

# For tests of NAME.live, which clients over packets do not use.
OVER_ZEROMQ = pytest.mark.parametrize("transport", ["zeromq"], indirect=True)

# Patches that the tests apply to their daemons.
NO_PIDFD = """
import os
def refuse(pid, flags=0): raise PermissionError(1, "Operation not permitted")
os.pidfd_open = refuse
"""
# The daemon closes every connection to NAME.live at once. The socket stays, because it shows that the daemon runs.
NO_LIVENESS = """
import contextlib, timerd.clients.liveness as l
def refuse(self, found, now_ns):
    with contextlib.suppress(BlockingIOError):
        while True: self._listener.accept()[0].close()
l.Watches._accept = refuse
"""
SHORT_LEASE = 'import timerd.config.config as c; c.KNOBS["lease"] = c.KNOBS["lease"]._replace(low=1)\n'
SHORT_HOUR = "import timerd.clients.silence as s; s.DEAD_AFTER_NS = 2_000_000_000\n"
SHORT_RETURN = "import timerd.clients.silence as s; s.BACK_WITHIN_NS = 1_500_000_000\n"

# A client that registers an operation on "k", and then runs each line that it reads.
CLIENT = """
import os, sys, threading
import timerd_client as td
{patch}
client = td.connect(orphans="{orphans}")
operation = client.register_wait("k", timeout=600)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
OF_ANOTHER_NAMESPACE = "import timerd_client.discovery.identity as i; i.namespace_inode = lambda kind: 1"


class Child:
    """A process of a test, which runs a script."""

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def read(self) -> str:
        """The next line that the process prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, line: str) -> None:
        """Have the process run a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.read() == "done"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts clients, each of which is ready when it is returned."""
    made: list[Child] = []

    def start(patch: str = "", orphans: str = "cancel", script: str = CLIENT) -> Child:
        made.append(Child(script.format(patch=patch, orphans=orphans)))
        assert made[-1].read() == "ready"
        return made[-1]

    yield start
    for child in made:
        child.end()


class Look:
    """A view of a daemon's arena as it is now."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def reader(self) -> ArenaReader:
        return ArenaReader.from_path(read_location(self._daemon.paths).path)

    def counter(self, name: str) -> int:
        return int(self._daemon.stats()["counters"][name])

    def pending(self) -> int:
        """Operations that have not settled."""
        with self.reader() as reader:
            return int(sum(client.pending for client in reader.clients))

    def states(self) -> list[ClientState]:
        """The states of the slots that are in use."""
        with self.reader() as reader:
            return [ClientState(client.state) for client in reader.clients if client.state]


def held_connections(daemon: Daemon) -> int:
    """The number of connections by which the daemon notices the ends of clients. The listening socket is left out."""
    over_packets = os.environ[TRANSPORT_VARIABLE] == "unix"
    path = daemon.paths.packets if over_packets else daemon.paths.liveness
    mine = psutil.Process(daemon.pid).net_connections("unix")
    return [str(each.laddr) for each in mine].count(str(path)) - 1


def made_ns(connection: Any) -> int:
    return int(connection._held_ns if isinstance(connection, Lifeline) else connection._connected_ns)


# death ------------------------------------------------------------------------------------------------------------


# Over packets, the end of the connection for commands shows the death, too. Only over ZeroMQ can a pidfd alone show it.
@pytest.mark.parametrize(
    ("how", "transport"), [("liveness", "zeromq"), ("liveness", "unix"), ("pidfd", "zeromq")], indirect=["transport"]
)
def test_a_killed_client_is_noticed_at_once(make_daemon: MakeDaemon, spawn: Spawn, how: str) -> None:
    daemon = make_daemon(patch=NO_PIDFD if how == "liveness" else NO_LIVENESS)
    look = Look(daemon)
    victims = [spawn() for _ in range(3)]
    took = []
    for left, victim in zip((2, 1, 0), victims, strict=True):
        assert look.pending() == left + 1
        victim.process.kill()
        took.append(eventually(lambda left=left: look.pending() == left, "the operation was not cancelled"))  # type: ignore[misc]
    assert min(took) < AT_ONCE_S, f"the client's end was noticed after {took} s"
    assert (look.counter("orphans_cancelled"), look.counter("clients_died")) == (3, 3)


@pytest.mark.long
@OVER_ZEROMQ
def test_without_pidfds_proc_shows_a_death_within_two_beats(make_daemon: MakeDaemon, spawn: Spawn) -> None:
    daemon = make_daemon(patch=NO_PIDFD + NO_LIVENESS)
    victim, look = spawn(), Look(daemon)
    victim.end()
    assert eventually(lambda: look.pending() == 0, "the operation was not cancelled") < 3


@pytest.mark.long
@OVER_ZEROMQ
def test_without_any_sign_of_death_a_client_is_silent_first_and_dead_much_later(
    make_daemon: MakeDaemon, spawn: Spawn
) -> None:
    daemon = make_daemon("--lease=1200ms", patch=NO_PIDFD + NO_LIVENESS + SHORT_LEASE + SHORT_HOUR)
    victim, look = spawn(patch=OF_ANOTHER_NAMESPACE), Look(daemon)
    victim.end()
    eventually(lambda: look.states() == [ClientState.SILENT], "the client was not suspected")
    assert look.pending() == 1, "silence changes nothing for the client's own operations"
    eventually(lambda: look.pending() == 0, "the client never counted as dead")
    assert look.counter("clients_died") == 1


@pytest.mark.long
def test_a_client_of_another_pid_namespace_is_noticed_by_its_connection(make_daemon: MakeDaemon, spawn: Spawn) -> None:
    daemon = make_daemon(patch=NO_PIDFD)
    victim, look = spawn(patch=OF_ANOTHER_NAMESPACE), Look(daemon)
    with look.reader() as reader:
        assert [client.pid for client in reader.clients if client.state] == [0]
    victim.end()
    # By silence alone, the client would count as dead only an hour later.
    eventually(lambda: look.pending() == 0, "the operation was not cancelled")


AIO = """
import asyncio, sys
from timerd_client import aio
{patch}
async def main():
    async with aio.connect() as client:
        operation = client.register("k", timeout=600)
        await client.flush()
        print("ready", flush=True)
        await operation
asyncio.run(main())
"""


@pytest.mark.long
def test_an_asyncio_client_is_noticed_by_its_connection(make_daemon: MakeDaemon, spawn: Spawn) -> None:
    daemon = make_daemon(patch=NO_PIDFD)
    victim, look = spawn(patch=OF_ANOTHER_NAMESPACE, script=AIO), Look(daemon)
    victim.end()
    # By silence alone, the client would count as dead only an hour later.
    eventually(lambda: look.pending() == 0, "the operation was not cancelled")


@pytest.mark.long
@OVER_ZEROMQ
def test_clients_without_room_at_the_liveness_socket_work_without_it(make_daemon: MakeDaemon, spawn: Spawn) -> None:
    daemon = make_daemon(patch="import timerd.host.descriptors as d; d.divide = lambda clients: d.Descriptors(2, 200)")
    look = Look(daemon)
    clients = [spawn() for _ in range(3)]
    eventually(lambda: look.counter("liveness_refused") >= 1, "nobody was refused")
    assert "of 64 clients, the ends of only 2 are noticed at once" in daemon.log
    for client in clients:
        client.do("client.ping(); assert client.state.value == 'live'")
    for left, client in zip((2, 1, 0), clients, strict=True):
        client.end()
        eventually(lambda left=left: look.pending() == left, "the operation was not cancelled")  # type: ignore[misc]


@pytest.mark.long
def test_a_recycled_pid_is_not_taken_for_the_client_that_had_it(make_daemon: MakeDaemon, spawn: Spawn) -> None:
    """A process with the client's pid lives, but it began at another time than the arena says."""
    daemon = make_daemon(patch=NO_LIVENESS + SHORT_RETURN)
    stranger, look = spawn(), Look(daemon)
    stop(stranger.pid)
    daemon.kill()
    path = read_location(daemon.paths).path
    with look.reader() as reader:
        offset = reader.region(Region.CLIENTS).offset
        start_ticks = reader.clients[0].start_ticks
    with path.open("r+b") as arena:
        arena.seek(offset + offset_of(ClientRecord, "start_ticks"))
        arena.write((start_ticks - 1).to_bytes(8, "little"))
    daemon.start()
    eventually(lambda: look.pending() == 0, "the other process was taken for the client")
    assert look.states() == [ClientState.TOMBSTONE]


# stops ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_client_that_was_stopped_past_its_lease_finds_its_operations_as_they_were(
    make_daemon: MakeDaemon, spawn: Spawn
) -> None:
    daemon = make_daemon("--lease=1200ms", patch=SHORT_LEASE)
    sleeper, look = spawn(), Look(daemon)
    sleeper.do('client.fire("count"); client.fire("count"); client.flush()')
    stop(sleeper.pid)
    eventually(lambda: look.states() == [ClientState.SILENT], "the client was not suspected")
    assert look.pending() == 1
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.do('for _ in range(3): client.fire("count")')
    sleeper.do("client.flush()")
    assert look.states() == [ClientState.LIVE]
    assert (look.counter("clients_silenced"), look.counter("events")) == (1, 5)
    with td.connect() as other:
        assert other.fire_wait("k", value=b"after all") == 1
    sleeper.do("assert operation.result(5).value == b'after all'")
    assert look.counter("tombstones_resumed") == 0


@pytest.mark.long
@pytest.mark.parametrize("orphans", ["cancel", "keep"])
def test_a_client_that_was_taken_for_dead_continues_its_command_numbers(
    make_daemon: MakeDaemon, spawn: Spawn, orphans: str
) -> None:
    daemon = make_daemon("--lease=1200ms", patch=SHORT_LEASE + SHORT_HOUR)
    sleeper, look = spawn(orphans=orphans), Look(daemon)
    sleeper.do('client.fire("count"); client.fire("count"); client.flush()')
    stop(sleeper.pid)
    eventually(lambda: ClientState.TOMBSTONE in look.states(), "the client was not taken for dead")
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.do('for _ in range(3): client.fire("count")')
    sleeper.do("client.flush()")
    assert look.states() == [ClientState.LIVE]
    assert (look.counter("tombstones_resumed"), look.counter("events")) == (1, 5)
    sleeper.do("assert isinstance(operation.result(5).error, td.SessionGoneError)")


@pytest.mark.long
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_daemon_that_stops_for_three_leases_cancels_no_operation(
    make_daemon: MakeDaemon, spawn: Spawn, how: str
) -> None:
    daemon = make_daemon("--lease=400ms", patch=SHORT_LEASE)
    clients, look = [spawn() for _ in range(2)], Look(daemon)
    stop(clients[0].pid)
    if how == "stopped":
        stop(daemon.pid)
    else:
        daemon.kill()
    time.sleep(1.3)  # long enough for a gap, too
    os.kill(clients[0].pid, signal.SIGCONT)
    if how == "stopped":
        os.kill(daemon.pid, signal.SIGCONT)
    else:
        daemon.start()
    for client in clients:
        client.do("client.flush(); assert not operation.done()")
    time.sleep(0.4)
    assert (look.counter("orphans_cancelled"), look.counter("clients_died"), look.pending()) == (0, 0, 2)
    with td.connect() as other:
        assert other.fire_wait("k") == 2
    for client in clients:
        client.do("assert operation.result(5)")


@pytest.mark.long
def test_after_a_restart_ends_are_noticed_at_once_again(make_daemon: MakeDaemon, spawn: Spawn) -> None:
    daemon = make_daemon(patch=NO_PIDFD)
    victims, look = [spawn(patch=OF_ANOTHER_NAMESPACE) for _ in range(2)], Look(daemon)
    daemon.kill()
    daemon.start()
    eventually(lambda: held_connections(daemon) == 2, "the clients hold no connection to the new daemon")
    for victim in victims:
        victim.do("client.fire('nobody'); client.flush(timeout=15)")  # once answered, it has shown its session
    victims[0].end()
    eventually(lambda: look.pending() == 1, "the operation was not cancelled")


@pytest.mark.long
def test_a_client_that_noticed_the_end_of_its_daemon_waits_two_seconds_for_the_next(daemon: Daemon, face: Face) -> None:
    with face.connect() as client:
        client._protocol.silence.lost_ns = 3_600_000_000_000  # silence alone does not make the daemon lost
        reached, silence = client._link.connection, client._protocol.silence
        line = reached.lifeline
        connection = line if isinstance(line, Lifeline) else reached.sockets

        eventually(lambda: line.fileno() >= 0 and time.monotonic_ns() - made_ns(connection) > REFUSED_NS)
        stop(daemon.pid)  # so that no frame is under way when the daemon ends: such a frame would show a live daemon
        stopped_ns = time.monotonic_ns()
        eventually(
            lambda: silence._looked_ns > stopped_ns + 300_000_000, "the client does not look whether its daemon runs"
        )
        start = time.monotonic()
        daemon.kill()
        eventually(lambda: not client.connected, "the client did not notice")
        took = time.monotonic() - start
        assert took >= 2, f"lost after {took} s"
        daemon.start()
        eventually(lambda: client.connected, "the client did not come back")


# forks ------------------------------------------------------------------------------------------------------------

FORKING = """
import os, sys, time
import timerd_client as td
client = td.connect()
operation = client.register_wait("k", timeout=600)
child = os.fork()
if child == 0:
    os.close(0)
    os.close(1)
    {patch}
    os._exit(0)
print("ready", flush=True)
print(child, flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("patch", ["time.sleep(600)", "os.execvp('sleep', ['sleep', '600'])"])
def test_the_death_of_a_parent_is_noticed_while_its_child_lives(
    make_daemon: MakeDaemon, spawn: Spawn, patch: str
) -> None:
    daemon = make_daemon(patch=NO_PIDFD)
    parent, look = spawn(patch, script=OF_ANOTHER_NAMESPACE + FORKING), Look(daemon)
    child = int(parent.read())
    if "exec" in patch:
        eventually(lambda: psutil.Process(child).name() == "sleep", "the child is still a copy of its parent")
    try:
        parent.end()
        eventually(lambda: look.pending() == 0, "the operation was not cancelled")
        assert psutil.Process(child).status() != psutil.STATUS_ZOMBIE
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.long
def test_the_end_of_a_child_does_not_end_its_parent(daemon: Daemon, spawn: Spawn) -> None:
    parent, look = spawn("", script=FORKING), Look(daemon)
    child = int(parent.read())
    parent.do(f"os.waitpid({child}, 0)")
    parent.do("import subprocess; subprocess.run(['true'], check=True)")
    time.sleep(0.3)
    assert (look.pending(), look.counter("clients_died")) == (1, 0)
    parent.do("client.ping()")


@pytest.mark.long
def test_a_fork_while_connections_are_made_leaves_no_copy_behind(daemon: Daemon, spawn: Spawn) -> None:
    """While one thread connects a client, another thread forks. The child has no descriptor of that connection."""
    forker = """
import os, sys, threading, time
import timerd_client as td
from timerd_client.transport.lifeline import Lifeline
from timerd_shm.host.search import find_instance
paths = find_instance()
over = False
def connect():
    while not over:
        line = Lifeline(paths)
        line.hold(bytes(16), 0)
        line.let_go()
thread = threading.Thread(target=connect)
thread.start()
left = 0
for _ in range(60):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        sockets = 0
        for number in os.listdir("/proc/self/fd"):
            try:
                sockets += os.readlink(f"/proc/self/fd/{{number}}").startswith("socket:")
            except FileNotFoundError:
                pass  # the descriptor of the listing itself
        os.write(write, b"%d" % sockets)
        os._exit(0)
    os.waitpid(child, 0)
    left += int(os.read(read, 10))
    os.close(read), os.close(write)
over = True
thread.join()
print("ready", flush=True)
print(left, flush=True)
"""
    del daemon
    assert int(spawn(script=forker).read()) == 0


# pools of workers -------------------------------------------------------------------------------------------------

APPLICATION = """
import os
import timerd_client as td

def application(environ, start_response):
    td.client().register_wait("k", timeout=600)
    if environ["PATH_INFO"] == "/die":
        os.kill(os.getpid(), 9)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
"""
WORKERS, REQUESTS_EACH = 3, 2


@pytest.fixture
def gunicorn(runtime_dir: Path) -> Iterator[str]:
    """The address of three workers, each of which ends after two requests."""
    (runtime_dir / "pool.py").write_text(APPLICATION)
    address = str(runtime_dir / "pool.sock")
    command = [sys.executable, "-m", "gunicorn", "--chdir", str(runtime_dir), "--bind", f"unix:{address}", "--preload"]
    command += ["--workers", str(WORKERS), "--max-requests", str(REQUESTS_EACH), "--log-level", "critical"]
    command += ["--graceful-timeout", "2"]  # a worker that is just being made misses the signal to end
    server = subprocess.Popen(
        [*command, "--no-control-socket", "pool:application"], stdout=subprocess.DEVNULL, env=os.environ
    )
    yield address
    server.terminate()
    server.wait(PATIENCE_S)


def ask(address: str, path: str = "/") -> str:
    """Send one request. Returns the pid of the worker that answered, or an empty text if none did."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(address)
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answer = b""
            while piece := connection.recv(4_096):
                answer += piece
        except (ConnectionError, FileNotFoundError):
            return ""
    return answer.rpartition(b"\r\n")[2].decode()


@pytest.mark.long
@pytest.mark.parametrize("recyclings", in_tiers([12, 50], 1))
def test_operations_of_recycled_workers_are_cancelled_and_no_slot_leaks(
    recyclings: int, make_daemon: MakeDaemon, gunicorn: str
) -> None:
    daemon = make_daemon("--clients=8")
    look = Look(daemon)
    eventually(lambda: ask(gunicorn) != "", "no worker answered")
    with td.connect() as keeper:
        kept = keeper.register_wait("untouched", timeout=600)
        pids: set[str] = set()
        while len(pids) < recyclings:
            pid = ask(gunicorn, "/die" if len(pids) % 10 == 9 else "/")
            pids |= {pid or f"killed after {len(pids)}"}
        eventually(lambda: look.pending() <= 1 + WORKERS * (REQUESTS_EACH - 1), "workers left operations behind")
        eventually(lambda: look.states().count(ClientState.LIVE) <= 1 + WORKERS, "workers left slots behind")
        assert not kept.done()
        assert keeper.fire_wait("untouched") == 1
        assert look.counter("clients_died") >= recyclings // 12
        assert "ArenaFull" not in daemon.log
