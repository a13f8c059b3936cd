"""timerctl web: what the server answers, what it refuses, and that nothing is read while no page is open."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from support.real.shell import Run
from support.rig.harness import Rig
from timerctl.exits import Exit
from timerctl.live import samples as samples_module
from timerctl.web import answers as answers_module
from timerctl.web import feed as feed_module
from timerctl.web.acts import act
from timerctl.web.answers import Answers
from timerctl.web.feed import Feed
from timerctl.web.server import STREAMS_MAX, Server
from timerd_shm.host.search import find_instance
from timerd_shm.read.reader import ArenaReader


class Page:
    """A client of the server, as a browser with the page is one."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.host = f"127.0.0.1:{server.server_port}"

    def ask(
        self, path: str, *, token: str | None = None, method: str = "GET", body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """The answer: its status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=PATIENCE_S)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, f"/{token or self.server.token}/{path}", body, {"Host": self.host} | named)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def act(self, wish: Any, **headers: str) -> tuple[int, Any]:
        given = {"Content_Type": "application/json", "Origin": f"http://{self.host}"} | headers
        status, _, body = self.ask("act", method="POST", body=json.dumps(wish), **given)
        return status, json.loads(body)

    @contextmanager
    def stream(self) -> Iterator[Callable[[], Any]]:
        """A function that gives the next message of the stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=PATIENCE_S)
        connection.request("GET", f"/{self.server.token}/events", headers={"Host": self.host})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()

        def following() -> Any:
            while not (line := answer.readline()).startswith(b"data: "):
                assert line, "the stream has ended"
            return json.loads(line[6:])

        try:
            yield following
        finally:
            answer.close()
            connection.close()


@contextmanager
def serving(*, acts: bool = False) -> Iterator[Page]:
    paths = find_instance(None)
    feed = Feed(paths)
    made = Server(0, feed, Answers(paths, feed, None), (lambda wish: act(paths, None, wish)) if acts else None)
    with made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Page(made)
        finally:
            made.shutdown()
            thread.join()


@pytest.fixture
def page(dead: Rig) -> Iterator[Page]:
    """The page of a dead daemon's arena, in which everything is in use."""
    with serving() as made:
        yield made


# what is refused ------------------------------------------------------------------------------------------------------


def test_without_its_token_the_page_says_nothing(page: Page) -> None:
    for token in ("x", page.server.token[:-1], page.server.token + "x"):
        status, _, body = page.ask("", token=token)
        assert status == 403 and b"token is wrong" in body


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}"])
def test_another_host_is_refused_whatever_leads_here(page: Page, host: str) -> None:
    """A name of another site may lead to 127.0.0.1 (DNS rebinding). Its requests have the name as their Host."""
    status, _, _ = page.ask("rows?view=keys", Host=host.format(port=page.server.server_port))
    assert status == 421


def test_a_request_of_another_site_is_refused(page: Page) -> None:
    assert page.ask("rows?view=keys", Origin="http://evil.example")[0] == 403
    assert page.ask("rows?view=keys", Origin=f"http://{page.host}")[0] == 200


def test_each_answer_forbids_what_the_page_does_not_need(page: Page) -> None:
    for path in ("", "page.js", "page.css", "rows?view=keys", "nothing"):
        _, headers, _ = page.ask(path)
        assert "default-src 'none'" in headers["Content-Security-Policy"] and headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("rows?view=nothing", "no table 'nothing'"),
        ("rows?view=keys&order=nothing", "cannot be sorted by 'nothing'"),
        ("rows?view=keys&from=-1", "from='-1' is not a number"),
        ("operations?from=1e9", "is not a number"),
        ("explain?op=x", "is not the number of an operation"),
    ],
)
def test_a_query_that_no_page_makes_is_an_error_with_its_reason(page: Page, path: str, says: str) -> None:
    status, _, body = page.ask(path)
    assert status == 400 and says in json.loads(body)["error"]


def test_the_page_loads_nothing_from_elsewhere(page: Page) -> None:
    for path in ("", "page.js", "page.css"):
        status, _, body = page.ask(path)
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert status == 200 and "http://" not in text and "https://" not in text and "//cdn" not in text
        assert "innerHTML" not in text, "texts of the arena would become HTML"


# what is answered -----------------------------------------------------------------------------------------------------


def test_each_table_answers_with_its_rows(page: Page, run: Run) -> None:
    for name in ("clients", "keys", "purgatories", "groups", "calls"):
        found = page.get(f"rows?view={name}")
        assert found["count"] == len(found["rows"]) and found["orders"]
        assert all(len(row["cells"]) == len(found["columns"]) for row in found["rows"])
    rows = json.loads(run("keys", "--json")[1])["rows"]
    assert {row["key"] for row in rows} <= {row["key"] for row in page.get("rows?view=keys")["rows"]}
    assert page.get("errors")["rows"] and "\x1b" not in json.dumps(page.get("errors"))
    assert page.get("letters")["count"] >= 0


def test_operations_are_found_by_key_and_owner_and_explained(page: Page, run: Run) -> None:
    rows = json.loads(run("ops", "--json", "--state", "all")[1])["rows"]
    found = page.get("operations")
    assert [row["number"] for row in found["rows"]] == [row["number"] for row in rows] and found["next"] is None
    key = next(row["keys"][0]["key"] for row in rows if row["keys"])
    by_key = page.get(f"operations?key={key}")["rows"]
    assert by_key and all(key in [each["key"] for each in row["keys"]] for row in by_key)
    client = next(row["client"] for row in rows if row["client"] is not None)
    by_owner = page.get(f"operations?owner={client}")["rows"]
    assert {row["number"] for row in by_owner} == {row["number"] for row in rows if row["client"] == client}
    lines = page.get(f"explain?op={rows[0]['number']}")["lines"]
    assert rows[0]["number"] in lines[0]
    assert page.get("operations?owner=nobody")["rows"] == []


def test_a_search_answers_in_windows_that_lose_and_repeat_nothing(
    page: Page, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [row["number"] for row in json.loads(run("ops", "--json", "--state", "all")[1])["rows"]]
    for name, value in (("BUDGET_S", -1.0), ("WINDOW", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(answers_module, name, value)
            start, found = 0, []
            while start is not None:
                window = page.get(f"operations?from={start}")
                assert len(window["rows"]) <= 2
                found += [row["number"] for row in window["rows"]]
                start = window["next"]
            assert found == numbers


def test_a_page_without_a_journal_says_how_to_have_one(page: Page) -> None:
    status, _, body = page.ask("journal")
    assert status == 503 and "--journal DIR" in json.loads(body)["error"]


# the stream -----------------------------------------------------------------------------------------------------------


def test_a_page_gets_the_history_and_then_samples(page: Page) -> None:
    with page.stream() as following:
        first = following()
        assert first["columns"][0] == "at" and first["history"] == []
        sample = following()
        assert sample["findings"][0]["level"] == "error" and not sample["alive"]
        assert len(sample["point"]) == len(first["columns"]) and sample["limits"]
    with page.stream() as following:
        assert len(following()["history"]) >= 1


def test_memory_is_read_only_while_a_page_is_open(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[ArenaReader] = []
    read = samples_module.Samples.read

    def counted_read(self: samples_module.Samples, reader: ArenaReader) -> samples_module.Sample:
        taken.append(reader)
        return read(self, reader)

    monkeypatch.setattr(samples_module.Samples, "read", counted_read)
    monkeypatch.setattr(feed_module, "EVERY_S", 0.01)
    monkeypatch.setattr(feed_module, "SILENT_S", 0.01)

    def readers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "timerctl-web"]

    eventually(lambda: not readers())  # of the tests before
    with page.stream() as following:
        for _ in range(3):
            following()
        assert len(readers()) == 1
    eventually(lambda: not readers(), "the arena is still read, though no page is open")
    counted = len(taken)
    with page.stream() as following:  # a page may be opened again
        following()
        following()
    assert len(taken) > counted >= 2
    eventually(lambda: not readers())


def test_too_many_open_pages_are_refused_and_a_closed_one_makes_room(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "SILENT_S", 0.01)
    opened = [page.stream() for _ in range(STREAMS_MAX)]
    for each in opened:
        each.__enter__()
    status, _, body = page.ask("events")
    assert status == 503 and b"pages are open" in body
    for each in opened:
        each.__exit__(None, None, None)

    def goes() -> bool:
        try:
            with page.stream():
                return True
        except AssertionError:
            return False

    eventually(goes)


# acts -----------------------------------------------------------------------------------------------------------------


def test_the_page_changes_nothing_unless_it_may(page: Page) -> None:
    status, answer = page.act({"act": "drop", "number": 1})
    assert status == 403 and "--act" in answer["error"]
    assert b"data-act" not in page.ask("")[2]


def test_an_act_comes_from_the_page_alone(dead: Rig) -> None:
    with serving(acts=True) as page:
        wish = {"act": "drop", "number": 1}
        assert page.act(wish, Content_Type="text/plain")[0] == 403  # as a form of another site would send it
        assert page.act(wish, Origin="http://evil.example")[0] == 403
        assert page.ask("act", method="POST", body="{}", Content_Type="application/json")[0] == 403
        assert page.act({"act": "destroy"})[0] == 400 and page.act([1])[0] == 400
        assert page.act({"act": "cancel", "id": 7, "group": "g"})[0] == 400
        assert page.act("x" * 5_000)[0] == 413
        assert b"data-act" in page.ask("")[2]


def test_dead_letters_are_retried_and_dropped_and_calls_cancelled(daemon: Daemon) -> None:
    with td.connect(group="jobs", timeout=PATIENCE_S) as client:
        began: list[str] = []

        def fails(call: td.Call) -> None:
            began.append(call.id)
            raise ValueError("it fails")

        for _ in range(2):
            client.call_later_wait("fails", 0)
        client.call_later_wait("fails", 3_600)
        with serving(acts=True) as page:
            serve(client, "fails", fails, retries=0)
            eventually(lambda: page.get("letters")["count"] == 2)
            one, other = (row["number"] for row in page.get("letters")["rows"])
            assert page.act({"act": "drop", "number": one}) == (200, {"done": True})
            assert page.act({"act": "drop", "number": one}) == (200, {"done": False})
            assert page.act({"act": "retry", "number": other}) == (200, {"done": True})
            eventually(lambda: len(began) == 3)
            (row,) = [row for row in page.get("rows?view=calls")["rows"] if row["state"] == "pending"]
            wish = {"act": "cancel", "id": row["id"], "group": "jobs"}
            assert page.act(wish) == (200, {"done": True})
            assert page.act(wish) == (200, {"done": False})


# the command ----------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(dead: Rig, page: Page, run: Run) -> None:
    status, _, err = run("web", "--port", str(page.server.server_port))
    assert status == Exit.USAGE and str(page.server.server_port) in err and "give another --port" in err


def test_without_an_instance_nothing_is_served(runtime_dir: Path, run: Run) -> None:
    assert run("web")[0] == Exit.NO_INSTANCE
