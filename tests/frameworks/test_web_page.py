"""docs/web.md: its applications are served as they stand there, and Django as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.trees import ROOT
from support.web.pending import pending
from support.web.servers import ENDS_S, Polls, Server
from support.web.streams import EventSource

BLOCK = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs/web.md").read_text()

PID = {
    "flask": """
@app.get("/pid")
def pid():
    return "1"
""",
    "fastapi": """
@app.get("/pid")
def pid() -> str:
    return "1"

@app.get("/sync/{job}")
def wait_in_a_thread(job: str) -> str:
    import timerd as td
    return td.client().register(f"job/{job}", timeout=25).result().value.decode()

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

def wait(request, job):
    return HttpResponse(td.client().register(f"job/{job}", timeout=25).result().value)

async def wait_async(request, job):
    return HttpResponse((await td.aio.client().register(f"job/{job}", timeout=25)).value)

def lost(request):
    return HttpResponse(str(td.Client("nowhere").fire_wait("k", timeout=0.01)))

urlpatterns = [path("pid", pid), path("jobs/<job>", wait), path("async/<job>", wait_async), path("lost", lost)]
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
            eventually(lambda: pending(daemon) == 5, f"{path}: they do not wait\n{server.log}")
            assert client.fire_wait("job/7", value=b"done") == 5
            assert {(one.status, one.body.strip(b'"')) for one in polls.answers()} == {(200, b"done")}
            polls.open(path, 5)
            eventually(lambda: pending(daemon) == 5)
            polls.hang_up()
            eventually(lambda: pending(daemon) == 0, f"{path}: they are pending still")
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
        assert server.post("/jobs/6").status == 202
        check(server, daemon, "/jobs/7")


def test_fastapi_under_uvicorn(daemon: Daemon, directory: Path) -> None:
    app = blocks("FastAPI under uvicorn")["app.py"]
    (directory / "app.py").write_text(app + PID["fastapi"])
    with Server.uvicorn("app:application", directory, workers=2) as server:
        check(server, daemon, "/jobs/7", "/sync/7")


def test_server_sent_events_under_uvicorn(daemon: Daemon, directory: Path) -> None:
    (directory / "app.py").write_text(blocks("Server-sent events")["app.py"] + PID["fastapi"])
    with Server.uvicorn("app:application", directory, workers=2) as server, td.connect() as client:
        stream = EventSource(server.port, "/news/7", PATIENCE_S).connect()
        assert next(stream).retry == "1000"
        client.fire("news/7", value=b"first")
        assert next(stream).data == "first"


def test_a_500_of_fastapi_becomes_503_where_the_daemon_is_not_there(daemon: Daemon, directory: Path) -> None:
    app = blocks("FastAPI under uvicorn")["app.py"]
    (directory / "app.py").write_text(app + PID["fastapi"])
    with Server.uvicorn("app:application", directory, workers=1) as server:
        answer = server.get("/lost")
        assert (answer.status, answer.retry_after) == (503, "1")


@pytest.mark.parametrize("kind", ["gthread", "gevent"])
def test_django_under_gunicorn(daemon: Daemon, directory: Path, kind: str) -> None:
    write_django(directory)
    flags = ("-k", kind, "--threads=20")
    with Server.gunicorn("wsgi:application", directory, *flags, workers=2) as server:
        answer = server.get("/lost")
        assert (answer.status, answer.retry_after) == (503, "1")
        server.log_path.write_text("")  # Django logs that error
        check(server, daemon, "/jobs/7")


def test_django_under_uvicorn(daemon: Daemon, directory: Path) -> None:
    write_django(directory)
    with Server.uvicorn("asgi:application", directory, workers=1) as server:
        check(server, daemon, "/async/7", "/jobs/7")


def write_django(directory: Path) -> None:
    (directory / "site_of_test.py").write_text(DJANGO)
    for name, text in blocks("Django").items():
        (directory / name).write_text("import site_of_test\n" + text)
