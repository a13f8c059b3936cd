"""One run of one way: its server, and two processes, of which one owns operations and the other fires."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from bench.lib.common import Failed
from timerctl.exits import Exit
from timerctl.load.harness.messages import Fired, Registered, Usage
from timerctl.load.judge import Applied, judge
from timerctl.load.stolen import Stolen
from timerctl.load.trial import NOTHING, START_NS, Options, Result, usage_of
from timerd_client.workload import Workload

from .book import COMPLETED, EXPIRED, Book, Way, play_firer, play_owner
from .polls import Polls
from .scripts import Scripts
from .threads import Threads
from .usual import Usual
from .zmq_way import Broker, UvBroker

WAYS: tuple[Way, ...] = (Scripts(), Usual(), Polls(), Broker(), UvBroker(), Threads())
READY_S = 30.0
END_S = 5.0
NEVER_NS = 1 << 63
LOST_OR_EXPIRED = (0, EXPIRED)
PATIENCE_S = 60.0  # after the plan's end. Then the run is ended, even if the way is late


def run_way(way: Way, workload: Workload) -> Result:
    """Run a way once. Raises Failed when it could not begin, or did not end in time."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="td-way-")))
        pids = stack.enter_context(way.serve(directory))
        owner = stack.enter_context(process(be_owner, way, directory, workload))
        firer = stack.enter_context(process(be_firer, way, directory, workload))
        servers = [psutil.Process(pid) for pid in pids]
        before, stolen = [usage_of(server) for server in servers], Stolen()
        start_ns = time.monotonic_ns() + START_NS
        for connection in (owner, firer):
            connection.send(start_ns)
        end = time.monotonic() + workload.count / workload.rate + PATIENCE_S
        fired: Fired = answer(firer, end)
        registered: Registered = answer(owner, end)
        used, share = [usage_of(server) for server in servers], stolen.share()
    spent_ns = sum(after.cpu_ns - earlier.cpu_ns for after, earlier in zip(used, before, strict=True))
    daemon = Usage(spent_ns, sum(usage.rss_bytes for usage in used)) if used else NOTHING
    not_looked_at = array("q", bytes(8 * len(fired.sent_ns)))
    applied = Applied(workload, [registered], [fired], [not_looked_at])
    judgement = judge(workload, [registered], applied, start_ns)
    partial = registered.failure or fired.failure
    return Result(workload, Options(), judgement, [registered], [fired], start_ns, daemon, share, 0, partial, Exit.OK)


@contextmanager
def process(play: Callable[..., None], *arguments: Any, forked: bool = False) -> Iterator[Connection]:
    """Start a process, and wait until it is ready. It is ended when the block ends.

    A forked process has the memory layout of this process, as a worker of gunicorn has its master's.
    """
    context = multiprocessing.get_context("fork") if forked else multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    target = partial(play_forked, ours, play) if forked else play
    child: BaseProcess = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        answer(ours, time.monotonic() + READY_S)
        yield ours
    finally:
        ours.close()
        child.join(END_S)
        if child.is_alive():
            child.kill()
            child.join()


def play_forked(parents: Connection, play: Callable[..., None], *arguments: Any) -> None:
    """Play in a forked process. First close its copy of the parent's side, else it would never see that side close."""
    parents.close()
    play(*arguments)


def answer(connection: Connection, end: float) -> Any:
    """A message of a process. Raises Failed when none comes until `end`."""
    try:
        if connection.poll(max(end - time.monotonic(), 0.0)):
            return connection.recv()
    except (EOFError, OSError):
        raise Failed("a process of the run has ended") from None
    raise Failed("a process of the run does not answer")


def be_owner(way: Way, directory: Path, workload: Workload, connection: Connection) -> None:
    """The process that owns operations. It sends "ready", receives the start, and sends its columns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = way.owner(directory, Book(workload))
    serve(connection, lambda start_ns: play_owner(owner, workload, start_ns), owner.close)


def be_firer(way: Way, directory: Path, workload: Workload, connection: Connection) -> None:
    """The process that fires. Its messages are those of `be_owner`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    firer = way.firer(directory)
    serve(connection, lambda start_ns: play_firer(firer, workload, start_ns), firer.close)


def serve(connection: Connection, play: Callable[[int], Any], close: Callable[[], None]) -> None:
    """Play from the time that the connection gives. Ends without a result when the connection is closed."""
    try:
        connection.send("ready")
        gc.collect()
        gc.freeze()  # as the load test's processes do
        found = play(connection.recv())
        close()
        connection.send(found)
    except (EOFError, OSError):
        pass  # the run has ended, and needs no result


def unheard(workload: Workload, owner: Registered, fired: Fired) -> int:
    """Operations that expired, or have no outcome, although their event was handled before their deadline.

    For example, a process fires events 1 and 2. Operation 2 completes, and its owner receives the outcome before the
    deadline of operation 1. Events of one process are handled in their order, so event 1 was handled by then. If
    operation 1 does not complete, its event came too early, and was lost. Only such proven cases count; this rule is
    the same for all ways. Events that were fired before register() had returned do not count.
    """
    found, handled_ns = 0, NEVER_NS
    for operation, at_ns in reversed(list(zip(fired.events.operation, fired.sent_ns, strict=False))):
        if owner.state[operation] == COMPLETED:
            handled_ns = min(handled_ns, owner.delivered_ns[operation] or NEVER_NS)
        elif owner.state[operation] in LOST_OR_EXPIRED and owner.marked_ns[operation] <= at_ns:
            found += handled_ns <= owner.sent_ns[operation] + workload.timeout_ns
    return found
