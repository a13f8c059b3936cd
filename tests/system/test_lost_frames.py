"""Frames that real sockets lose: slow subscribers, late joiners, connections cut in the middle. Nothing comes twice.

Clients ask again for frames that PUB drops or a cut connection loses: every outcome, refusal and answer comes once.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, stop
from timerd.zmtp.connection import QUEUED_MAX
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

MANY = 20_000
REPEATED = 60
assert MANY * REPEATED * 5 > QUEUED_MAX, "the values of all outcomes are more than the queue holds"
ROOM = (f"--capacity={MANY + 4_096}", f"--quota-operations={MANY + 4_096}", "--ring-events=65536", "--blocks=262144")

SLOW = f"""
import timerd as td
with td.connect(timeout=10) as client:
    batch = client.register_many([f"k{{n}}" for n in range({MANY})], timeout=None)
    told = []
    batch.add_done_callback(lambda _: told.append(1))
    client.flush(timeout=10)
    print("ready", flush=True)
    outcomes = batch.outcomes({PATIENCE_S})
    assert [outcome.value for outcome in outcomes] == [b"%d" % n * {REPEATED} for n in range({MANY})]
    client.flush(timeout=10)
    assert told == [1] and client.stats().outcomes_unknown == 0, (told, client.stats())
print("done", flush=True)
"""


@pytest.mark.long
def test_a_subscriber_that_stood_still_gets_each_outcome_once(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(*ROOM)
    slow = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert slow.stdout is not None and slow.stdout.readline() == "ready\n"
        stop(slow.pid)
        with td.connect(timeout=PATIENCE_S) as client:
            for first in range(0, MANY, 10):  # few at a time, so that there are many reports
                numbers = range(first, first + 10)
                client.fire_many([f"k{n}" for n in numbers], values=[b"%d" % n * REPEATED for n in numbers])
                client.flush(timeout=PATIENCE_S)
            assert client.register("another", timeout=0).result(PATIENCE_S).state is td.State.EXPIRED
        dropped = daemon.stats()["counters"]
        slow.send_signal(signal.SIGCONT)
        rest, _ = slow.communicate(timeout=PATIENCE_S)
        assert (slow.returncode, rest) == (0, "done\n")
        assert daemon.stats()["counters"]["asked_again"] > dropped["asked_again"], "nothing was dropped"
    finally:
        if slow.poll() is None:
            slow.kill()
            slow.wait()


class Cutter:
    """Listens where a daemon's clients look for it, forwards bytes both ways, and cuts connections at random places."""

    def __init__(self, listen: Path, to: Path, rng: random.Random) -> None:
        self.to, self.rng = to, rng
        self.cuts = 0
        self.open: list[socket.socket] = []
        self.ended = False
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(listen))
        self.listener.listen(64)
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self.to))
            self.open += [near, far]
            for source, sink in ((near, far), (far, near)):
                # A cut comes after the greeting of ZMTP and a few frames, anywhere, also in the middle of a
                # frame. A round's largest frame has 4 KB, so most connections carry some frames.
                left = self.rng.randrange(400, 20_000)
                thread = threading.Thread(target=self.pump, args=(source, sink, left))
                self.threads.append(thread)
                thread.start()

    def pump(self, source: socket.socket, sink: socket.socket, left: int) -> None:
        try:
            while left > 0 or self.ended:
                data = source.recv(4_096)
                if not data:
                    break
                sink.sendall(data if self.ended else data[:left])
                left -= len(data)
            self.cuts += left <= 0
        except OSError:
            pass
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(PATIENCE_S)
        for each in self.open:
            each.close()


def enough(cutters: list[Cutter]) -> bool:
    """Whether both kinds of connections were cut, four times or more in all."""
    cuts = [cutter.cuts for cutter in cutters]
    return min(cuts) >= 1 and sum(cuts) >= 4


def test_connections_cut_in_the_middle_of_a_frame_lose_and_repeat_no_outcome(
    daemon: Daemon, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = daemon.paths.directory / "cut"
    behind.mkdir(mode=0o700)
    for file in daemon.paths.directory.iterdir():
        if file not in (behind, daemon.paths.commands, daemon.paths.outcomes):
            (behind / file.name).hardlink_to(file)
    cutters = [
        Cutter(behind / path.name, path, random.Random(rng.random()))
        for path in (daemon.paths.commands, daemon.paths.outcomes)
    ]
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(behind))
    told: dict[int, int] = {}

    def counter(number: int) -> Callable[[object], None]:
        def count(_: object) -> None:
            told[number] = told.get(number, 0) + 1

        return count

    rounds = 0
    try:
        with td.connect(timeout=PATIENCE_S) as client:
            taken = client.register("taken", timeout=None, id="taken")
            end = time.monotonic() + PATIENCE_S
            while not enough(cutters) and time.monotonic() < end:
                rounds += 1
                batch = [client.register(f"k{n}", timeout=None) for n in range(20)]
                for n, operation in enumerate(batch):
                    operation.add_done_callback(counter(20 * rounds + n))
                assert client.fire_wait("k0", value=b"0" * 200, timeout=PATIENCE_S) == 1
                for n in range(1, 20):
                    client.fire(f"k{n}", value=b"%d" % n * 100)
                refused = client.register("x", timeout=1, id=b"taken").result(PATIENCE_S)
                assert isinstance(refused.error, td.OperationExistsError)
                outcomes = [operation.result(PATIENCE_S) for operation in batch]
                assert [outcome.state for outcome in outcomes] == [td.State.COMPLETED] * 20
                assert outcomes[7].value == b"7" * 100
            assert taken.cancel_wait()
            for cutter in cutters:
                cutter.ended = True
            client.flush(timeout=PATIENCE_S)
            assert client.stats().outcomes_unknown == 0
    finally:
        for cutter in cutters:
            cutter.close()
    assert set(told.values()) == {1} and len(told) == 20 * rounds
    assert enough(cutters), f"too few connections were cut: {[cutter.cuts for cutter in cutters]}"
    assert daemon.stats()["counters"]["completed"] == 20 * rounds
