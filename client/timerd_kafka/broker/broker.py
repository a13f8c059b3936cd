"""The state of one broker. Its APIs read and change it, in its loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

import timerd_client as td
from timerd_client.operations import Replicas, ThrottledChannel, topic_key
from timerd_kafka.broker.producer_ids import ProducerIds
from timerd_kafka.cluster.catalog import Catalog, Topic
from timerd_kafka.cluster.configs import without_effect
from timerd_kafka.cluster.settings import Settings
from timerd_kafka.faults.faults import Faults
from timerd_kafka.groups.coordinator import Coordinator
from timerd_kafka.quotas import Quotas
from timerd_kafka.replicas.follower import Followers
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.replicas.store import Store
from timerd_kafka.waits.waits import Waits
from timerd_kafka.wire.codec import Api
from timerd_kafka.wire.connection import Connection

LOOK_S = 0.002  # the least time between two looks at the file of the topics
OPEN_S = 0.01  # the longest time for which the opening of partitions keeps the loop from other work
RETAIN_S = 1.0  # between two looks for records whose retention has ended
NOTED_MAX = 1_000  # configurations without effect that are logged
WITHOUT_EFFECT = "has no effect here, and is only kept"
WITHOUT_COMPACTION = "compacts nothing here"  # although each record needs a key
CATALOG = "catalog"  # the key whose events are the changes of the topics
ANY = topic_key("")  # each event on this key means that a broker has read a version of the topics

log = logging.getLogger("timerd_kafka.broker")


class Call(NamedTuple):
    """A request of a client, as its API's module gets it."""

    api: Api
    body: Any
    client_id: str
    connection: Connection


class Broker:
    """One broker of the cluster."""

    def __init__(
        self,
        settings: Settings,
        number: int,
        client: td.Client,
        loop: asyncio.AbstractEventLoop,
        api_keys: dict[int, str],
    ) -> None:
        """`api_keys`: the names of the broker's APIs, by their keys."""
        self.settings, self.id, self.loop, self.api_keys = settings, number, loop, api_keys
        self.cluster_id = (settings.data / "cluster_id").read_text()
        self.catalog = Catalog(settings.data)
        self.catalog.refresh()
        self._looked = self._retained = 0.0
        # `_taken`: the version whose topics the broker uses; it may be older than the catalog's version.
        # `_opened`: the version whose partitions are open. `_acknowledged`: the version that the timer daemon has.
        self._taken, self._opened, self._acknowledged = self.catalog.version, 0, 0
        self._taken_topics, self._opened_topics = self._topics(), set[tuple[str, UUID]]()
        self._is_opening = False
        self.pause: asyncio.Future[Any] | None = None  # the last pause because another broker changed the topics
        self._noted: set[tuple[str, str]] = set()  # topics and names of configurations that were logged
        directory = settings.data / f"broker-{number}"
        self.store = Store(directory, self.catalog, number, settings.workers)
        self.waits = Waits(client, loop)
        self.unpacking = asyncio.Lock()  # held while an unpacked batch is read: it may take 256 MiB
        names = [str(one) for one in range(settings.workers)]
        self.readers = Replicas(self.waits["topic"], names)
        others = [name for name in names if name != str(number)]
        self.others = Replicas(self.waits["topic"], others) if others else None
        addresses = [(settings.local_host, port) for port in settings.ports]
        self.followers = Followers(self.store, number, addresses, settings.secret, self.more_to_read)
        self.producer_ids = ProducerIds(directory / "producer_ids", number, settings.workers)
        self.coordinator = Coordinator(self)
        self.faults = Faults(settings.data, number, settings.secret)
        self.produced = Quotas(
            settings.data / "quotas/produce", settings.produce_quota, settings.quota_window, number, settings.workers
        )
        self.fetched = Quotas(
            settings.data / "quotas/fetch", settings.fetch_quota, settings.quota_window, number, settings.workers
        )

    # topics -----------------------------------------------------------------------------------------------------------

    def topic(self, name: str | None, topic_id: UUID | None = None) -> Topic | None:
        """A topic by its name or its id. If it is unknown, the file of the topics is read again."""
        for is_last in (False, True):
            found = self.catalog.by_id.get(topic_id) if topic_id else self.catalog.by_name.get(name or "")
            if found is not None or is_last or not self.refresh():
                return found
        return None

    def refresh(self) -> bool:
        """Take the newest topics: open new partitions, and drop deleted ones. Returns whether any topic has changed."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return False  # a request may name many unknown topics: the file is not read for each of them
        self._looked = now
        if not self.catalog.refresh() and self._taken == self.catalog.version:
            return False
        self.take_topics()
        return True

    def look(self) -> None:
        """Look for new topics, and try again what has failed: to open partitions, to acknowledge the topics."""
        self.refresh()
        if not self._is_opening and self.store.try_again():
            self._open()
        if self._acknowledged != self._opened and self._acknowledge():
            self.waits.fire("topic", ANY)  # requests that wait for this version look again

    def take_topics(self) -> None:
        """Open and drop partitions as the topics demand, and then acknowledge the version of the topics.

        Requests that change topics wait until all brokers have acknowledged it.
        """
        before, self._taken_topics = self._taken_topics, self._topics()
        self._taken = self.catalog.version
        for partition in self.store.refresh():
            for purgatory in ("produce", "fetch", "replica"):
                self.waits.fire(purgatory, partition.key)
        if not self._is_opening:
            self._open()
        if deleted := {topic_id for _, topic_id in before - self._taken_topics}:
            self.coordinator.topics_deleted(deleted)

    def _open(self) -> None:
        """Open partitions, some at a time, so that requests are answered in between."""
        self._is_opening = self.store.open_some(OPEN_S)
        if self._is_opening:
            self.loop.call_soon(self._open)
            return
        self.followers.refresh()
        is_new = self._opened != self._taken
        self._opened = self._taken  # even if some partitions cannot be opened: nobody waits for them
        self._acknowledge()
        changed, self._opened_topics = self._opened_topics ^ self._taken_topics, self._taken_topics
        names = [topic_key(name) for name in {name for name, _ in changed}]
        self.waits.fire("topic", *[ANY] * is_new, *names)

    def _acknowledge(self) -> bool:
        """Acknowledge the version whose partitions are open. Returns whether the timer daemon has taken it."""
        try:
            self.readers.acknowledge(CATALOG, str(self.id), self._opened)
        except td.TimerdError:
            log.warning("the timer daemon did not take the version of the topics, which is sent again", exc_info=True)
            return False
        self._acknowledged = self._opened
        return True

    def _topics(self) -> set[tuple[str, UUID]]:
        return {(topic.name, topic.id) for topic in self.catalog.by_id.values()}

    def say_catalog_changed(self) -> None:
        """Make all brokers read the topics. This broker reads them at once."""
        self._looked = 0.0
        self.refresh()
        self.waits.fire("replica", CATALOG)

    def all_have_read(self, version: int) -> bool:
        """Whether all brokers have read this version of the topics. The timer client's thread calls it, too.

        For this broker its own variable counts, and not its watermark. The watermark may still be on its way to the
        daemon, and its arrival is no event that would make the operation look again.
        """
        return self._opened >= version and (self.others is None or self.others(CATALOG, version)[0])

    def note_without_effect(self, topic: str, configs: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Log the configurations of a topic that have no effect here: each once.

        `before`: the configurations that the topic had; perhaps another broker has logged them.
        """
        for name in without_effect(configs):
            is_new = name not in without_effect(before) and (topic, name) not in self._noted
            if is_new and len(self._noted) < NOTED_MAX:
                self._noted.add((topic, name))
                what = WITHOUT_COMPACTION if name == "cleanup.policy" else WITHOUT_EFFECT
                log.warning("topic %s: %s=%s %s", topic, name, configs[name], what)

    # partitions -------------------------------------------------------------------------------------------------------

    def led(self, topic: Topic | None, index: int) -> Partition | ErrorCode:
        """The partition, if this broker leads it; else an error code."""
        found = self.held(topic, index)
        if isinstance(found, Partition) and not found.is_leader:
            return ErrorCode.not_leader_or_follower
        return found

    def held(self, topic: Topic | None, index: int) -> Partition | ErrorCode:
        """The partition, if this broker has a replica of it; else an error code."""
        if topic is None or not 0 <= index < topic.partitions:
            return ErrorCode.unknown_topic_or_partition
        found = self.store.get(topic, index)
        if found is not None and found.log.is_damaged:
            return ErrorCode.kafka_storage_error
        return found or ErrorCode.not_leader_or_follower

    def appended(self, partition: Partition) -> None:
        """A producer's records were appended: wake the followers, or the consumers of a partition without followers."""
        if len(partition.replicas) > 1:
            self.waits.fire("replica", partition.key)
        else:
            self.waits.fire("fetch", partition.key)
        self.retain(partition)

    def retain(self, partition: Partition) -> None:
        """Delete the records of a partition that the retention of its topic no longer keeps."""
        if partition.retain(time.time_ns() // 1_000_000):
            self.replicated(partition)

    def retain_all(self) -> None:
        """Once a second, delete the records that the retention of their topics no longer keeps."""
        now = time.monotonic()
        if now - self._retained < RETAIN_S:
            return
        self._retained = now
        for partition in self.store:
            if partition.is_leader:
                self.retain(partition)

    def replicated(self, partition: Partition) -> None:
        """The watermarks of a partition have risen: wake the requests that wait for replicas, and all readers."""
        self.waits.fire("produce", partition.key)
        self.more_to_read(partition)

    def more_to_read(self, partition: Partition) -> None:
        """Wake consumers, which may read more, and followers, which may learn new watermarks."""
        self.waits.fire("fetch", partition.key)
        if partition.is_leader and len(partition.replicas) > 1:
            self.waits.fire("replica", partition.key)

    # quotas -----------------------------------------------------------------------------------------------------------

    def throttle(self, quotas: Quotas, call: Call, size: int) -> float:
        """Note bytes that a client used. If the client is beyond its quota, mute its connection.

        Returns the seconds for which the connection is muted.
        """
        seconds = round(quotas.record(call.client_id, size, time.monotonic()), 3)  # rounded to ms, as in the answer
        if seconds > 0:
            connection = call.connection
            make: Callable[[Callable[..., Any]], ThrottledChannel] = partial(
                ThrottledChannel, connection.peer, connection.mute
            )
            wait = self.waits.begin("quota", seconds, make)
            if wait.future.done():  # the timer daemon does not take the operation
                seconds = 0.0
            connection.closing.append(wait.cancel)
            wait.future.add_done_callback(partial(unmute, connection))
        return seconds


def unmute(connection: Connection, waited: asyncio.Future[Any]) -> None:
    """Unmute: the throttle time is over, or the wait for it has ended with the timer daemon or the connection."""
    if not waited.cancelled():
        waited.exception()  # marks it as seen: else asyncio would log it
    connection.unmute()
