"""Three witnesses beside an attack. Each is an ordinary process that notes how long it waits, and what goes wrong.

    member      a client that is connected: a registration, its event, its outcome
    newcomer    connects, makes its first round trip, and closes
    call        a worker of a group: from call_later(name, 0) to the begin of the handler

Like a sidecar, the member runs in a pid namespace of its own, if this process may make one.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import timerd as td
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_wire.transports import Transport

PATIENCE_S = 10.0
TIMEOUT_S = 5.0  # of operations, which the witness completes itself at once
OUTCOME_S = 3 * TIMEOUT_S
CLONE_NEWPID = 0x20000000
WRONG_MAX = 20

Trip = Callable[[], None]  # one request; raises Unavailable, Wrong, or an error of the client


class Unavailable(Exception):
    """The daemon did not serve the request."""


class Wrong(Exception):
    """The daemon served the request wrongly."""


class Kind(NamedTuple):
    """A kind of witness."""

    trips: Callable[[td.Client | None, str, Transport], contextlib.AbstractContextManager[Trip]]
    interval_s: float  # between two requests
    p99_ms_max: float  # the gate's bound
    is_connected: bool = True  # whether it has one client for all requests
    is_apart: bool = False  # in another pid namespace


class Seen(NamedTuple):
    """The results of a witness between two looks."""

    took_ns: list[int]
    unavailable: int  # outcomes and requests that were UNAVAILABLE
    wrong: list[str]  # anything else that was not right


def round_trip(client: td.Client, key: str) -> None:
    """Register an operation, complete it, and wait for its outcome."""
    operation = client.register(key, timeout=TIMEOUT_S)
    client.fire(key, value=b"v")
    outcome = operation.result(OUTCOME_S)
    if outcome.state is td.State.UNAVAILABLE:
        raise Unavailable
    if (outcome.state, outcome.value) != (td.State.COMPLETED, b"v"):
        raise Wrong(f"{outcome}"[:200])


@contextlib.contextmanager
def member_trips(client: td.Client | None, instance: str, transport: Transport) -> Iterator[Trip]:
    assert client is not None
    numbers = iter(range(1 << 62))
    yield lambda: round_trip(client, f"witness/{next(numbers)}")


@contextlib.contextmanager
def newcomer_trips(client: td.Client | None, instance: str, transport: Transport) -> Iterator[Trip]:
    def trip() -> None:
        with td.connect(instance, timeout=PATIENCE_S, name="newcomer", transport=transport) as newcomer:
            round_trip(newcomer, "witness/newcomer")

    yield trip


@contextlib.contextmanager
def call_trips(client: td.Client | None, instance: str, transport: Transport) -> Iterator[Trip]:
    assert client is not None
    begun = threading.Event()
    calls = td.Calls()

    @calls.handler("witness")
    def handle(call: td.Call) -> None:
        begun.set()

    def trip() -> None:
        begun.clear()
        client.call_later("witness", 0)
        if not begun.wait(OUTCOME_S):
            raise Unavailable

    client.serve(calls)
    yield trip


WITNESSES = {
    "member": Kind(member_trips, 0.002, 20.0, is_apart=True),
    "newcomer": Kind(newcomer_trips, 0.02, 100.0, is_connected=False),
    "call": Kind(call_trips, 0.005, 50.0),
}


class Witness:
    """A witness, from outside."""

    def __init__(self, name: str, pipe: Any) -> None:
        self.name = name
        self._pipe = pipe

    def look(self) -> Seen:
        """Return the results since the last look, after the request that the witness is making."""
        self._pipe.send("look")
        if not self._pipe.poll(3 * PATIENCE_S):
            return Seen([], 1, [f"the witness {self.name!r} did not answer"])
        return Seen(*self._pipe.recv())

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._pipe.send("end")


def enter_namespace() -> None:
    """Go on in a child, the first process of a new pid namespace. If that is not allowed, go on in this process."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID):
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)


def stand(name: str, paths: InstancePaths, transport: Transport, pipe: Any) -> None:
    """The process of a witness."""
    kind = WITNESSES[name]
    if kind.is_apart:
        enter_namespace()
    os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
    with contextlib.ExitStack() as stack:
        client = None
        if kind.is_connected:
            client = td.connect(paths.instance, timeout=PATIENCE_S, name=name, group="witnesses", transport=transport)
            stack.enter_context(client)
        trip = stack.enter_context(kind.trips(client, paths.instance, transport))
        trip()
        pipe.send("ready")
        observe(trip, kind.interval_s, pipe)


def observe(trip: Trip, interval_s: float, pipe: Any) -> None:
    """Make requests until the pipe says "end". After "look", send what was seen since the last look."""
    seen = Seen([], 0, [])
    while True:
        if pipe.poll(interval_s):
            if pipe.recv() == "end":
                return
            pipe.send(seen._replace(wrong=seen.wrong[:WRONG_MAX]))
            seen = Seen([], 0, [])
        before_ns = time.monotonic_ns()
        try:
            trip()
        except (td.TimerdUnavailableError, TimeoutError, Unavailable):
            seen = seen._replace(unavailable=seen.unavailable + 1)
        except (td.TimerdError, Wrong) as error:
            seen.wrong.append(repr(error)[:200])
        seen.took_ns.append(time.monotonic_ns() - before_ns)


@contextlib.contextmanager
def witnesses(paths: InstancePaths, transport: Transport, names: Iterable[str] = WITNESSES) -> Iterator[list[Witness]]:
    """Run the witnesses with these names. Each has been served when the block begins."""
    context = multiprocessing.get_context("spawn")
    standing = []
    try:
        for name in names:
            ours, theirs = context.Pipe()
            process = context.Process(target=stand, args=(name, paths, transport, theirs), daemon=True)
            process.start()
            standing.append((Witness(name, ours), ours, process))
        for witness, ours, _ in standing:
            if not ours.poll(3 * PATIENCE_S):
                raise SystemExit(f"overload: the witness {witness.name!r} did not begin")
            ours.recv()
        yield [witness for witness, _, _ in standing]
    finally:
        for witness, _, _ in standing:
            witness.end()
        for _, _, process in standing:
            process.join(1)
            if process.is_alive():
                process.kill()
                process.join()
