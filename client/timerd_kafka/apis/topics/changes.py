"""Changes of the topics, by one broker at a time. A request waits until all brokers have read its change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from kio.schema.errors import ErrorCode

from timerd_client.operations import DelayedTopics, Part, ThrottledChannel
from timerd_kafka.broker.broker import ANY, Broker
from timerd_kafka.cluster.catalog import Busy
from timerd_kafka.waits.waits import DaemonLost

TWICE = ErrorCode.invalid_request, "the topic is in this request more than once"
PAUSE_S = 0.01  # between two tries while another broker changes the topics

log = logging.getLogger("timerd_kafka.broker")

Codes = Mapping[str, ErrorCode]  # by the names of topics


class Refused(Exception):
    """A change of one topic that is refused."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


async def change_and_wait(
    broker: Broker, named: Iterable[str], timeout: float, change: Callable[[], Codes]
) -> dict[str, ErrorCode]:
    """Change topics, and wait until all brokers have read them. Returns an error code for each topic.

    `change` changes the catalog. It returns the topics that it has changed, with `none`, and may return others with
    their errors. `named`: the topics that get an error if the catalog cannot be changed.
    """
    end = broker.loop.time() + timeout
    try:
        codes = await change_in_turn(broker, end, change)
    except OSError:
        log.exception("the topics cannot be written")
        return dict.fromkeys(named, ErrorCode.kafka_storage_error)
    except (Busy, DaemonLost):
        return dict.fromkeys(named, ErrorCode.request_timed_out)
    if not codes:
        return {}
    parts = await all_read(broker, codes, max(0.0, end - broker.loop.time()))
    return {name: ErrorCode(part.error) for name, part in parts.items()}


async def change_in_turn(broker: Broker, end: float, change: Callable[[], Codes]) -> Codes:
    """Call `change` until no other broker is changing the topics. Raises Busy after `end`, DaemonLost, OSError."""
    while True:
        try:
            return change()
        except Busy:
            if broker.loop.time() >= end:
                raise
        if broker.pause is None or broker.pause.done():  # all requests of a broker wait together
            broker.pause = broker.waits.begin(
                "topic", PAUSE_S, lambda give: ThrottledChannel("topics", lambda: None, give)
            ).future
        await asyncio.shield(broker.pause)


class ReadByAll(DelayedTopics):
    """Complete when all brokers have read the topics.

    The operation waits for a version of the catalog. This version may be newer than the topics of the request, because
    another broker may have changed other topics since. Perhaps a broker had read the topics of the request before this
    version. For this version it fires only the keys of the other topics. So each broker also fires ANY for each version
    that it reads.
    """

    def watch_keys(self) -> Iterable[str]:
        return [*super().watch_keys(), ANY] if self.pending else []


async def all_read(broker: Broker, taken: Codes, timeout: float) -> dict[str, Part]:
    """Wait until all brokers have read the topics as they are now."""
    broker.say_catalog_changed()
    version = broker.catalog.version
    try:
        parts: dict[str, Part] = await broker.waits.until(
            "topic", timeout, lambda give: ReadByAll(taken, lambda _: broker.all_have_read(version), give)
        )
    except DaemonLost:
        return {name: Part(error or ErrorCode.request_timed_out) for name, error in taken.items()}
    return parts
