"""Clients that an application makes when it is imported: each of them connects anew in each test of the application."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.suite.user_tests import run_pytest

SHOP = """
import timerd as td
from flask import Flask

client = td.client()
own = td.Client(transport="unix")
aio_client = td.aio.client()
aio_own = td.aio.Client()
orders = client.purgatory("orders")
prices = client.subscribe("prices")
early = client.register("early", timeout=None)

calls = td.Calls(group="shop")
ran = []

@calls.every("cleanup", seconds=60)
def cleanup(call):
    ran.append("cleanup")

@calls.handler("remind")
def remind(call):
    ran.append(call.payload)

worker = td.Client(group="shop")
worker.serve(calls)

app = Flask(__name__)

@app.get("/poll/<key>")
def poll(key):
    value = client.register(key, timeout=25).result().check()
    return ("", 204) if value is None else (value, 200)

@app.post("/post/<key>")
def post(key):
    return {"answered": client.fire_wait(key, value=b"hello")}
"""

SHOP_ASGI = """
import json

import timerd as td
from fastapi import FastAPI

client = td.aio.client()

def create_app(client=client):
    app = FastAPI()

    @app.get("/poll/{key}")
    async def poll(key: str):
        return {"value": (await client.register(key, timeout=25)).check()}

    @app.post("/post/{key}")
    async def post(key: str):
        return {"answered": await td.aio.client().fire_wait(key, value=b"hello")}

    return app

app = create_app()

async def request(app, method, path):
    sent = []
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    async def send(message):
        sent.append(message)
    await app({"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
               "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "headers": []},
              receive, send)
    return json.loads(b"".join(message.get("body", b"") for message in sent))
"""

MANUAL = """
import asyncio
import threading
import time

import pytest
import timerd as td

import shop
import shop_asgi
from shop_asgi import request

client = td.client()
twice = pytest.mark.parametrize("number", range(2))


@twice
def test_threaded_clients(timerd_manual, number):
    assert td.client() is client is shop.client
    with timerd_manual.autojump():
        for made, id in (client, "a"), (shop.own, "b"), (shop.orders, "b"):
            assert made.register("inbox/7", timeout=25, id=id).result().state is td.State.EXPIRED
    assert timerd_manual.now == 75


@twice
def test_asyncio_clients(timerd_manual, number):
    async def main():
        assert td.aio.client() is shop.aio_client
        for made in (shop.aio_client, shop.aio_own):
            assert (await made.register("inbox/7", timeout=25)).state is td.State.EXPIRED
    timerd_manual.run(main())
    timerd_manual.run(main())                  # another loop
    assert timerd_manual.now == 100


@twice
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_loop_of_pytest_for_each_test(timerd_manual, number, anyio_backend):
    operation = shop.aio_client.register("inbox/7", timeout=25)
    timerd_manual.advance(25)
    assert (await operation).state is td.State.EXPIRED
    assert await shop.aio_own.fire_wait("inbox/7") == 0


@twice
def test_what_was_served_at_import(timerd_manual, number):
    shop.ran.clear()
    timerd_manual.advance(180)
    assert shop.ran == ["cleanup"] * 3
    shop.worker.call_later("remind", 30, b"user 7")
    timerd_manual.advance(31)
    assert b"user 7" in shop.ran


@twice
def test_what_was_subscribed_at_import(timerd_manual, number):
    client.fire("prices", value=b"one")
    assert shop.prices.next().value == b"one"
    client.fire("prices", value=b"two")        # the next test does not see it


taken = []


def listen():
    for event in shop.own.subscribe("x"):
        if not isinstance(event, td.Gap):          # a gap may come where a test begins
            taken.append(event.value)


listener = threading.Thread(target=listen, daemon=True)


@twice
def test_a_thread_that_listens_for_longer_than_a_test(timerd_manual, number):
    if listener.ident is None:
        listener.start()
    taken.clear()
    while taken != [b"hello"]:                 # until it has subscribed in this test
        shop.own.fire("x", value=b"hello")
        timerd_manual.advance(0)
        time.sleep(0.01)
        taken[1:] = []


@twice
def test_a_wsgi_application(timerd_manual, number):
    web = shop.app.test_client()
    with timerd_manual.autojump():
        assert web.get("/poll/inbox").status_code == 204
    found = []
    thread = threading.Thread(target=lambda: found.append(web.get("/poll/inbox").data))
    thread.start()
    timerd_manual.until_waiting(1)
    assert web.post("/post/inbox").json == {"answered": 1}
    thread.join()
    assert found == [b"hello"]


@twice
@pytest.mark.parametrize("made", [lambda: shop_asgi.app, lambda: shop_asgi.create_app(td.aio.Client())])
def test_an_asgi_application(timerd_manual, made, number):
    async def main(app):
        poll = asyncio.ensure_future(request(app, "GET", "/poll/inbox"))
        await asyncio.sleep(1)
        assert await request(app, "POST", "/post/inbox") == {"answered": 1}
        return await poll
    assert timerd_manual.run(main(made())) == {"value": "hello"}


def test_a_closed_client_stays_closed(timerd_manual):
    with td.Client() as closed:
        closed.flush()
    with pytest.raises(td.ClosedError):
        closed.fire("inbox/7")


def test_an_operation_of_the_import_has_ended(timerd_manual):
    assert isinstance(shop.early.result().error, td.ClosedError)
"""

REAL = """
import time

import pytest
import timerd as td

import shop

client = td.client()
twice = pytest.mark.parametrize("number", range(2))


def answers(made):                             # makes no call that gives up on a busy machine
    operation = made.register("inbox/7", timeout=None, id=f"job/7 of {id(made)}")
    made.fire("inbox/7")
    assert operation.result().state is td.State.COMPLETED


@twice
def test_threaded_clients(timerd_daemon, number):
    for made in (client, shop.own, shop.orders):
        answers(made)
    client.flush(timeout=60)                   # raises no error of an earlier test
    shop.own.flush(timeout=60)


@twice
def test_the_client_of_the_fixture(timerd_client, number):
    assert timerd_client is client


@twice
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_loop_of_pytest_for_each_test(timerd_daemon, number, anyio_backend):
    for made in (shop.aio_client, shop.aio_own):
        operation = made.register("inbox/7", timeout=None)
        made.fire("inbox/7")
        assert (await operation).state is td.State.COMPLETED
        await made.flush(timeout=60)


@twice
def test_what_was_served_and_subscribed_at_import(timerd_daemon, number):
    shop.ran.clear()
    shop.worker.call_later("remind", 0, b"user 7")
    while b"user 7" not in shop.ran:
        time.sleep(0.01)
    client.fire("prices", value=b"one")
    assert shop.prices.next().value == b"one"


def test_one_test_on_the_clock(timerd_manual):
    assert client.fire_wait("a") == shop.own.fire_wait("a") == 0


def test_both(timerd_client, timerd_manual):
    assert timerd_client.fire_wait("a") == shop.own.fire_wait("a") == 0
    assert timerd_client.mark().incarnation == timerd_manual._driver.daemon.map_arena().header().incarnation


def test_and_a_daemon_again(timerd_daemon):
    answers(client)
    answers(shop.own)
"""

FACTORY = """
import pytest
import timerd as td


def create_app():                              # another application's: each test calls it
    td.configure(group="factory", name="factory")
    client, calls, ran = td.client(), td.Calls(), []

    @calls.every("tick", seconds=60)
    def tick(call):
        ran.append(call)

    client.serve(calls)
    return client, ran

made = []

@pytest.mark.parametrize("number", range(3))
def test_each_application_has_a_client_of_its_own(timerd_manual, number):
    client, ran = create_app()
    assert client is td.client() and client.group == "factory" and client not in made
    made.append(client)
    timerd_manual.advance(120)
    assert len(ran) == 2                       # applications of earlier tests take no calls


def test_a_late_import(timerd_manual):
    import late
    late.client.fire_wait("a")


def test_a_module_that_was_imported_by_a_test_has_its_client(timerd_manual):
    import late
    assert late.client.fire_wait("a") == 0


def test_settings_end_with_the_test(timerd_manual):
    assert (td.client().group, td.client().name) == (None, "")
"""


FILES = {
    "shop.py": SHOP,
    "shop_asgi.py": SHOP_ASGI,
    "late.py": "import timerd as td\nclient = td.client()\n",
    "test_manual.py": MANUAL,
    "test_real.py": REAL,
    "test_factory.py": FACTORY,
}
BACKWARDS = "def pytest_collection_modifyitems(items):\n    items.reverse()\n"


@pytest.mark.long
@pytest.mark.timeout(400)  # each case runs a pytest of its own, with a daemon
@pytest.mark.parametrize(
    ("words", "conftest"),
    [
        (("-n0", "test_manual.py", "test_real.py"), BACKWARDS),
        pytest.param(("-n2", "test_manual.py", "test_real.py"), "", marks=pytest.mark.long),
        (("-n0", "test_factory.py"), ""),
    ],
    ids=["backwards", "two workers", "a factory"],
)
def test_clients_of_modules_connect_anew_in_each_test(runtime_dir: Path, words: tuple[str, ...], conftest: str) -> None:
    ended = run_pytest(runtime_dir, FILES | {"conftest.py": conftest}, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
