"""Workers that drain, each in a process of its own: the calls that they have not begun go to other workers.

Each end of a worker or of a lifespan flushes, and none waits for long, not even for a loop that hangs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from textwrap import dedent
from typing import Self

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually, stop
from support.real.registries import serve

RUNS_BLOCKS = """
import sys
names = {}
for line in sys.stdin:
    names["found"] = "done"
    exec(eval(line), names)
    print(names["found"], flush=True)
"""
WORKER = f"""
    import asyncio, os, signal, threading
    import timerd as td
    from timerd_client import aio
    from timerd_client.web import requests

    def connected():
        return td.connect(group=group, timeout={PATIENCE_S})

    def serve(client, name):
        calls = td.Calls()
        calls.handler(name)(run)
        client.serve(calls, at_once=4)

    def run(call):
        client.fire_wait(f"{{group}}/began", value=call.payload)
        client.register(f"{{group}}/end", timeout=60).result()
        client.fire_wait(f"{{group}}/ended", value=call.payload)

    signals = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    requests.drain_at(signal.SIGTERM)
    client = connected()
"""


class Worker:
    """A process of a group, which drains at SIGTERM. It runs Python for the test, block by block."""

    def __init__(self, group: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", RUNS_BLOCKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.do(f"group = {group!r}", WORKER)

    def do(self, *blocks: str) -> str:
        """Run these blocks. Returns what the last one has left in `found`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        answer = ""
        for block in blocks:
            self._process.stdin.write(f"{dedent(block)!r}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, f"the process has ended at\n{block}\n{self._process.communicate()[1]}"
        return answer.rstrip()

    def holds(self, block: str) -> bool:
        """Run a block that leaves True or False in `found`."""
        return self.do(block) == "True"

    def drain(self) -> None:
        """Send SIGTERM, and wait until the handlers have run."""
        self._process.send_signal(signal.SIGTERM)
        eventually(lambda: self.do("found = signals") == "[15]", "the server's own handler was not called")

    def end(self) -> str:
        """End the process in the ordinary way, by an end of file. Returns what it has written to stderr."""
        _, said = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, said
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # also what it has forked
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group of the test alone: all tests of this module share a daemon."""
    return f"g{abs(hash(request.node.nodeid)):x}"[:20]


@pytest.fixture
def asker(shared_daemon: Daemon, group: str) -> Iterator[td.Client]:
    """A client of the test in the same group."""
    with td.connect(group=group, timeout=PATIENCE_S) as client:
        yield client


AIO = """
    async def run_in_loop(call):
        await asyncio.to_thread(run, call)

    async def main():
        calls = td.Calls()
        calls.handler("h")(run_in_loop)
        (await aio.connect(group=group)).serve(calls, at_once=4)
        served.set()
        await asyncio.Event().wait()

    served = threading.Event()
    threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
    served.wait()
"""


@pytest.mark.parametrize("served", ["serve(client, 'h')", AIO], ids=["threads", "asyncio"])
def test_a_worker_that_drains_gives_back_what_has_not_begun_while_its_handler_runs(
    asker: td.Client, group: str, served: str
) -> None:
    since = asker.mark()
    with Worker(group) as worker:
        for number in b"0123":
            asker.call_later("h", 0, bytes([number]))
        asker.flush()
        worker.do(served)
        began = asker.register(f"{group}/began", since=since, timeout=60).result(PATIENCE_S).value
        eventually(lambda: sorted(one.state for one in asker.calls()) == ["delivered"] * 3 + ["runs"])
        worker.drain()
        came: list[bytes] = []
        serve(asker, "h", lambda call: came.append(call.payload))
        left = {b"0", b"1", b"2", b"3"} - {began}
        eventually(lambda: set(came) == left, f"{came} came, {asker.calls()}")
        asker.call_later("h", 0, b"new")
        eventually(lambda: set(came) == {*left, b"new"})
        # A handler that has returned is acknowledged a little later.
        eventually(lambda: [(one.payload, one.state) for one in asker.calls()] == [(began, "runs")])
        asker.fire(f"{group}/end")
        ended = asker.register(f"{group}/ended", since=since, timeout=60).result(PATIENCE_S)
        assert ended.value == began and len(came) == 4
        worker.end()
    eventually(lambda: not asker.calls())


ABANDONED = """
    async def view(request, wait):
        with request.entered():
            await wait(aio.client())

    async def completed(client):
        async for one in aio.as_completed([client.register("never", timeout=60)]):
            pass

    waits = (
        lambda client: client.register("never", timeout=60).result(),
        lambda client: client.wait_for(lambda: False, "never", timeout=60),
        completed,
    )
    left = [requests.begin() for _ in waits]
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(view(*one)) for one in zip(left, waits)]
    while not all(one._enders for one in left):
        loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()  # its tasks are not ended
    other = requests.begin()
"""


def test_the_requests_of_a_loop_that_has_ended_hold_up_no_drain(asker: td.Client, group: str) -> None:
    with Worker(group) as worker:
        worker.do(ABANDONED)
        worker.drain()
        assert worker.do("found = {one.reason for one in [*left, other]}") == "{'drain'}"


def test_peers_that_disconnect_are_noticed_although_some_requests_are_of_a_loop_that_has_ended(
    asker: td.Client, group: str
) -> None:
    peers = """
        import socket
        from timerd_client.web.disconnects import disconnects
        pairs = [socket.socketpair() for _ in (*left, other)]
        for request, (mine, theirs) in zip([*left, other], pairs):
            disconnects().watch(mine.fileno(), request)
    """
    with Worker(group) as worker:
        worker.do(ABANDONED, peers)
        for number in range(4):
            worker.do(f"pairs[{number}][1].close()")
            is_noticed = f"found = [*left, other][{number}].reason == 'disconnect'"
            eventually(partial(worker.holds, is_noticed), f"the end of peer {number} is not noticed")


MAKES_LINKS = """
    import sys
    made = []

    def make(frame, event, argument):
        if frame.f_code.co_name == "__iter__" and len(made) < 50:
            made.append(td.Client(group=group))
            made[-1]._live()
        return make

    def meanwhile(what):
        sys.settrace(make)
        try:
            what()
        finally:
            sys.settrace(None)
"""


def test_a_drain_and_an_exit_reach_all_links_while_other_threads_make_links(asker: td.Client, group: str) -> None:
    """The process makes a link at each line of Python that lists the links, as other threads may do."""
    with Worker(group) as worker:
        worker.do(MAKES_LINKS, "serve(client, 'h')", "meanwhile(requests.drain)")
        eventually(lambda: worker.holds("found = client._link.protocol.inbox._is_leaving"))
        assert worker.holds("found = bool(made)"), "nothing was made: the test sees nothing"
        worker.do("for number in range(1, 20_001): client.advance(f'{group}/last', number)", "sys.settrace(make)")
        worker.end()
        assert asker.watermark(f"{group}/last") == 20_000


def test_a_process_that_drains_takes_no_calls_whatever_it_serves_or_connects_later(
    asker: td.Client, group: str
) -> None:
    later = """
        fresh = connected()
        serve(fresh, "h")
        serve(client, "h2")
        async def in_a_new_loop():
            late = await aio.connect(group=group)
            serve(late, "h")
            served.set()
            await asyncio.Event().wait()

        served = threading.Event()
        threading.Thread(target=asyncio.run, args=(in_a_new_loop(),), daemon=True).start()
        served.wait()
        fresh.flush()
        client.flush()
    """
    with Worker(group) as worker:
        worker.do("serve(client, 'h')", "unused = td.Client(group=group)")
        worker.drain()
        worker.do(later, "serve(unused, 'h')")
        came: list[str] = []
        calls = td.Calls()
        for name in ("h", "h2"):
            calls.handler(name)(lambda call: came.append(call.name))
        asker.serve(calls, at_once=1)
        for name in 4 * ("h", "h2"):
            asker.call_later(name, 0)
        eventually(lambda: len(came) == 8, f"{came} came, {asker.calls()}")


def test_a_fork_of_a_process_that_drains_takes_calls(asker: td.Client, group: str) -> None:
    since = asker.mark()
    forks = """
        child = os.fork()
        if child == 0:
            serve(client, "forked")
            threading.Event().wait()
    """
    with Worker(group) as worker:
        worker.drain()
        try:
            worker.do(forks)
            asker.call_later("forked", 0, b"forked")
            began = asker.register(f"{group}/began", since=since, timeout=60).result(PATIENCE_S)
            assert began.value == b"forked"
        finally:
            worker.do("os.kill(child, signal.SIGKILL)", "os.waitpid(child, 0)")


STOPS_THE_DAEMON = """
    from timerd_client.link import process_end

    def flush(patience_s):
        process_end.PATIENCE_S = patience_s
        process_end.process_end.flush_before_a_signal([client._link])
        found = client._link.protocol.ledger
        return found.issued - found.applied

    client.fire_wait("before")
"""


def test_a_flush_before_a_signal_takes_no_time_from_later_flushes(
    make_daemon: Callable[..., Daemon], group: str
) -> None:
    daemon = make_daemon()
    with Worker(group) as worker:
        worker.do(STOPS_THE_DAEMON)
        for _ in range(3):
            stop(daemon.pid)
            try:
                assert worker.do("client.fire('k')", "found = flush(0.05)") == "1"
            finally:
                os.kill(daemon.pid, signal.SIGCONT)
            worker.do("client.flush()")
        send = "for number in range(1, 20_001): client.advance('mark', number)"
        assert worker.do(send, "found = flush(2)") == "0"
        worker.do(send.replace("20_001", "30_001"))
        said = worker.end()
    with td.connect() as asker:
        assert asker.watermark("mark") == 30_000
    assert said.count("timerd client: the lifespan of the application ends, and 1 command") == 3, said
    assert "the process ends" not in said


SIDE_LOOPS = """
    from timerd_client.web.asgi import _flush_all

    side, hangs = asyncio.new_event_loop(), asyncio.new_event_loop()
    for loop in (side, hangs):
        threading.Thread(target=loop.run_forever, daemon=True).start()

    async def use():
        return await aio.connect(group=group)

    of_side, of_hangs = (asyncio.run_coroutine_threadsafe(use(), loop).result() for loop in (side, hangs))

    async def main():
        def many():
            for number in range(1, 2001):
                client.advance(f"{group}/threads", number)
                of_side.advance(f"{group}/side", number)
            sent.set()

        sent = threading.Event()
        side.call_soon_threadsafe(many)
        await asyncio.to_thread(sent.wait)
        await _flush_all()
        ledgers = [one._link.protocol.ledger for one in (client, of_side)]
        return sum(one.issued - one.applied for one in ledgers)
"""


def test_the_clients_of_all_running_loops_are_flushed_at_the_end_of_a_lifespan(asker: td.Client, group: str) -> None:
    with Worker(group) as worker:
        assert worker.do(SIDE_LOOPS, "found = asyncio.run(main())") == "0"
    assert [asker.watermark(f"{group}/{where}") for where in ("threads", "side")] == [2000, 2000]


def test_a_lifespan_ends_although_all_threads_of_the_loop_stand_in_calls_that_block(
    asker: td.Client, group: str
) -> None:
    """If the flush needed one of these threads, it would wait for ever, and uvicorn would not end."""
    blocked = """
        from concurrent.futures import ThreadPoolExecutor
        from timerd_client.web import asgi
        released = threading.Event()

        async def main():
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            blocks = asyncio.get_running_loop().run_in_executor(None, released.wait)
            try:
                async with asyncio.timeout(20):
                    await asgi._flush_all()
            finally:
                released.set()
            await blocks
            return len(of_threads)

        of_threads = [client]
        client.advance(f"{group}/blocked", 7)
        found = asyncio.run(main())
    """
    with Worker(group) as worker:
        assert worker.do(blocked) == "1"
    assert asker.watermark(f"{group}/blocked") == 7


def test_a_loop_that_hangs_holds_up_the_end_of_a_lifespan_for_a_limited_time(asker: td.Client, group: str) -> None:
    hangs = """
        from timerd_client.web import asgi
        asgi.PATIENCE_S = 0.05
        of_hangs.fire("k")
        hung = threading.Event()
        hangs.call_soon_threadsafe(hung.wait)
        asyncio.run(asgi._flush_all())
        hung.set()
    """
    with Worker(group) as worker:
        worker.do(SIDE_LOOPS, hangs)
        said = worker.end()
    assert "the lifespan of the application ends" in said and "its event loop is held up" in said
