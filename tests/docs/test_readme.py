"""The examples of README and docs/howto/recipes.md work: their code is run as it stands, while others fire."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import SMALL_BY_ENVIRONMENT, Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.trees import ROOT
from timerd_client import aio
from timerd_shm.host.paths import daemon_running
from timerd_shm.host.search import find_instance

README = (ROOT / "README.md").read_text()
RECIPES = (ROOT / "docs/howto/recipes.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINES_MAX = 150
OTHERS_FIRE = ("inbox/7", "write/7/r1", "write/7/r3", "stop")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX


def test_the_page_of_the_surface_has_every_call() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    members = (td.Client, aio.Client, td.Outcome, td.GroupOutcome, td.Subscription, td.ScheduledCall)
    calls = {name for kind in members for name in dir(kind) if name[0].islower()}
    calls |= {name for name in td.__all__ if name[0].islower() or name.isupper()}
    assert calls - set(re.findall(r"\w+", page)) == set()


def test_the_two_terminals_of_the_readme_work_when_they_are_pasted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in SMALL_BY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    wait, fire = SHELL.findall(README[README.index("In one terminal") :])[:2]
    assert "td.Client(autostart=True)" in wait and fire.strip().startswith("timerctl fire")
    # In a folder that has a folder `timerd`, as a checkout has.
    (tmp_path / "timerd").mkdir()
    with subprocess.Popen(["sh", "-c", wait], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None

        def fired() -> bool:
            subprocess.run(["sh", "-c", fire.strip()], check=False, capture_output=True)
            return waiting.poll() is not None

        eventually(fired)
        assert waiting.communicate(timeout=PATIENCE_S)[0] == "b'hello'\n"
    paths = find_instance()
    with td.connect() as client:
        pid = client._link.protocol.session.daemon_pid
    os.kill(pid, 15)
    eventually(lambda: not daemon_running(paths) and not paths.arena.exists())


def test_the_recipes_of_the_readme_run(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    with others("inbox/7", times=60):  # others fire for some seconds; the subscription ends a second later
        names = run(README)
        said = capsys.readouterr().out
    assert "from the others" in said
    names["worker"].close()
    loses_nothing(names["poll"], names["post"])
    names["client"].close()


def loses_nothing(poll: Callable[..., tuple[int, bytes, str]], post: Callable[[str, bytes], int]) -> None:
    """The long poll of the README: a message posted between two polls comes with the second poll."""
    found: list[tuple[int, bytes, str]] = []
    waiting = threading.Thread(target=lambda: found.append(poll("7")))
    waiting.start()
    eventually(lambda: post("7", b"first") == 1)
    waiting.join()
    assert found[0][:2] == (200, b"first")
    for text in (b"second", b"third"):
        post("7", text)  # nobody waits
    status, text, mark = poll("7", found[0][2])
    assert (status, text) == (200, b"second")
    assert poll("7", mark)[:2] == (200, b"third")


def test_the_recipes_of_the_docs_run(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stop").touch()
    with others(*OTHERS_FIRE):
        names = run(RECIPES)
    said = ""

    def has_popped() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "resized image 7" in said

    eventually(has_popped, "the job that was pushed before its worker came did not run")
    assert "State.COMPLETED ('write/7/r1', 'write/7/r3') ('write/7/r2',)" in said
    assert "[b'2', b'1']" in said
    names["client"].close()


def test_the_session_of_the_recipes_ends_in_another_worker_than_it_began_in(daemon: Daemon) -> None:
    """Each worker is a process that begins one session and ends, like a worker that gunicorn recycles."""
    (block,) = (block for block in BLOCK.findall(RECIPES) if "end_session" in block)
    assert block.count("900") == 2
    names, ended = {f"session/{number}" for number in range(3)}, set[str]()
    for name in sorted(names):
        worker = f"import timerd as td\n{block}".replace("900", "1").replace("session/9", name)
        done = subprocess.run([sys.executable, "-c", worker + "assert goes_on"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        ended |= {line.removeprefix("ended ") for line in done.stdout.splitlines()}
    found = queue.SimpleQueue[bytes]()
    sessions = td.Calls(group="web")
    sessions.handler("end_session")(lambda call: found.put(call.payload))
    with td.connect(group="web") as client:
        client.serve(sessions)
        while ended != names:
            ended.add(found.get(timeout=PATIENCE_S).decode())
        assert not client.reschedule_call_wait("session/0", 900), "the session has ended, and the caller learns that"


def run(page: str) -> dict[str, Any]:
    """Run the blocks of a page, one after the other. Returns the names that they leave."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in BLOCK.findall(page):
        exec(compile(block, "page", "exec"), names)
    return names


@contextmanager
def others(*keys: str, times: int = 1 << 30) -> Iterator[None]:
    """Others fire these keys, again and again."""
    done = threading.Event()

    def fire() -> None:
        with td.connect(name="the others") as client:
            for _ in range(times):
                if done.wait(0.05):
                    return
                for key in keys:
                    client.fire(key, value=b"from the others")

    worker = threading.Thread(target=fire)
    worker.start()
    try:
        yield
    finally:
        done.set()
        worker.join()
