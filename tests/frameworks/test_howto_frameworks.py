"""docs/howto/channels.md, aiohttp.md and notebooks.md: their programs run as they stand there."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import nbclient
import nbformat
import pytest

import timerd as td
from support.real.daemons import SMALL_BY_ENVIRONMENT, Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.trees import ROOT
from support.web.pending import pending
from support.web.servers import ENDS_S, Polls, Server, again_at_503
from support.web.streams import EventSource
from timerd_shm.host.paths import daemon_running
from timerd_shm.host.search import find_instance

BLOCK = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(page: str) -> dict[str, str]:
    """The files of a page, by their names."""
    return dict(BLOCK.findall((ROOT / "docs/howto" / page).read_text()))


@pytest.fixture
def directory(runtime_dir: Path) -> Path:
    made = runtime_dir / "app"
    made.mkdir()
    return made


# Django Channels ------------------------------------------------------------------------------------------------------

SETTINGS = """
ALLOWED_HOSTS = ["*"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
ROOT_URLCONF = "urls"
SECRET_KEY = "x"
"""
PID = """
urlpatterns.append(path("pid", lambda request: HttpResponse("1")))
"""
SERVERS = ["daphne", "uvicorn"]


class WebSocket:
    """A browser's side of a WebSocket: short texts, and the code with which the server closes."""

    def __init__(self, port: int, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=2 * PATIENCE_S)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade")
        more = (f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")
        self._socket.sendall("\r\n".join((*lines, *more)).encode())
        self._file = self._socket.makefile("rb")
        status = self._file.readline()
        assert b" 101 " in status, status
        while self._file.readline() != b"\r\n":
            pass

    def send(self, text: str) -> None:
        body, mask = text.encode(), os.urandom(4)
        assert len(body) < 126
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(body))
        self._socket.sendall(bytes([0x81, 0x80 | len(body)]) + mask + masked)

    def receive(self) -> Any:
        """The next message, from JSON; a number: the server closes with this code, or (0) without one."""
        while head := self._file.read(2):
            length = head[1] & 0x7F
            if length == 126:
                length = int.from_bytes(self._file.read(2), "big")
            body = self._file.read(length)
            match head[0] & 0x0F:
                case 1:
                    return json.loads(body)
                case 8:
                    return int.from_bytes(body[:2], "big")
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def channels(directory: Path, kind: str) -> Iterator[Server]:
    """The page's project, with settings."""
    (directory / "settings.py").write_text(SETTINGS)
    for name, text in files_of("channels.md").items():
        (directory / name).write_text(text + (PID if name == "urls.py" else ""))
    if kind == "uvicorn":
        serving = Server.uvicorn("asgi:application", directory, workers=1)
    else:
        serving = Server(directory, "daphne", "--fd={fd}", "asgi:application", workers=0)
    with serving as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize("kind", SERVERS)
def test_a_browser_that_comes_back_gets_each_event_of_its_room_once(daemon: Daemon, directory: Path, kind: str) -> None:
    with channels(directory, kind) as server, td.connect() as client:
        with WebSocket(server.port, "/rooms/7") as browser:
            mark = browser.receive()["mark"]
            client.fire("room/7", value=b"from another process")
            assert browser.receive()["text"] == "from another process"
            browser.send("from the browser")
            assert browser.receive()["text"] == "from the browser"
            assert server.post("/say/7", b"from a plain view").status == 204
            item = browser.receive()
            assert item["text"] == "from a plain view"
            daemon.kill()
            daemon.start()
            client.fire("room/7", value=b"after a restart of the daemon")
            item = browser.receive()
            assert item["text"] == "after a restart of the daemon"
        client.fire_wait("room/7", value=b"while the browser was away", timeout=PATIENCE_S)
        with WebSocket(server.port, f"/rooms/7?after={item['mark']}") as browser:
            assert browser.receive() == {"mark": item["mark"]}
            assert browser.receive()["text"] == "while the browser was away"
        with WebSocket(server.port, f"/rooms/7?after={mark[:16]}-999999") as browser:
            browser.receive()
            assert browser.receive()["gap"] == "overwritten"
        with WebSocket(server.port, "/rooms/7?after=nonsense") as browser:
            assert set(browser.receive()) == {"mark"}
    assert "Traceback" not in server.log, server.log


@pytest.mark.long
@pytest.mark.parametrize("kind", SERVERS)
def test_a_long_poll_waits_beside_consumers_and_loses_nothing(daemon: Daemon, directory: Path, kind: str) -> None:
    with channels(directory, kind) as server, td.connect() as client, Polls(server.port) as polls:
        with WebSocket(server.port, "/rooms/7") as browser:
            browser.receive()
            eventually(lambda: pending(daemon) == 1)
            polls.open("/jobs/7", 3)
            eventually(lambda: pending(daemon) == 4)
            assert client.fire_wait("job/7", value=b"first") == 3
            answers = polls.answers()
            assert {(one.status, one.body) for one in answers} == {(200, b"first")}
        client.fire_wait("job/7", value=b"second")
        mark = answers[0].headers["x-mark"]
        answer = again_at_503(lambda: server.get(f"/jobs/7?after={mark}"))
        assert (answer.status, answer.body) == (200, b"second")
        mark = again_at_503(lambda: server.get("/mark")).body.decode()
        client.fire_wait("job/7", value=b"between the mark and the first poll")
        answer = again_at_503(lambda: server.get(f"/jobs/7?after={mark}"))
        assert (answer.status, answer.body) == (200, b"between the mark and the first poll")
        assert server.get("/jobs/7?after=nonsense").status == 400
        polls.open("/jobs/7", 3)
        eventually(lambda: pending(daemon) == 3)
        polls.hang_up()
        eventually(lambda: pending(daemon) == 0, "the polls, or the watch of the room, are still pending")


@pytest.mark.long
@pytest.mark.parametrize("kind", SERVERS)
def test_sigterm_closes_the_sockets_and_ends_the_polls(daemon: Daemon, directory: Path, kind: str) -> None:
    with channels(directory, kind) as server, Polls(server.port) as polls:
        with WebSocket(server.port, "/rooms/7") as browser:
            browser.receive()
            polls.open("/jobs/7", 3)
            eventually(lambda: pending(daemon) == 4)
            assert server.terminate(polls) < ENDS_S
            statuses = {(one.status, one.retry_after) for one in polls.done}
            code = browser.receive()
        if kind == "uvicorn":
            assert statuses == {(503, "0")} and code in (1012, 4012), server.log
        else:
            assert statuses <= {(0, None), (503, "0")} and code in (0, 1000, 4012), server.log
    eventually(lambda: pending(daemon) == 0)


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param("daphne", marks=pytest.mark.long), "uvicorn"])
def test_a_room_that_the_daemon_refuses_is_closed_with_4013(daemon: Daemon, directory: Path, kind: str) -> None:
    with channels(directory, kind) as server, td.connect() as one, td.connect() as two:
        for greedy in (one, two, one, two):
            greedy.register_many_wait(["full"] * 1_000, timeout=600)
        with WebSocket(server.port, "/rooms/7") as browser:
            assert set(browser.receive()) == {"mark"}
            assert browser.receive() == 4013, server.log


# aiohttp --------------------------------------------------------------------------------------------------------------

ON_A_DESCRIPTOR = """
import socket
import sys
from aiohttp import web
from app import app

web.run_app(app, sock=socket.socket(fileno=int(sys.argv[1])), handler_cancellation=True)
"""
BESIDE = """
from tasks import add_calls

async def pid(request):
    return web.Response(text="1")

app.router.add_get("/pid", pid)
add_calls(app)
"""


@contextmanager
def aiohttp(directory: Path, kind: str) -> Iterator[Server]:
    """The page's application, in one process, or in two workers of gunicorn."""
    files = files_of("aiohttp.md")
    head, main = files["app.py"].split('if __name__ == "__main__":')
    assert main.strip() == "web.run_app(app, handler_cancellation=True)"
    files["app.py"] = head + BESIDE
    files["tasks.py"] = files["tasks.py"].replace("seconds=60", "seconds=0.2")
    files["descriptor.py"] = ON_A_DESCRIPTOR
    for name, text in files.items():
        (directory / name).write_text(text)
    if kind == "gunicorn":
        flags = ("-k", "aiohttp.GunicornWebWorker")
        serving = Server.gunicorn("served:runner", directory, *flags, workers=2, hooks=False)
    else:
        serving = Server(directory, "descriptor", "{fd}", workers=0)
    with serving as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize("kind", ["python", "gunicorn"])
def test_a_long_poll_of_aiohttp_loses_nothing(daemon: Daemon, directory: Path, kind: str) -> None:
    with aiohttp(directory, kind) as server, Polls(server.port) as polls:
        mark = again_at_503(lambda: server.get("/mark")).body.decode()
        assert again_at_503(lambda: server.post("/jobs/7", b"between the mark and the poll")).status == 204
        answer = again_at_503(lambda: server.get(f"/jobs/7?after={mark}"))
        assert (answer.status, answer.body) == (200, b"between the mark and the poll")
        assert again_at_503(lambda: server.post("/jobs/7", b"between two polls")).status == 204
        answer = again_at_503(lambda: server.get(f"/jobs/7?after={answer.headers['x-mark']}"))
        assert (answer.status, answer.body) == (200, b"between two polls")
        assert server.get("/jobs/7?after=nonsense").status == 400
        assert server.get(f"/jobs/7?after={mark[:16]}-999999").status == 410
        polls.open("/jobs/7", 10)
        eventually(lambda: pending(daemon) == 10, f"the polls do not wait\n{server.log}")
        polls.hang_up()
        eventually(lambda: pending(daemon) == 0, f"the polls are still pending\n{server.log}")
        eventually(lambda: "cleanup" in server.log, "the schedule does not run")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["python", pytest.param("gunicorn", marks=pytest.mark.long)])
def test_the_end_of_aiohttp_answers_each_poll_and_ends_each_stream(daemon: Daemon, directory: Path, kind: str) -> None:
    with aiohttp(directory, kind) as server, Polls(server.port) as polls, td.connect() as client:
        stream = EventSource(server.port, "/rooms/7", 2 * PATIENCE_S)
        blocks = stream.connect()
        assert next(blocks).retry == "1000"
        eventually(lambda: pending(daemon) == 1)
        client.fire("room/7", value=b"first")
        assert next(blocks).data == "first"
        polls.open("/jobs/7", 10)
        eventually(lambda: pending(daemon) == 11)
        seconds = server.terminate(polls)
        assert [(one.status, one.retry_after) for one in polls.done] == [(503, "0")] * 10, server.log
        assert [one.retry for one in blocks] == ["0"]
        assert seconds < ENDS_S, server.log
        assert "Traceback" not in server.log
    eventually(lambda: pending(daemon) == 0)


def test_aiohttp_answers_503_without_a_daemon_and_when_it_is_full(daemon: Daemon, directory: Path) -> None:
    with aiohttp(directory, "python") as server:
        with td.connect() as one, td.connect() as two:
            for greedy in (one, two, one, two):
                greedy.register_many_wait(["full"] * 1_000, timeout=600)
            answer = server.get("/jobs/7")
            assert (answer.status, answer.retry_after) == (503, "1"), answer
            assert answer.headers["x-in-doubt"] == "false", "the daemon has refused the registration"
        mark = again_at_503(lambda: server.get("/mark")).body.decode()
        daemon.stop()
        for answer in (posted := server.post("/jobs/7", b"1 twice"), server.get("/mark")):
            assert (answer.status, answer.retry_after) == (503, "1"), answer
        assert posted.headers["x-in-doubt"] in ("true", "false")
        daemon.start()
        eventually(lambda: server.post("/jobs/7", b"1 twice").status == 204, "the post is never done")
        eventually(lambda: server.post("/jobs/7", b"2 last").status == 204, "the post is never done")
        seen: dict[bytes, None] = {}
        while b"2" not in seen:
            answer = again_at_503(lambda: server.get(f"/jobs/7?after={mark}"))  # noqa: B023
            mark = answer.headers["x-mark"]
            if answer.status == 200:
                seen.setdefault(answer.body.split()[0])
        assert list(seen) == [b"1", b"2"], "a reader that skips ids shows each post once"


# Notebooks ------------------------------------------------------------------------------------------------------------

# Like the kernel of a notebook, this program runs each cell in its event loop.
NOTEBOOK = """
import asyncio
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell(config=config)

async def run():
    for name in sys.argv[1:]:
        cell = open(name).read()
        (await shell.run_cell_async(cell, transformed_cell=shell.transform_cell(cell))).raise_error()

asyncio.run(run())
"""
IS_DONE = """
import time
while not worker.stats().calls_done:
    time.sleep(0.02)
"""


@pytest.fixture
def cells(directory: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the page's cells. The daemon that they start is ended."""
    for name, value in SMALL_BY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(directory))
    for name, text in files_of("notebooks.md").items():
        (directory / name).write_text(text)
    (directory / "is_done.py").write_text(IS_DONE)
    yield directory
    end_daemon()


def end_daemon() -> None:
    paths = find_instance()
    if daemon_running(paths):
        with td.connect() as client:
            pid = client._link.protocol.session.daemon_pid
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not daemon_running(paths) and not paths.arena.exists())


def notebook(folder: Path, *names: str) -> str:
    """Run these cells in one kernel. Returns what they print, without the values of last lines."""
    command = [sys.executable, "-c", NOTEBOOK, *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr  # a slow daemon is logged there
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("Out["))


@contextmanager
def others_fire(key: str, value: bytes) -> Iterator[None]:
    """Another process's client fires this key, again and again."""
    done = threading.Event()

    def fire() -> None:
        with td.Client() as client:
            while not done.wait(0.05):
                client.fire(key, value=value)
            client.close(timeout=PATIENCE_S)

    firing = threading.Thread(target=fire)
    firing.start()
    try:
        yield
    finally:
        done.set()
        firing.join()


def test_the_first_cells_need_no_set_up(cells: Path) -> None:
    with others_fire("inbox/7", b"hello"):
        assert notebook(cells, "cell_1.py", "cell_2.py") == "b'hello'\n"


def test_the_first_cells_work_at_the_prompt_of_python(cells: Path) -> None:
    typed = "".join((cells / name).read_text() for name in ("cell_1.py", "cell_2.py"))
    with others_fire("inbox/7", b"hello"):
        command = [sys.executable, "-i", "-q"]
        done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert done.stdout == "b'hello'\n", done.stderr


INTERRUPTED = """
try:
    print("waits", flush=True)
    operation.result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupted_cell_runs_again_and_waits_on(cells: Path) -> None:
    texts = {name: (cells / name).read_text() for name in ("cell_1.py", "cell_2.py")}
    program = f"{texts['cell_1.py']}{INTERRUPTED}{texts['cell_2.py']}"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as kernel:
        assert kernel.stdout is not None and kernel.stdout.readline() == "waits\n"
        os.killpg(kernel.pid, signal.SIGINT)  # as Ctrl-C: the daemon is in no group of the kernel
        assert kernel.stdout.readline() == "interrupted\n"
        with td.connect() as client:
            client.fire_wait("inbox/7", value=b"hello", timeout=PATIENCE_S)
        assert kernel.communicate(timeout=PATIENCE_S)[0] == "b'hello'\n"


@pytest.mark.long
def test_cells_await_and_their_subscription_goes_on_between_them(cells: Path) -> None:
    assert notebook(cells, "cell_1.py", "cell_3.py", "cell_4.py") == "b'hello'\n"


@pytest.mark.long
def test_the_next_kernel_goes_on_where_the_last_one_has_stopped(cells: Path) -> None:
    assert notebook(cells, "cell_1.py", "cell_5.py") == ""
    with td.connect() as client:  # the daemon goes on
        client.fire_wait("inbox/9", value=b"between two kernels", timeout=PATIENCE_S)
        assert notebook(cells, "cell_1.py", "cell_5.py", "cell_5.py") == "b'between two kernels'\n"


@pytest.mark.long
def test_the_handler_of_a_cell_runs_its_call(cells: Path) -> None:
    assert notebook(cells, "cell_1.py", "cell_6.py", "is_done.py") == "resized image 7\n"


@pytest.mark.long
def test_a_cell_that_serves_calls_runs_twice_if_the_worker_is_closed_before(cells: Path) -> None:
    (cells / "close.py").write_text("worker.close()")
    names = ("cell_1.py", "cell_6.py", "is_done.py", "close.py", "cell_6.py", "is_done.py")
    assert notebook(cells, *names) == "resized image 7\n" * 2


@pytest.mark.long
def test_forked_children_have_clients_of_their_own(cells: Path) -> None:
    command = [sys.executable, "forks.py"]
    done = subprocess.run(command, cwd=cells, capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert (done.stdout, done.returncode) == ("all done\n", 0), done.stderr


def printed_in_kernel(folder: Path, *names: str) -> list[str]:
    """Run these cells in a kernel of Jupyter. Returns what each of them prints."""
    sources = [nbformat.v4.new_code_cell((folder / name).read_text()) for name in names]
    book = nbformat.v4.new_notebook(cells=sources)
    nbclient.NotebookClient(book, timeout=4 * PATIENCE_S, resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(one.text for one in cell.outputs if one.get("name") == "stdout") for cell in book.cells]


@pytest.mark.long
def test_a_real_kernel_runs_the_first_cells(cells: Path) -> None:
    with others_fire("inbox/7", b"hello"):
        assert printed_in_kernel(cells, "cell_1.py", "cell_2.py") == ["", "b'hello'\n"]


@pytest.mark.long
def test_a_real_kernel_runs_all_cells(cells: Path) -> None:
    names = ("cell_1.py", "cell_2.py", "cell_3.py", "cell_4.py", "cell_5.py", "cell_6.py", "is_done.py")
    with others_fire("inbox/7", b"hello"):
        printed = printed_in_kernel(cells, *names)
    assert printed[:5] == ["", "b'hello'\n", "", "b'hello'\n", ""], printed
    assert "resized image 7\n" in printed[5:], printed
