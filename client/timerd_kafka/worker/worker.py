"""The process of one broker: it listens, and ends with SIGTERM or with its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import threading
from collections.abc import Iterable
from typing import Any

import timerd_client as td
from timerd_kafka.apis.table import APIS, handler_of
from timerd_kafka.broker.broker import CATALOG, Broker
from timerd_kafka.cluster.settings import Settings
from timerd_kafka.faults.rules import Rule
from timerd_kafka.groups.group import State
from timerd_kafka.waits.waits import LOOK_S, Waits
from timerd_kafka.wire.connection import Buffers, Connection
from timerd_kafka.wire.ports import shared_port
from timerd_kafka.worker.control import serve_control

DAEMON_S = 30.0  # the longest wait for the timer daemon at the start
BACKLOG = 1_024
END_S = 2.0
SAY_S = 1.0  # between two logged errors of the loop

log = logging.getLogger("timerd_kafka.broker")


def run(settings: Settings, number: int, control: socket.socket, rules: Iterable[Rule] = ()) -> None:
    """Serve as broker `number`, with these faults, until SIGTERM, or until the supervisor ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # partitions and connections take descriptors
    client = td.Client(settings.instance, runtime_dir=settings.runtime_dir, name=f"kafka-broker-{number}")
    client.ready(timeout=DAEMON_S)
    with asyncio.Runner() as runner:
        # Calls that wait for the daemon are made before the loop runs, because nothing in the loop may block.
        broker = Broker(settings, number, client, runner.get_loop(), {key: name for key, (name, _) in APIS.items()})
        broker.readers.prepare(CATALOG)
        broker.faults.set(rules)
        runner.run(serve(broker, control))
    with contextlib.suppress(td.TimerdError):
        client.close(timeout=END_S)


async def serve(broker: Broker, control: socket.socket) -> None:
    """The broker's main coroutine."""
    settings, loop, end = broker.settings, broker.loop, asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, end.set)
    loop.set_exception_handler(Complaints())
    broker.take_topics()
    threading.Thread(target=follow_catalog, args=(broker.waits, broker), daemon=True).start()
    connections: set[Connection] = set()
    buffers, handle = Buffers(), handler_of(broker)
    servers = [
        await loop.create_server(
            lambda: Connection(handle, connections, buffers, settings.request_max),
            sock=shared_port(settings.bind, port),
            backlog=BACKLOG,
        )
        for port in {settings.ports[broker.id], settings.port}
    ]
    link = await serve_control(control, commands(broker), end.set)
    link.say({"ready": broker.id})
    tick(broker, connections)
    await end.wait()
    # A second SIGTERM may come: somebody signals the process group, and then the supervisor signals its brokers. The
    # second SIGTERM would find a closed loop.
    loop.remove_signal_handler(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for server in servers:
        server.close()
    for connection in list(connections):
        connection.transport.abort()


class Complaints:
    """Logs one error of the loop a second: without free descriptors, accept fails thousands of times a second."""

    def __init__(self) -> None:
        self._said = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if loop.time() - self._said > SAY_S:
            self._said = loop.time()
            log.error("%s", context.get("message"), exc_info=context.get("exception"))


def tick(broker: Broker, connections: set[Connection]) -> None:
    """Do the work that no event begins. This repeats every LOOK_S.

    It looks for changes whose events may be lost with the timer daemon, ends waits that a lost daemon does not end,
    deletes old records, and finds connections that clients have closed.
    """
    try:
        broker.look()
        broker.retain_all()
        broker.waits.watch()
        broker.coordinator.look()
        for connection in list(connections):
            connection.look_for_end()
    except Exception:
        log.exception("a periodic look failed; the next one follows")
    broker.loop.call_later(LOOK_S, tick, broker, connections)


def follow_catalog(waits: Waits, broker: Broker) -> None:
    """In a thread: read the topics at once when another broker has changed them."""
    with contextlib.suppress(td.TimerdError):  # the client is closed
        for _ in waits["replica"].subscribe(CATALOG):
            waits.call(broker.refresh)


def commands(broker: Broker) -> dict[str, Any]:
    """The commands that the supervisor may send to this broker."""

    def follow(command: dict[str, Any], *, follows: bool) -> dict[str, Any]:
        done = 0
        for partition in broker.store:
            is_meant = partition.topic.name == command["topic"] and command["partition"] in (None, partition.index)
            if is_meant and not partition.is_leader:
                partition.follows, done = follows, done + 1
        broker.followers.refresh()
        return {"done": done}

    def daemon(command: dict[str, Any]) -> dict[str, Any]:
        broker.waits.daemon_ended = command["ended"]
        return {}

    def faults(command: dict[str, Any]) -> dict[str, Any]:
        broker.faults.set(Rule(**rule) for rule in command["rules"])
        return {}

    def group(command: dict[str, Any]) -> dict[str, Any]:
        found = broker.coordinator.groups.get(command["group"])
        if found is None:
            return {"state": State.DEAD.value, "members": 0}
        return {"state": found.state.value, "members": len(found.members)}

    def records(command: dict[str, Any]) -> dict[str, Any]:
        led = [one for one in broker.store if one.is_leader and one.topic.name == command["topic"]]
        return {"records": {str(one.index): one.high_watermark - one.start_offset for one in led}}

    def state(_: dict[str, Any]) -> dict[str, Any]:
        return {
            "waiting": broker.waits.pending,
            "partitions": {
                f"{partition.topic.name}-{partition.index}": {
                    "leads": partition.is_leader,
                    "end": partition.end_offset,
                    "high_watermark": partition.high_watermark,
                    "log": str(partition.log.path),
                }
                for partition in broker.store
            },
        }

    return {
        "stop_follower": lambda command: follow(command, follows=False),
        "start_follower": lambda command: follow(command, follows=True),
        "daemon": daemon,
        "faults": faults,
        "group": group,
        "records": records,
        "state": state,
    }
