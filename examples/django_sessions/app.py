"""Sessions that end after a time without a request: at that time, not when the next request finds them too old.

    POST /login?user=NAME   begins a session (a cookie)
    POST /touch             200: the session goes on from now; 410: the session has ended
    POST /logout            ends the session

For each session timerd's daemon keeps a call, whose id is the session's key. One worker of the group gets the call when
it is due, even if the worker that asked for the call is dead by then. The session notes the time of its last request.
If the worker of that request died before it could postpone the call, the call comes too early; then the handler
postpones it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

import timerd as td
from timerd_client.web import WSGI

FOLDER = Path(os.environ.get("SESSIONS_FOLDER", "."))
SESSION_S = float(os.environ.get("SESSIONS_S", "1800"))

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY=os.environ.get("SESSIONS_SECRET", "for the example alone"),
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    SESSION_ENGINE="django.contrib.sessions.backends.file",
    SESSION_FILE_PATH=str(FOLDER),
)
from django.contrib.sessions.backends.file import SessionStore  # noqa: E402 - it reads the settings

client = td.Client(group="sessions", name="sessions")  # each worker connects at its first use
calls = td.Calls(group="sessions")


def database() -> closing[sqlite3.Connection]:
    """A connection for a few statements, each of which is a transaction."""
    return closing(sqlite3.connect(FOLDER / "ended.sqlite", timeout=30, isolation_level=None))


with database() as at_start:
    at_start.execute("CREATE TABLE IF NOT EXISTS ended (key TEXT PRIMARY KEY, why TEXT NOT NULL, at REAL NOT NULL)")


def end(key: str, why: str) -> None:
    """Note once that a session has ended, and remove it."""
    with database() as connection:
        connection.execute("INSERT OR IGNORE INTO ended (key, why, at) VALUES (?, ?, ?)", (key, why, time.time()))
    SessionStore(key).delete()


@calls.handler("end_session", retries=3)
def end_session(call: td.Call) -> None:
    """End the session, or postpone this call if the session's last request is too recent."""
    key = call.payload.decode()
    left_s = SessionStore(key).get("seen", 0.0) + SESSION_S - time.time()
    if left_s > 0:
        call.retry(left_s)
    else:
        end(key, "silent")


def login(request: HttpRequest) -> HttpResponse:
    request.session["user"] = request.GET["user"]
    request.session["seen"] = time.time()
    request.session.save()
    key = str(request.session.session_key)
    client.call_later_wait(end_session, SESSION_S, key.encode(), id=key, if_exists="replace")
    return HttpResponse(key)


def touch(request: HttpRequest) -> HttpResponse:
    if "user" not in request.session:
        return HttpResponse("the session has ended", status=410)
    request.session["seen"] = time.time()
    request.session.save()
    client.reschedule_call(str(request.session.session_key), SESSION_S)
    return HttpResponse()


def logout(request: HttpRequest) -> HttpResponse:
    if "user" in request.session:
        key = str(request.session.session_key)
        client.cancel_call(key)
        end(key, "logout")
    return HttpResponse()


def pid(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(os.getpid()))


client.serve(calls)  # in each worker, which loads this module after its fork; so do not preload it
urlpatterns = [path("login", login), path("touch", touch), path("logout", logout), path("pid", pid)]
application = WSGI(get_wsgi_application())
