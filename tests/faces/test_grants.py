"""Workers time out, drop their operations, or end: no job is lost, and no job is done twice.

A job is a limited event. Once `fire_wait` has reported that an operation got the job, some caller must see the job.
"""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually

FACES = ("threaded", "aio")
JOBS = 10

PROGRAMS = {
    "threaded": """
import os, sys, timerd as td
client, kept = td.connect(), []
for _ in range({jobs}):
    operation = client.register("jobs", timeout=None)
    try:
        operation.result(0.001)
    except TimeoutError:
        pass
    {keep}
del operation
client.flush()
print("left", flush=True)
while (word := sys.stdin.readline().strip()) == "count":
    print(client._protocol.incoming.received_outcome, flush=True)
if word == "close":
    client.close()
elif word == "_exit":
    os._exit(0)
print(*(operation.outcome().state.name for operation in kept if word == "close"), flush=True)
""",
    "aio": """
import asyncio, os, sys
from timerd_client import aio
kept = []

async def main():
    client = await aio.connect()
    for _ in range({jobs}):
        operation = client.register("jobs", timeout=None)
        try:
            await operation.result(0.001)
        except TimeoutError:
            pass
        {keep}
    del operation
    await client.flush()
    print("left", flush=True)
    while (word := (await asyncio.to_thread(sys.stdin.readline)).strip()) == "count":
        print(client._protocol.incoming.received_outcome, flush=True)
    if word == "close":
        await client.close()
    elif word == "_exit":
        os._exit(0)
    return word

word = asyncio.run(main())
print(*(operation.outcome().state.name for operation in kept if word == "close"), flush=True)
""",
}


class Worker:
    """A process whose waits for JOBS operations have timed out."""

    def __init__(self, face: str, *, keeps: bool = False) -> None:
        program = PROGRAMS[face].format(jobs=JOBS, keep="kept.append(operation)" if keeps else "pass")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.read() == "left"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)

    def has_received(self) -> bool:
        """Whether the worker has received the outcomes of all its operations."""
        self.say("count")
        return int(self.read()) >= JOBS

    def end(self, how: str) -> str:
        """End the worker. Returns its last line."""
        if how == "SIGKILL":
            self.process.kill()
        else:
            self.say(how)
        said = self.read()
        self.process.wait(4 * PATIENCE_S)
        return said


@contextmanager
def working(face: str, *, keeps: bool = False) -> Iterator[Worker]:
    worker = Worker(face, keeps=keeps)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.communicate()


def give(client: td.Client) -> None:
    """Fire all jobs. Each of them completes one operation."""
    for number in range(JOBS):
        assert client.fire_wait("jobs", value=b"%d" % number, limit=1) == 1


def waiting_in(client: td.Client) -> list[td.Operation]:
    operations = [client.register("jobs", timeout=None) for _ in range(JOBS)]
    client.flush()
    return operations


def assert_got_all(operations: list[td.Operation]) -> None:
    values = sorted(operation.result(PATIENCE_S).value for operation in operations)
    assert values == sorted(b"%d" % number for number in range(JOBS))


@pytest.mark.parametrize("face", FACES)
def test_another_worker_gets_all_ten_jobs_of_operations_that_were_dropped(daemon: Daemon, face: str) -> None:
    with working(face) as worker, td.connect() as other:
        operations = waiting_in(other)
        give(other)
        assert_got_all(operations)
        assert worker.process.poll() is None
        eventually(lambda: daemon.stats()["counters"]["pending"] == 0)


@pytest.mark.long
@pytest.mark.parametrize("how", ["return", "close", "_exit", "SIGKILL"])
@pytest.mark.parametrize("face", FACES)
def test_jobs_that_nobody_has_looked_at_when_their_worker_ends_go_to_another(
    daemon: Daemon, face: str, how: str
) -> None:
    with working(face, keeps=True) as worker, td.connect() as other:
        give(other)
        eventually(worker.has_received)
        operations = waiting_in(other)
        assert not any(operation.done() for operation in operations)
        assert worker.end(how).split() == (["FAILED"] * JOBS if how == "close" else [])
        assert_got_all(operations)


@pytest.mark.long
@pytest.mark.parametrize("how", ["return", "close", "_exit", "SIGKILL"])
@pytest.mark.parametrize("face", FACES)
def test_jobs_that_come_while_their_worker_ends_go_to_another(daemon: Daemon, face: str, how: str) -> None:
    with working(face) as worker, td.connect() as other:
        operations = waiting_in(other)
        giving = threading.Thread(target=give, args=(other,))
        giving.start()
        worker.end(how)
        giving.join()
        assert_got_all(operations)


# exactly once -----------------------------------------------------------------------------------------------------

MANY = 100
RACES = {
    "threads": """
def work(number):
    chance = random.Random(number)
    while len(got) < {many}:
        try:
            if outcome := client.register("jobs", timeout=0.06, since=begun).result(chance.random() / 20):
                got.append(outcome.value)
        except TimeoutError:
            if chance.random() < 0.3:
                time.sleep(chance.random() / 50)  # meanwhile the traceback keeps the operation
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
    "signals": """
class Alarm(Exception):
    pass

def ring(*_):
    if not operation.done():  # else result() is about to return, and Python would drop what it returns
        raise Alarm

signal.signal(signal.SIGALRM, ring)
while len(got) < {many}:
    operation, outcome = client.register("jobs", timeout=0.06, since=begun), None
    try:
        signal.setitimer(signal.ITIMER_REAL, random.random() / 20 + 1e-4)
        outcome = operation.result()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        pass
    if outcome:
        got.append(outcome.value)
""",
    "tasks": """
import asyncio
from timerd_client import aio

async def work(client, number):
    chance = random.Random(number)
    while len(got) < {many}:
        operation = client.register("jobs", timeout=0.06, since=begun)
        try:
            if chance.random() < 0.5:
                outcome = await operation.result(chance.random() / 20)
            else:
                outcome = await asyncio.wait_for(operation, chance.random() / 20)
            if outcome:
                got.append(outcome.value)
        except TimeoutError:
            pass

async def main():
    async with aio.connect() as client:
        await asyncio.gather(*(work(client, number) for number in range(4)))

asyncio.run(main())
""",
}
RACE = """
import random, signal, threading, time
import timerd as td

got, client, maker = [], td.connect(), td.connect()
begun = client.mark()  # an event that comes while nobody waits is for the next operation

def make():
    for number in range({many}):
        maker.fire("jobs", value=b"%d" % number, limit=1)
        time.sleep(0.002)

making = threading.Thread(target=make)
making.start()
"""


@pytest.mark.long
@pytest.mark.parametrize("race", RACES)
def test_workers_that_give_up_at_any_moment_get_each_job_once(make_daemon: Callable[..., Daemon], race: str) -> None:
    make_daemon("--ring-events=16384")
    program = (RACE + RACES[race] + "making.join()\nprint(*(one.decode() for one in got))").format(many=MANY)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=6 * PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    times = Counter(map(int, ran.stdout.split()))
    assert times == dict.fromkeys(range(MANY), 1), [number for number in range(MANY) if times[number] != 1]


def test_a_signal_that_ends_the_wait_in_the_main_thread_loses_no_job(daemon: Daemon) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    gc.disable()  # reference counts alone must free an operation whose wait was interrupted
    try:
        with td.connect() as client, td.connect() as other:
            for _ in range(JOBS):
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                with pytest.raises(Alarm):
                    client.register("jobs", timeout=None).result()
            client.flush()
            operations = waiting_in(other)
            give(other)
            assert_got_all(operations)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
