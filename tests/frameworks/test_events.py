"""Server-sent events of a subscription, as a browser reads them from four real workers, of which one is killed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.web import pollers
from support.web.pending import pending
from support.web.servers import ENDS_S, Polls, Server
from support.web.streams import EventSource
from timerd_client.web import events, last_event_id

EVENTS = 200


@pytest.fixture(params=["uvicorn", "gevent", "gthread"])
def start(request: pytest.FixtureRequest, runtime_dir: Path) -> Callable[[int], Server]:
    directory = runtime_dir / "app"
    directory.mkdir()
    shutil.copy(pollers.__file__, directory)

    def start(workers: int) -> Server:
        if request.param == "uvicorn":
            return Server.uvicorn("pollers:asgi", directory, workers=workers)
        flags = ("-k", request.param, "--threads=20")
        return Server.gunicorn("pollers:application", directory, *flags, workers=workers)

    return start


class Reader(threading.Thread):
    """Reads a stream over one connection after another, until it has `count` values."""

    def __init__(self, port: int, count: int) -> None:
        super().__init__(daemon=True)
        self.source = EventSource(port, "/events/k", 2 * PATIENCE_S)
        self.values: list[str] = []
        self.names: set[str] = set()
        self.connections = 0
        self._count = count

    def run(self) -> None:
        while len(self.values) < self._count:
            self.connections += 1
            for sent in self.source.connect():
                if sent.name:
                    self.names.add(sent.name)
                    self.values.append(sent.data)
                if len(self.values) >= self._count:
                    return
            threading.Event().wait(0.02)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_each_stream_has_all_events_once_and_in_order_when_a_worker_and_the_daemon_are_killed(
    daemon: Daemon, start: Callable[[int], Server]
) -> None:
    with start(4) as server, td.connect() as client:
        readers = [Reader(server.port, EVENTS) for _ in range(8)]
        for reader in readers:
            reader.start()
        eventually(lambda: all(reader.source.retries for reader in readers), "the readers are not connected")
        for number in range(EVENTS):
            if number == EVENTS // 4:
                server.busiest().kill()
            if number == EVENTS // 2:
                client.flush()
                daemon.kill()
                daemon.start()
                client.ready(timeout=PATIENCE_S)
            client.fire("k", value=b"%d" % number)
            if number % 10 == 0:
                client.flush()
        for reader in readers:
            reader.join(2 * PATIENCE_S)
            assert reader.values == [str(number) for number in range(EVENTS)], server.log
        assert {name for reader in readers for name in reader.names} == {"fire"}, "no gap, and nothing else"
        assert any(reader.connections > 1 for reader in readers)


@pytest.mark.long
def test_a_stream_ends_with_a_retry_at_sigterm_and_is_forgotten_when_its_reader_goes(
    daemon: Daemon, start: Callable[[int], Server]
) -> None:
    with start(1) as server, Polls(server.port) as polls:
        polls.open("/events/k", 5)
        eventually(lambda: pending(daemon) > 0)
        polls.hang_up()
        eventually(lambda: pending(daemon) == 0, "a subscription without a reader is left")
        polls.open("/events/k", 5)
        eventually(lambda: pending(daemon) > 0)
        assert server.terminate(polls) < ENDS_S
        for answer in polls.done:
            assert answer.status == 200
            assert b"\nretry: 1000\n\n" in answer.body and answer.body.endswith(b"\n\nretry: 0\n\n"), answer


@pytest.mark.long
def test_a_silent_stream_has_heartbeats(daemon: Daemon, start: Callable[[int], Server]) -> None:
    with start(1) as server:
        found = iter(EventSource(server.port, "/events/k", PATIENCE_S).connect())
        assert next(found).retry == "1000"
        assert next(found).comment and next(found).comment


# without a server --------------------------------------------------------------------------------------------------


def read(stream: Iterator[bytes], count: int) -> list[str]:
    return [next(stream).decode() for _ in range(count)]


def test_a_block_has_the_mark_the_kind_and_the_lines(daemon: Daemon) -> None:
    with td.connect() as client:
        subscription = client.subscribe(["k", "w"])
        stream = events(subscription, heartbeat=PATIENCE_S)
        client.fire("k", value=b"one\r\ntwo\rthree")
        client.advance("w", 7)
        retry, fired, advanced = read(stream, 3)
        assert retry.endswith("\nretry: 1000\n\n")
        head, name, *lines = fired.split("\n")
        assert (name, lines) == ("event: fire", ["data: one", "data: two", "data: three", "", ""])
        assert "event: advance\ndata: \n\n" in advanced
        mark = last_event_id({"HTTP_LAST_EVENT_ID": head.removeprefix("id: ")})
        assert mark == last_event_id({"headers": [(b"last-event-id", head.removeprefix("id: ").encode())]})
        again = events(
            client.subscribe(["k", "w"], since=mark), data=lambda event: f"{event.kind} {event.watermark}", heartbeat=9
        )
        assert "data: advance 7\n\n" in read(again, 2)[1]
        subscription.close()
        assert list(stream) == []


def test_a_stream_that_breaks_before_its_first_event_goes_on_where_it_began(daemon: Daemon) -> None:
    with td.connect() as client:
        begun, *_ = read(events(client.subscribe("k")), 1)  # and then the connection breaks
        client.fire("k", value=b"meanwhile")
        client.flush()
        mark = last_event_id({"HTTP_LAST_EVENT_ID": begun.split("\n")[0].removeprefix("id: ")})
        assert "data: meanwhile\n\n" in read(events(client.subscribe("k", since=mark), heartbeat=PATIENCE_S), 2)[1]


@pytest.mark.parametrize("text", ["", "7", "../etc", "0" * 1000, "0000000000000001-", "\udcff"])
def test_a_foreign_last_event_id_begins_a_new_stream(text: str) -> None:
    assert last_event_id({"HTTP_LAST_EVENT_ID": text}) is None
    assert last_event_id({"headers": [(b"last-event-id", text.encode(errors="replace"))]}) is None
    assert last_event_id({}) is None


def test_a_gap_is_an_event_of_its_own(daemon: Daemon) -> None:
    with td.connect() as client:
        mark = client.mark()
        client.fire_many(["k"] * 3_000)  # more than the ring of a small arena holds
        client.flush()
        stream = events(client.subscribe("k", since=mark), heartbeat=PATIENCE_S)
        assert "event: gap\ndata: overwritten\n\n" in read(stream, 2)[1]
