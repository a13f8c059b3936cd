"""docs/howto/web.md: its applications are served as they stand there; an application of Django is served as it says."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually, stop
from support.real.trees import ROOT
from support.web.pending import pending
from support.web.servers import ENDS_S, Answer, Polls, Server, again_at_503
from support.web.streams import EventSource

BLOCK = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs/howto/web.md").read_text()

PID = {
    "flask": """
@app.get("/pid")
def pid():
    return "1"

@app.get("/fault/<kind>")
def fault(kind):
    return fail_by_its_own_fault(kind)
""",
    "fastapi": """
@app.get("/pid")
def pid() -> str:
    return "1"

@app.get("/sync/{job}")
def wait_in_a_thread(job: str) -> str:
    import timerd as td
    return td.client().register(f"job/{job}", timeout=25).result().value.decode()

@app.get("/fault/{kind}")
async def fault(kind: str) -> str:
    return fail_by_its_own_fault(kind)

@app.get("/lost")
async def lost() -> int:
    return await aio.Client("nowhere").fire_wait("k", timeout=0.01)
""",
}
DJANGO = """
import os, sys
import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path
import timerd as td

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", MIDDLEWARE=[
    "django.middleware.common.CommonMiddleware", "django.middleware.security.SecurityMiddleware"])

def pid(request):
    return HttpResponse("1")

def fault(request, kind):
    return fail_by_its_own_fault(kind)

def wait(request, job):
    return HttpResponse(td.client().register(f"job/{job}", timeout=25).result().value)

async def wait_async(request, job):
    return HttpResponse((await td.aio.client().register(f"job/{job}", timeout=25)).value)

def lost(request):
    return HttpResponse(str(td.Client("nowhere").fire_wait("k", timeout=0.01)))

urlpatterns = [path("pid", pid), path("fault/<kind>", fault)]
urlpatterns += [path("jobs/<job>", wait), path("async/<job>", wait_async), path("lost", lost)]
"""


FAULT = """
import timerd as td

def fail_by_its_own_fault(kind):
    try:
        td.Client("nowhere").fire_wait("k", timeout=0.01)
    except td.TimerdUnavailableError as error:
        if kind == "within":
            raise ValueError("of the view")
        if kind == "because":
            raise ValueError("of the view") from error
    raise ValueError("of the view")
"""


def blocks(section: str) -> dict[str, str]:
    """The files of a section of the page, by their names."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = dict(BLOCK.findall(text))
    assert found, section
    return found


@pytest.fixture
def directory(runtime_dir: Path) -> Path:
    made = runtime_dir / "app"
    made.mkdir()
    return made


def check(server: Server, daemon: Daemon, *paths: str) -> None:
    """Polls are answered, withdrawn when their peers have gone, and answered with 503 at SIGTERM."""
    with Polls(server.port) as polls, td.connect() as client:
        for path in paths:
            polls.open(path, 5)
            eventually(lambda: pending(daemon) == 5, f"{path}: the polls do not wait\n{server.log}")
            assert client.fire_wait("job/7", value=b"done") == 5
            assert {(one.status, one.body.strip(b'"')) for one in polls.answers()} == {(200, b"done")}
            polls.open(path, 5)
            eventually(lambda: pending(daemon) == 5)
            polls.hang_up()
            eventually(lambda: pending(daemon) == 0, f"{path}: the polls are still pending")
        del polls.done[:]
        for path in paths:
            polls.open(path, 5)
        eventually(lambda: pending(daemon) == 5 * len(paths))
        assert server.terminate(polls) < ENDS_S
        assert {(one.status, one.retry_after) for one in polls.done} == {(503, "0")}, server.log
        assert "Traceback" not in server.log


def test_flask_under_gunicorn(daemon: Daemon, directory: Path) -> None:
    for name, text in blocks("Flask under gunicorn").items():
        (directory / name).write_text(text + (PID["flask"] if name == "app.py" else ""))
    with Server.gunicorn("app:application", directory, workers=4, hooks=False) as server:
        assert again_at_503(lambda: server.post("/jobs/6?id=1")).status == 204
        check(server, daemon, "/jobs/7")


def test_fastapi_under_uvicorn(daemon: Daemon, directory: Path) -> None:
    app = blocks("FastAPI under uvicorn")["app.py"]
    (directory / "app.py").write_text(app + PID["fastapi"])
    with Server.uvicorn("app:application", directory, workers=2) as server:
        check(server, daemon, "/jobs/7", "/sync/7")


NODELAY = """
import os, socket, stat

async def application(scope, receive, send):
    while (await receive())["type"] not in ("http.request", "lifespan.shutdown"):
        await send({"type": "lifespan.startup.complete"})
    if scope["type"] == "lifespan":
        return await send({"type": "lifespan.shutdown.complete"})
    body = b"held back"
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(number)) as one:
                is_it = one.getpeername() == tuple(scope["client"])
                if is_it and one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY):
                    body = b"at once"
        except OSError:
            pass  # it is no socket, or no connection
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
"""


def kinds_of_answers(directory: Path, *command: str) -> bytes:
    with Server(directory, *command, workers=2) as server:
        return server.get("/kind").body


@pytest.mark.long
def test_the_remedies_of_the_page_for_several_workers_of_uvicorn_hold_no_answer_back(
    directory: Path, port: int
) -> None:
    (directory / "app.py").write_text(NODELAY)
    (directory / "serve.py").write_text(blocks("FastAPI under uvicorn")["serve.py"])
    script = (directory / "serve.py").read_text().replace("workers=4", "workers=2")
    assert script.count("8000") == 1
    (directory / "serve.py").write_text(script.replace("8000", str(port)))
    with Server(directory, "serve", workers=2, port=str(port)) as server:
        assert server.get("/kind").body == b"at once"
    gunicorn = ("gunicorn", "--bind=fd://{fd}", "app:application", "-k", "uvicorn.workers.UvicornWorker", "-w", "2")
    assert kinds_of_answers(directory, *gunicorn) == b"at once"
    plain = ("uvicorn", "--fd={fd}", "--workers=2", "app:application")
    assert kinds_of_answers(directory, *plain) == b"held back", (
        "plain uvicorn holds nothing back now: change docs/howto/web.md"
    )


def test_server_sent_events_under_uvicorn(daemon: Daemon, directory: Path) -> None:
    (directory / "app.py").write_text(blocks("Server-sent events")["app.py"] + PID["fastapi"])
    with Server.uvicorn("app:application", directory, workers=2) as server, td.connect() as client:
        stream = EventSource(server.port, "/news/7", PATIENCE_S).connect()
        assert next(stream).retry == "1000"
        client.fire("news/7", value=b"first")
        assert next(stream).data == "first"


@pytest.mark.long
def test_a_500_of_fastapi_becomes_503_if_there_is_no_daemon(daemon: Daemon, directory: Path) -> None:
    app = blocks("FastAPI under uvicorn")["app.py"]
    (directory / "app.py").write_text(app + PID["fastapi"])
    with Server.uvicorn("app:application", directory, workers=1) as server:
        answer = server.get("/lost")
        assert (answer.status, answer.retry_after) == (503, "1")


@pytest.mark.long
@pytest.mark.parametrize("framework", ["flask", "fastapi", "django", "django async"])
def test_a_view_that_handles_an_error_and_fails_by_its_own_fault_is_500(
    daemon: Daemon, directory: Path, framework: str
) -> None:
    if framework.startswith("django"):
        write_django(directory)
        own = directory / "site_of_test.py"
        own.write_text(FAULT + own.read_text())
    else:
        section = {"flask": "Flask under gunicorn", "fastapi": "FastAPI under uvicorn"}[framework]
        (directory / "app.py").write_text(blocks(section)["app.py"] + FAULT + PID[framework])
    module = {"django": "wsgi", "django async": "asgi"}.get(framework, "app")
    serve = Server.uvicorn if framework in ("fastapi", "django async") else Server.gunicorn
    with serve(f"{module}:application", directory, workers=1) as server:
        assert server.get("/fault/after").status == 500
        assert server.get("/fault/within").status == 500
        answer = server.get("/fault/because")
        assert (answer.status, answer.retry_after) == (503, "1"), server.log


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gthread", "gevent"])
def test_django_under_gunicorn(daemon: Daemon, directory: Path, kind: str) -> None:
    write_django(directory)
    flags = ("-k", kind, "--threads=20")
    with Server.gunicorn("wsgi:application", directory, *flags, workers=2) as server:
        answer = server.get("/lost")
        assert (answer.status, answer.retry_after) == (503, "1")
        server.log_path.write_text("")  # Django logs that error
        check(server, daemon, "/jobs/7")


@pytest.mark.long
def test_django_under_uvicorn(daemon: Daemon, directory: Path) -> None:
    write_django(directory)
    with Server.uvicorn("asgi:application", directory, workers=1) as server:
        check(server, daemon, "/async/7", "/jobs/7")


def write_django(directory: Path) -> None:
    (directory / "site_of_test.py").write_text(DJANGO)
    for name, text in blocks("Django").items():
        (directory / name).write_text("import site_of_test\n" + text)


# polls while something goes wrong -------------------------------------------------------------------------------------

POLL_S = 1


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def served(kind: str, directory: Path, *flags: str, workers: int = 1, poll_s: float = POLL_S) -> Server:
    """The page's application, with polls of `poll_s`."""
    section = "Flask under gunicorn" if kind == "wsgi" else "FastAPI under uvicorn"
    app = blocks(section)["app.py"]
    assert app.count("timeout=25") == 1
    (directory / "app.py").write_text(app.replace("timeout=25", f"timeout={poll_s}") + PID["flask"])
    if kind == "asgi":
        return Server.uvicorn("app:application", directory, *flags, workers=workers)
    return Server.gunicorn("app:application", directory, "-k", "gthread", "--threads=8", *flags, workers=workers)


@pytest.fixture
def server(kind: str, daemon: Daemon, runtime_dir: Path) -> Iterator[Server]:
    (directory := runtime_dir / "app").mkdir()
    with served(kind, directory) as running:
        yield running


def poll(server: Server, mark: str = "") -> Answer:
    return server.get(f"/jobs/7?after={mark}" if mark else "/jobs/7")


def served_poll(server: Server, mark: str = "") -> Answer:
    """`poll`, and once more after each 503, as clients do: on a busy machine the daemon may be silent for 3 s."""
    return again_at_503(lambda: poll(server, mark))


def post(server: Server, id: str) -> None:
    """Post until it is done, always with this id: a post that was answered by 503 may have been done, too."""
    assert again_at_503(lambda: server.post(f"/jobs/7?id={id}")).status == 204


class Reader:
    """A reader as the page describes it: it begins with a mark, names the last mark, and skips ids that it has seen."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.mark = again_at_503(lambda: server.get("/mark")).body.decode()
        self._seen: set[bytes] = set()
        self.shown: list[bytes] = []  # the ids of the posts that this reader has shown
        self.copies = 0  # posts that came again

    def poll(self) -> Answer:
        """One poll. A 503 may have a mark, too; without one the old mark stays."""
        answer = poll(self._server, self.mark)
        self.mark = answer.headers.get("x-mark", self.mark)
        if answer.status == 200:
            post, text = answer.body.split(b" ", 1)
            assert text == b"done"
            if post in self._seen:
                self.copies += 1
            else:
                self._seen.add(post)
                self.shown.append(post)
        return answer

    def poll_until(self, id: bytes) -> None:
        """Poll until this post was shown."""
        eventually(lambda: self.poll().status == 200 and id in self.shown, f"the post {id!r} does not come")


def again_at_reset(ask: Callable[[], Answer]) -> Answer:
    """`ask`, and once more after a reset: uvicorn resets connections that a worker has accepted beyond its limit."""
    try:
        return ask()
    except ConnectionError:
        return ask()


@pytest.mark.long
def test_a_post_between_two_polls_is_in_the_next_answer(server: Server) -> None:
    answer = served_poll(server)
    assert answer.status == 204 and answer.body == b""
    for id in "12345":
        post(server, id)
        answer = served_poll(server, answer.headers["x-mark"])
        assert (answer.status, answer.body) == (200, f"{id} done".encode())


def test_a_reader_that_begins_with_the_mark_view_gets_what_was_posted_before_its_first_poll(server: Server) -> None:
    reader = Reader(server)
    post(server, "1")
    reader.poll_until(b"1")
    assert reader.shown == [b"1"]


def test_a_post_that_is_repeated_after_a_503_is_shown_once(server: Server, daemon: Daemon) -> None:
    """The daemon is stopped. The worker has sent the event, or keeps it, so the daemon applies it when it goes on."""
    reader = Reader(server)

    def is_in_doubt() -> bool:
        post(server, "first")
        stop(daemon.pid)
        try:
            refused = server.post("/jobs/7?id=twice")
            assert refused.status == 503, server.log
            return refused.headers["x-in-doubt"] == "true"  # false: on a busy machine the daemon was lost before
        finally:
            os.kill(daemon.pid, signal.SIGCONT)

    eventually(is_in_doubt, "no post is in doubt", 4 * PATIENCE_S)
    post(server, "twice")
    post(server, "last")
    reader.poll_until(b"last")
    assert reader.shown == [b"first", b"twice", b"last"] and reader.copies >= 1


@pytest.mark.long
def test_a_post_to_a_lost_daemon_has_no_effect_and_is_not_in_doubt(server: Server, daemon: Daemon) -> None:
    reader = Reader(server)
    post(server, "before")
    daemon.kill()
    sent = iter(range(1_000))
    doubtful: list[bytes] = []

    def is_not_asked() -> bool:
        id = f"lost{next(sent)}"
        answer = server.post(f"/jobs/7?id={id}")
        assert answer.status == 503, server.log
        if answer.headers["x-in-doubt"] == "true":
            doubtful.append(id.encode())
        return answer.headers["x-in-doubt"] == "false"

    eventually(is_not_asked, "no post is known to have no effect")
    surely_lost = f"lost{next(sent) - 1}".encode()
    daemon.start()
    post(server, "last")
    reader.poll_until(b"last")
    assert surely_lost not in reader.shown
    assert set(reader.shown) <= {b"before", *doubtful, b"last"}


def test_a_post_without_an_id_is_refused(server: Server, kind: str) -> None:
    assert server.post("/jobs/7").status == (400 if kind == "wsgi" else 422)


@pytest.mark.long
def test_a_recycled_worker_misses_no_post_between_two_polls(daemon: Daemon, runtime_dir: Path, kind: str) -> None:
    (directory := runtime_dir / "app").mkdir()
    recycled = "--limit-max-requests=4" if kind == "asgi" else "--max-requests=4"
    with served(kind, directory, recycled, workers=2) as server:
        first = {worker.pid for worker in server.workers()}
        mark = served_poll(server).headers["x-mark"]
        for id in "123456":
            posted = again_at_reset(lambda: again_at_503(lambda: server.post(f"/jobs/7?id={id}")))  # noqa: B023
            assert posted.status == 204
            answer = again_at_reset(lambda: served_poll(server, mark))  # noqa: B023
            assert (answer.status, answer.body) == (200, f"{id} done".encode())
            mark = answer.headers["x-mark"]
        eventually(lambda: first - {worker.pid for worker in server.workers()}, "no worker was recycled")


def test_a_stopped_daemon_is_503(server: Server, daemon: Daemon) -> None:
    stop(daemon.pid)
    try:
        for answer in (poll(server), server.post("/jobs/7?id=1")):
            assert (answer.status, answer.retry_after) == (503, "1"), server.log
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    eventually(lambda: server.post("/jobs/7?id=1").status == 204, "the server does not answer again")


@pytest.mark.long
def test_a_question_whose_answer_is_lost_is_503(server: Server, daemon: Daemon) -> None:
    stop(daemon.pid)
    with ThreadPoolExecutor() as pool:
        posts = [pool.submit(server.post, f"/jobs/7?id={number}") for number in range(4)]
        time.sleep(0.2)  # until all posts have asked: the next daemon would answer the others
        daemon.kill()
        daemon.start()
        answers = [post.result() for post in posts]
    assert {(one.status, one.retry_after) for one in answers} <= {(204, None), (503, "1")}, server.log


@pytest.mark.long
def test_a_full_arena_is_503_and_not_an_empty_poll(server: Server, daemon: Daemon) -> None:
    with ExitStack() as stack:
        for _ in range(4):  # one client alone may not fill the arena
            greedy = stack.enter_context(td.connect())
            kept = greedy.register_many_wait(["full"] * 2_000, timeout=600)
        last = kept[-1].outcome()
        assert last is not None and isinstance(last.error, td.ArenaFullError)
        answer = poll(server)
        assert (answer.status, answer.retry_after) == (503, "1"), answer
    eventually(lambda: poll(server).status == 204, "the server does not answer again")


@pytest.mark.long
def test_a_mark_that_is_too_old_is_410(server: Server) -> None:
    mark = served_poll(server).headers["x-mark"]
    with td.connect(timeout=PATIENCE_S) as other:
        other.fire("job/7")
        for _ in range(2_000):  # the ring has room for 1,024
            other.fire("of another key")
        other.flush(timeout=PATIENCE_S)
    assert served_poll(server, mark).status == 410
    assert served_poll(server).status == 204
    reader = Reader(server)  # it begins anew
    post(server, "1")
    reader.poll_until(b"1")


@pytest.mark.long
def test_under_preload_a_worker_that_is_recycled_during_a_poll_loses_no_post(daemon: Daemon, runtime_dir: Path) -> None:
    (directory := runtime_dir / "app").mkdir()
    flags = ("--preload", "--max-requests=4")
    with served("wsgi", directory, *flags, workers=2, poll_s=25) as server, Polls(server.port) as polls:
        mark = again_at_503(lambda: server.get("/mark")).body.decode()
        polls.open(f"/jobs/7?after={mark}", 2)
        eventually(lambda: pending(daemon) == 2)
        first = {worker.pid for worker in server.workers()}

        def are_answered() -> bool:
            server.get("/pid")
            polls._read()
            return not len(polls)

        eventually(are_answered, "the workers do not drain at their limit", 4 * PATIENCE_S)
        assert {(one.status, one.retry_after) for one in polls.done} == {(503, "0")}, server.log
        assert first - {worker.pid for worker in server.workers()} or "Autorestarting" in server.log
        post(server, "1")
        answer = again_at_503(lambda: poll(server, mark))
        assert (answer.status, answer.body) == (200, b"1 done")


@pytest.mark.long
def test_a_text_that_is_no_mark_begins_anew_or_is_refused(server: Server, kind: str) -> None:
    assert served_poll(server, "nonsense").status == (400 if kind == "asgi" else 204)
