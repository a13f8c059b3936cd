"""The process of the suite `deliveries`: sends records to a URL, each at its planned time, and notes how they settle.

    python -m bench.lib.delivery_sender '{"url": ..., "count": ..., "rate": ..., "lanes": ..., "collector": "on",
                      "settings": {...}}' FILE

A stop of the process delays the plan: records that were planned for that time are not sent in a burst. FILE gets a JSON
list. Its entry for a record has the time (monotonic, ns) when send() had returned, the times of the callbacks, and the
outcome.
"""

from __future__ import annotations

import gc
import http.client
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import timerd as td
from timerd_client.delivery import Delivery, Producer, RetriableError

BATCH_S = 0.001  # records that are planned within this time are sent together, without a pause between them


class Sent:
    """A record that was sent, and its outcome."""

    __slots__ = ("callbacks", "lane", "number", "outcome", "returned_ns")

    def __init__(self, number: int, lane: int) -> None:
        self.number = number
        self.lane = lane
        self.returned_ns = 0
        self.callbacks: list[int] = []
        self.outcome = ""

    def settled(self, delivery: Delivery) -> None:
        """The record's callback."""
        self.callbacks.append(time.monotonic_ns())
        self.outcome = delivery.outcome.value


class Poster:
    """POSTs batches, each thread over a connection of its own."""

    def __init__(self, url: str, timeout: float) -> None:
        self._address = urlsplit(url).netloc
        self._timeout = timeout
        self._own = threading.local()

    def __call__(self, lane: Any, records: Sequence[Sent]) -> None:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = http.client.HTTPConnection(self._address, timeout=self._timeout)
        try:
            connection.request("POST", "/", json.dumps([record.number for record in records]))
            answer = connection.getresponse()
            answer.read()
        except BaseException:
            connection.close()
            raise
        if answer.status >= 500:
            raise RetriableError(f"status {answer.status}")
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")


def main() -> None:
    plan = json.loads(sys.argv[1])
    settings = plan["settings"]
    records = [Sent(number, number % plan["lanes"]) for number in range(plan["count"])]
    each = max(1, round(plan["rate"] * BATCH_S))
    with td.connect() as client, Producer(client, Poster(plan["url"], settings["request_timeout"]), **settings) as made:
        gc.freeze()  # the many records of this bench, which are not the producer's garbage
        if plan["collector"] == "off":
            gc.disable()
        print("ready", flush=True)
        next_s = time.monotonic()
        for first in range(0, len(records), each):
            for record in records[first : first + each]:
                made.send(record, lane=record.lane, on_delivery=record.settled)
                record.returned_ns = time.monotonic_ns()
            next_s += each / plan["rate"]
            if (wait_s := next_s - time.monotonic()) > 0:
                time.sleep(wait_s)
            else:
                next_s -= wait_s
    rows = [[record.returned_ns, record.callbacks, record.outcome] for record in records]
    Path(sys.argv[2]).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
