"""Whole brokers in one loop, without processes and without sockets."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import timerd as td
from timerd_kafka.apis.table import APIS
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.settings import Settings
from timerd_kafka.wire.codec import Question, api_of
from timerd_kafka.wire.connection import Buffers, Connection


@contextmanager
def brokers(data: Path, number: int, **more: Any) -> Iterator[list[Broker]]:
    """All brokers of a cluster. Each broker has a client of its own, as if it ran in its own process.

    A broker opens the partitions of new topics at once here. A real broker serves requests between two of them, if the
    first takes long: on a busy machine its loop would have to run before the topics are there.
    """
    (data / "cluster_id").write_text("c")
    settings = Settings(data=data, workers=number, replicas=1, ports=tuple(range(1, number + 1)), **more)
    clients = [td.connect() for _ in range(number)]
    with warnings.catch_warnings(action="ignore"):  # td warns: the loop stands still while a purgatory is made
        made = [Broker(settings, n, client, asyncio.get_running_loop(), {}) for n, client in enumerate(clients)]
    try:
        with patch("timerd_kafka.broker.broker.OPEN_S", 60.0):
            yield made
    finally:
        for client in clients:
            client.close()
        for broker in made:
            for partition in broker.store:
                partition.log.close()  # each has an open file; a process may have 1,024


def unconnected(buffers: Buffers | None = None) -> Connection:
    """The connection of a client that is not there: it counts bytes, and nothing is written to it."""
    return Connection(cast(Any, None), set(), buffers or Buffers(), 1 << 20)


async def answer_of(broker: Broker, key: int, version: int, **fields: Any) -> Any:
    """The answer of a broker to a request, whose fields these are."""
    call = Call(api_of(key, version), Question(key, version).request(**fields), "", unconnected())
    return await APIS[key][1](broker, call)
