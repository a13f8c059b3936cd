"""Every ordinary end of a process flushes: the last calls of a client arrive, and a loss is reported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import SMALL_BY_ENVIRONMENT, Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from support.real.shell import command_of
from support.real.trees import ROOT
from system.ends import lastacts
from system.ends.lastacts import STARTS, VERBS
from timerd_client.link.process_end import PATIENCE_S as EXIT_S
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.host.paths import InstancePaths, daemon_running
from timerd_wire.transports import TRANSPORT_VARIABLE, TRANSPORTS

PROGRAM = Path(lastacts.__file__)
STATUS = {"unhandled exception": 1}
WITHOUT_GOODBYE = {"billiard.Pool"}  # its workers end by os._exit(), a second after their last task
QUICK = ("end of main", "fork", "forkserver", "atexit, registered before the first use", "asyncio.run")


def long_unless(short: bool, *values: object) -> object:
    return pytest.param(*values, marks=() if short else pytest.mark.long)


@pytest.fixture
def asker(shared_daemon: Daemon) -> Iterator[td.Client]:
    """A client of the test, which asks the daemon which calls have arrived."""
    del shared_daemon
    with td.connect(group=lastacts.GROUP, timeout=PATIENCE_S) as client:
        yield client


def arrived(asker: td.Client, key: str, since: td.Mark) -> set[str]:
    """The calls of `lastacts` that have arrived."""
    asked: dict[str, Callable[[], object]] = {
        "fire": lambda: asker.register(f"{key}/fired", timeout=0, since=since).result(PATIENCE_S),
        "advance": lambda: asker.watermark(f"{key}/mark") == 7,
        "register": lambda: asker.fire_wait(f"{key}/kept"),
        "call_later": lambda: asker.cancel_call_wait(f"{key}/call"),
    }
    return {verb for verb, was_done in asked.items() if was_done()}


@pytest.mark.parametrize(
    ("transport", "start"),
    [long_unless(start in QUICK, transport, start) for transport in TRANSPORTS for start in STARTS],
)
@pytest.mark.parametrize(
    "verb", [pytest.param("", id="all"), *(pytest.param(verb, marks=pytest.mark.long) for verb in VERBS)]
)
def test_the_last_calls_of_a_process_arrive(
    transport: str, start: str, verb: str, shared_daemon: Daemon, asker: td.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, transport)
    died = shared_daemon.stats()["counters"]["clients_died"]
    mark, key = asker.mark(), f"{transport}/{start}"
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), start, f"{key}/{verb}" if verb else key],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert ran.returncode == STATUS.get(start, 0), ran.stderr
    assert arrived(asker, f"{key}/{verb}" if verb else key, mark) == ({verb} if verb else set(VERBS)), ran.stderr
    assert "lost" not in ran.stderr
    if start not in WITHOUT_GOODBYE:
        eventually(lambda: shared_daemon.stats()["counters"]["clients"] == 1)
        assert shared_daemon.stats()["counters"]["clients_died"] == died, "a client ended without a goodbye"


FIRST_IMPORT = "import importlib.util, sys; sys.modules.pop('threading', None)  # as if nothing had imported it\n"
FIRST_USES = {
    "imported before the handler": "import timerd as td\ndef last(): td.client().fire({key!r})",
    "imported in the handler": "def last():\n    import timerd as td\n    td.client().fire({key!r})",
    "a client of its own": "import timerd as td\ndef last(): td.Client().fire({key!r})",
    "the first of three": "import timerd as td\ndef last(): [td.client().fire({key!r}) for _ in range(3)]",
}
ENDS = {
    "atexit": "import atexit\natexit.register(last)",
    "finalizer": "import weakref\nclass Kept: pass\nkept = Kept()\nweakref.finalize(kept, last)",
    "exception": "import atexit\natexit.register(last)\n1 / 0",
    "forked child": "import atexit, os\natexit.register(last)\nif os.fork(): os.wait(), os._exit(0)",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "transport"),
    [
        long_unless((number + other) % 2 == 0, end, transport)
        for number, end in enumerate(ENDS)
        for other, transport in enumerate(TRANSPORTS)
    ],
)
def test_a_client_that_is_used_first_in_a_handler_flushes(
    end: str, transport: str, shared_daemon: Daemon, asker: td.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If `threading` is first imported in a handler of the exit, it regards the main thread as alive."""
    monkeypatch.setenv(TRANSPORT_VARIABLE, transport)
    died, mark = shared_daemon.stats()["counters"]["clients_died"], asker.mark()
    for number, use in enumerate(FIRST_USES.values()):
        script = use.format(key=f"{transport}/{end}/{number}") + "\n" + ENDS[end]
        ran = subprocess.run(
            [sys.executable, "-c", FIRST_IMPORT + script],
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
        )
        assert "timerd" not in ran.stderr, ran.stderr
    for number, use in enumerate(FIRST_USES):
        fired = asker.register(f"{transport}/{end}/{number}", timeout=0, since=mark).result(PATIENCE_S)
        assert fired, f"{use} is lost"
    eventually(lambda: shared_daemon.stats()["counters"]["clients"] == 1)
    assert shared_daemon.stats()["counters"]["clients_died"] == died, "a client ended without a goodbye"


def test_a_client_that_is_used_first_in_a_handler_may_start_its_daemon(
    monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    for name, value in SMALL_BY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    script = """
import atexit
import timerd as td
def late():
    client = td.Client("started", autostart=True)
    client.ready(timeout=20)  # a start may take longer than the 2 s that the end of a process waits for
    client.fire("k")
    print(client.fire_wait("k"), client._link.protocol.session.daemon_pid)
atexit.register(late)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    completed, pid = map(int, ran.stdout.split())
    assert completed == 0
    os.kill(pid, signal.SIGTERM)
    paths = InstancePaths(runtime_dir, "started")
    eventually(lambda: not daemon_running(paths) and not paths.arena.exists())


# a lost daemon ------------------------------------------------------------------------------------------------------

LOSES = """
import atexit, os, sys, time
import timerd as td
begun = 0.0
def timed():
    print(time.monotonic() - begun)
atexit._clear()  # no handlers of the environment run in between
clients = [td.Client(name=f"loser {{number}}") for number in range(3)]
atexit.register(timed)
for client in clients:
    atexit.register(lambda client=client: [client.fire("late") for _ in range(5)])
for client in clients:
    client.fire_wait("k")
os.kill({pid}, {signal})
{logging}
for client in clients:
    for _ in range(7):
        client.fire("k")
begun = time.monotonic()
"""
SAID = re.compile(
    r"the process ends, and 7 commands of client 'loser \d' to instance 'default' are (lost|unacknowledged, and may be "
    r"lost): state: \w+, silent for \d+\.\d s: is it running\? \(`timerd --instance default`\)"
)
AND_MORE = "all that follows to 'default' is lost as well"


def stopped(daemon: Daemon, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that stops the daemon. Afterwards the daemon goes on."""
    script = script.format(pid=daemon.pid, signal=int(signal.SIGSTOP), logging="")
    try:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=4 * PATIENCE_S)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_lost_daemon_costs_an_exit_two_seconds_in_sum_and_each_client_reports_its_loss(daemon: Daemon) -> None:
    ran = stopped(daemon, LOSES)
    assert ran.returncode == 0, ran.stderr
    assert EXIT_S <= float(ran.stdout) < 2 * EXIT_S, "clients or calls waited one after the other"
    lines = ran.stderr.splitlines()
    assert len([line for line in lines if SAID.search(line)]) == 3, ran.stderr
    assert len([line for line in lines if AND_MORE in line]) == 3, ran.stderr
    assert len(lines) == 6, ran.stderr


@pytest.mark.parametrize("to_stderr", [True, False])
def test_a_loss_is_reported_on_stderr_and_in_the_log(to_stderr: bool, runtime_dir: Path) -> None:
    log = runtime_dir / "log"
    script = f"""
import logging
import timerd as td
logging.basicConfig({"" if to_stderr else f"filename={str(log)!r}"})
td.client().fire("k")
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=4 * PATIENCE_S)
    said = f"1 command to instance 'default' is lost: no timerd instance 'default' in {runtime_dir}: start it (`timerd"
    assert ran.returncode == 0
    assert ran.stderr.count(said) == 1, ran.stderr
    assert to_stderr or said in log.read_text()


def test_a_script_without_a_daemon_ends_at_once_and_reports_its_loss(runtime_dir: Path) -> None:
    script = "import time; import timerd as td; td.client().fire('k'); begun = time.monotonic()\n"
    script += "import timerd_client.link.process_end as end; end.process_end._begin(); print(time.monotonic() - begun)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert float(ran.stdout) < EXIT_S, "the process waited for a daemon that does not run"
    assert "1 command to instance 'default' is lost" in ran.stderr


@pytest.mark.long
def test_a_client_with_a_daemon_loses_nothing_beside_a_client_whose_daemon_is_lost(
    make_daemon: Callable[..., Daemon], client: td.Client
) -> None:
    dead = make_daemon(instance="dead")
    mark = client.mark()
    script = """
import os
import timerd as td
lost, found = td.Client("dead"), td.Client()
lost.fire_wait("k"), found.fire_wait("k")
os.kill({pid}, {signal})
lost.fire("k"), found.fire("mine")
"""
    ran = stopped(dead, script)
    assert client.register("mine", timeout=0, since=mark).result(PATIENCE_S)
    assert "1 command to instance 'dead' is" in ran.stderr and "default" not in ran.stderr


@pytest.mark.long
def test_an_interrupt_ends_the_wait_at_the_end_and_the_loss_is_reported(daemon: Daemon) -> None:
    script = """
import os, signal
import timerd as td
td.client().fire_wait("k")
os.kill({pid}, {signal})
td.client().fire("k")
from timerd_client.link import process_end
def drive(link, seconds): os.kill(os.getpid(), signal.SIGINT)
type(td.client()._link).drive = drive
"""
    ran = stopped(daemon, script)
    assert "KeyboardInterrupt" in ran.stderr
    assert ran.stderr.count("1 command to instance 'default' is") == 1, ran.stderr


@pytest.mark.long
def test_an_exit_does_not_wait_for_a_lock_that_nobody_releases(daemon: Daemon) -> None:
    del daemon
    script = """
import threading, time
import timerd as td
client = td.client()
client.fire_wait("k")
held = threading.Event()
def hold():
    with client._link.lock:
        client._link.protocol.ledger.issue(b"")  # as in the middle of a call
        held.set()
        time.sleep(3600)
threading.Thread(target=hold, daemon=True).start()
held.wait()
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert ran.returncode == 0
    assert "1 command to instance 'default' is" in ran.stderr, ran.stderr


@pytest.mark.long
def test_the_end_of_a_loop_waits_two_seconds_for_a_lost_daemon(daemon: Daemon) -> None:
    script = """
import asyncio, os, time
import timerd as td
async def main():
    client = td.aio.client()
    await client.fire_wait("k")
    os.kill({pid}, {signal})
    client.fire("k")
    return time.monotonic()
begun = asyncio.run(main())
print(time.monotonic() - begun)
"""
    ran = stopped(daemon, script)
    assert EXIT_S <= float(ran.stdout) < CLOSE_TIMEOUT_S
    assert "its event loop ends: 1 command is unacknowledged" in ran.stderr


@pytest.mark.long
def test_a_process_that_ends_by_os_exit_is_counted(daemon: Daemon) -> None:
    script = "import os; import timerd as td; td.client().fire_wait('k'); os._exit(0)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=4 * PATIENCE_S)
    eventually(lambda: daemon.stats()["counters"]["clients_died"] == 1)
    shown = subprocess.run(command_of("stats"), capture_output=True, text=True, check=True).stdout
    assert re.search(r"clients_died\D+1\b", shown), shown


# servers that end by a signal ---------------------------------------------------------------------------------------

RAISED_AGAIN = """
import asyncio, signal, sys
import timerd as td
from timerd_client.web import ASGI

async def application(scope, receive, send):
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.complete"})
    await receive()
    td.client().fire(sys.argv[1])  # here the client of plain views is used for the first time
    td.aio.client().fire(sys.argv[2])
    await send({"type": "lifespan.shutdown.complete"})

async def serve():
    messages = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]
    async def receive(): return messages.pop()
    async def send(message): pass
    await ASGI(application)({"type": "lifespan"}, receive, send)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)  # as uvicorn does when it has ended

asyncio.run(serve())
"""


@pytest.mark.long
def test_the_last_calls_before_a_server_that_raises_sigterm_again_arrive(daemon: Daemon, client: td.Client) -> None:
    """The middleware flushes all clients of the process when the lifespan ends, and says goodbye for them."""
    mark = client.mark()
    ran = subprocess.run([sys.executable, "-c", RAISED_AGAIN, "raised/1", "raised/2"], timeout=4 * PATIENCE_S)
    assert ran.returncode == -signal.SIGTERM
    assert all(client.register(key, timeout=0, since=mark).result(PATIENCE_S) for key in ("raised/1", "raised/2"))
    eventually(lambda: daemon.stats()["counters"]["clients"] == 1)  # the client of the test
    assert daemon.stats()["counters"]["clients_died"] == 0, "a client ended without a goodbye"


# docs/howto/processes.md ---------------------------------------------------------------------------------------------

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ARRIVE = ({"done", "bye"}, {"step/1", "step/2"})


def test_the_events_of_each_program_of_the_page_arrive(client: td.Client) -> None:
    blocks = BLOCK.findall((ROOT / "docs/howto/processes.md").read_text())
    for block, keys in zip(blocks, ARRIVE, strict=True):
        mark = client.mark()
        subprocess.run([sys.executable, "-c", block], check=True, timeout=4 * PATIENCE_S)
        assert {key for key in keys if client.register(key, timeout=0, since=mark).result(PATIENCE_S)} == keys


# calls of the group -------------------------------------------------------------------------------------------------

ENDING = """
import asyncio, atexit, sys
atexit.register(lambda: (print("ends", flush=True), sys.stdin.read()))  # registered first, so it runs last
import timerd as td
calls = td.Calls()
@calls.handler("h")
def h(call):
    print("has taken a call", flush=True)
def main():
    client = td.Client(group="acts")
    client.serve(calls)
    client.ready()
    print("serves", flush=True)
async def loop():
    client = td.aio.client()
    client.serve(calls)
    await client.ready()
    print("serves", flush=True)
td.configure(group="acts")
main() if sys.argv[1] == "threads" else asyncio.new_event_loop().run_until_complete(loop())
"""


@pytest.mark.long
@pytest.mark.parametrize("face", ["threads", "loop that was not closed"])
def test_an_ending_process_takes_no_more_calls(face: str, asker: td.Client) -> None:
    """For example, an atexit handler of Sentry takes 2 s. Meanwhile another worker runs the calls, without delay."""
    program = [sys.executable, "-c", ENDING, face]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ending:
        assert ending.stdin is not None and ending.stdout is not None
        assert [ending.stdout.readline() for _ in range(2)] == ["serves\n", "ends\n"]
        came: list[str] = []
        serve(asker, "h", lambda call: came.append(call.id))
        for _ in range(4):
            asker.call_later("h", 0)
        eventually(lambda: len(came) == 4)
        rest, _ = ending.communicate("", timeout=PATIENCE_S)
    assert (len(set(came)), rest, ending.returncode) == (4, "", 0)
