"""Three unmodified clients of Kafka behind one interface: kafka-python, aiokafka and confluent-kafka.

A process has one client, so a call that blocks the process's loop disturbs no other client. Settings that are not given
here have the client's defaults. All producers are set to be idempotent, unless the plan has `acks`. By default only
kafka-python's is.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

Done = Callable[[int, str], None]  # the offset, and the error or ""
Row = tuple[int, int, bytes]  # partition, offset, value

BATCH_MAX = 32 << 20  # bytes of a batch that has all records of a partition
LINGER_MS = 60_000  # such a batch is sent before, by a flush


class Producer(ABC):
    """Sends records."""

    throttles_ms: list[float]

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, self.throttles_ms = plan, []

    async def start(self) -> None:
        """Connect, if the constructor has not."""
        return

    @abstractmethod
    async def send(self, partition: int, value: bytes, done: Done, time_ms: int | None) -> None:
        """Send a record. `done` is called once, in any thread. Without a time the client chooses it."""

    @abstractmethod
    async def flush(self) -> None:
        """Send the records of a plan with `one_batch`, and wait for their answers."""

    @abstractmethod
    async def breathe(self) -> None:
        """Let the requests in flight go on for a moment."""

    @abstractmethod
    async def close(self) -> None:
        """Close, when all records are answered."""


class Consumer(ABC):
    """Reads records: of all partitions of a topic, or as a member of a group."""

    POLL_S = 0.1  # the seconds that a poll waits

    def __init__(self, plan: dict[str, Any], changed: Callable[[], object] = lambda: None) -> None:
        """`changed` may be called in a poll, when the result of assigned() has changed."""
        self.plan, self.changed = plan, changed

    @abstractmethod
    async def start(self) -> None:
        """Connect, and subscribe or assign."""

    @abstractmethod
    async def poll(self, seconds: float) -> list[Row]:
        """Wait for records, and return those that have come."""

    @abstractmethod
    def assigned(self) -> list[int]:
        """The partitions that this consumer has."""

    @abstractmethod
    async def commit(self, offsets: dict[int, int]) -> None:
        """Commit these offsets, and wait for the answer."""

    @abstractmethod
    async def committed(self, partitions: int) -> dict[int, int]:
        """The committed offsets."""

    @abstractmethod
    async def close(self) -> None:
        """Close. A member leaves its group."""


# kafka-python ---------------------------------------------------------------------------------------------------------


class KafkaPythonProducer(Producer):
    def __init__(self, plan: dict[str, Any]) -> None:
        from kafka import KafkaProducer

        super().__init__(plan)
        self._made = KafkaProducer(
            bootstrap_servers=plan["bootstrap"],
            client_id=plan["name"],
            compression_type=plan.get("codec"),
            **acks_of(plan, "acks", "enable_idempotence"),
            **batch_of(plan, batch_size=BATCH_MAX, max_request_size=BATCH_MAX, linger_ms=LINGER_MS),
        )
        self._came = threading.Event()

    async def send(self, partition: int, value: bytes, done: Done, time_ms: int | None) -> None:
        def ended(offset: int, why: str) -> None:
            done(offset, why)
            self._came.set()

        future = self._made.send(self.plan["topic"], value, partition=partition, timestamp_ms=time_ms)
        future.add_callback(lambda sent: ended(sent.offset, ""))
        future.add_errback(lambda error: ended(-1, type(error).__name__))

    async def flush(self) -> None:
        self._made.flush()

    async def breathe(self) -> None:
        self._came.wait(0.01)
        self._came.clear()

    async def close(self) -> None:
        self._made.flush()
        for name, value in self._made.metrics().get("producer-metrics", {}).items():
            if name in ("throttle-time-max", "throttle-time-avg"):
                self.throttles_ms.append(float(value))
        self._made.close()


class KafkaPythonConsumer(Consumer):
    # This client joins its group in its polls, and needs many polls if they are short. And version 3.0.12 loses the
    # answer to its SyncGroup if the answer comes as a poll ends: then the member has no partitions, but goes on to send
    # heartbeats.
    POLL_S = 1.0

    async def start(self) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                return

            def on_partitions_assigned(_, assigned: Any) -> None:
                self.changed()

        plan = self.plan
        self._part = TopicPartition
        self._made = KafkaConsumer(
            bootstrap_servers=plan["bootstrap"],
            client_id=plan["name"],
            auto_offset_reset="earliest",
            group_id=plan.get("group"),
            group_instance_id=plan.get("instance"),
            **session_of(plan, "session_timeout_ms", "heartbeat_interval_ms"),
        )
        if plan.get("group") and not plan.get("assign"):
            self._made.subscribe(topics_of(plan), listener=Listener())
        else:
            self._made.assign([TopicPartition(plan["topic"], number) for number in range(plan["partitions"])])

    async def poll(self, seconds: float) -> list[Row]:
        from kafka.errors import KafkaConnectionError

        try:
            polled = self._made.poll(timeout_ms=int(seconds * 1000))
        except KafkaConnectionError:  # the client asked a worker that is being started again
            await asyncio.sleep(0.1)
            return []
        return [(one.partition, one.offset, one.value) for rows in polled.values() for one in rows]

    def assigned(self) -> list[int]:
        return sorted(part.partition for part in self._made.assignment())

    async def commit(self, offsets: dict[int, int]) -> None:
        from kafka import OffsetAndMetadata

        self._made.commit(
            {self._part(self.plan["topic"], number): OffsetAndMetadata(to, "", -1) for number, to in offsets.items()}
        )

    async def committed(self, partitions: int) -> dict[int, int]:
        topic = self.plan["topic"]
        return {number: self._made.committed(self._part(topic, number)) or 0 for number in range(partitions)}

    async def close(self) -> None:
        self._made.close()


# aiokafka -------------------------------------------------------------------------------------------------------------


class AiokafkaProducer(Producer):
    async def start(self) -> None:
        from aiokafka import AIOKafkaProducer

        plan = self.plan
        self._made = AIOKafkaProducer(
            bootstrap_servers=plan["bootstrap"],
            client_id=plan["name"],
            compression_type=plan.get("codec"),
            **acks_of(plan, "acks", "enable_idempotence"),
            **batch_of(plan, max_batch_size=BATCH_MAX, max_request_size=BATCH_MAX),
        )
        await self._made.start()
        self._batches: dict[int, tuple[Any, list[Done]]] = {}

    async def send(self, partition: int, value: bytes, done: Done, time_ms: int | None) -> None:
        if self.plan.get("one_batch"):  # its linger_ms does not hold back a first record, but it has a call for batches
            if partition not in self._batches:
                self._batches[partition] = self._made.create_batch(), []
            made, waiting = self._batches[partition]
            if made.append(timestamp=time_ms, key=None, value=value) is None:
                raise RuntimeError("the batch is full")
            waiting.append(done)
            return

        def ended(future: asyncio.Future[Any]) -> None:
            error = future.exception()
            sent = None if error else future.result()
            done(sent.offset if sent is not None else -1, type(error).__name__ if error else "")

        future = await self._made.send(self.plan["topic"], value, partition=partition, timestamp_ms=time_ms)
        future.add_done_callback(ended)

    async def flush(self) -> None:
        for partition, (made, waiting) in self._batches.items():
            sent = await (await self._made.send_batch(made, self.plan["topic"], partition=partition))
            for number, done in enumerate(waiting):
                done(sent.offset + number, "")

    async def breathe(self) -> None:
        await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self._made.stop()


class AiokafkaConsumer(Consumer):
    async def start(self) -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        plan = self.plan
        self._part = TopicPartition
        self._made = AIOKafkaConsumer(
            bootstrap_servers=plan["bootstrap"],
            client_id=plan["name"],
            auto_offset_reset="earliest",
            group_id=plan.get("group"),
            group_instance_id=plan.get("instance"),
            **session_of(plan, "session_timeout_ms", "heartbeat_interval_ms"),
        )
        if plan.get("group") and not plan.get("assign"):
            self._made.subscribe(topics_of(plan))
        else:
            self._made.assign([TopicPartition(plan["topic"], number) for number in range(plan["partitions"])])
        await self._made.start()

    async def poll(self, seconds: float) -> list[Row]:
        polled = await self._made.getmany(timeout_ms=int(seconds * 1000))
        return [(one.partition, one.offset, one.value) for rows in polled.values() for one in rows]

    def assigned(self) -> list[int]:
        return sorted(part.partition for part in self._made.assignment())

    async def commit(self, offsets: dict[int, int]) -> None:
        await self._made.commit({self._part(self.plan["topic"], number): to for number, to in offsets.items()})

    async def committed(self, partitions: int) -> dict[int, int]:
        topic = self.plan["topic"]
        return {number: await self._made.committed(self._part(topic, number)) or 0 for number in range(partitions)}

    async def close(self) -> None:
        await self._made.stop()


# confluent-kafka ------------------------------------------------------------------------------------------------------

# As a client does that does not ask for the versions of the broker, and takes it for Kafka 0.9.
OLD = {"api.version.request": False, "broker.version.fallback": "0.9.0.1", "message.timeout.ms": 3_000}


class ConfluentProducer(Producer):
    def __init__(self, plan: dict[str, Any]) -> None:
        from confluent_kafka import Producer as Made

        super().__init__(plan)

        def throttled(event: Any) -> None:
            self.throttles_ms.append(event.throttle_time * 1e3)

        self._made = Made(
            {
                "bootstrap.servers": plan["bootstrap"],
                "client.id": plan["name"],
                "throttle_cb": throttled,
                **({"compression.type": plan["codec"]} if plan.get("codec") else {}),
                **acks_of(plan, "acks", "enable.idempotence"),
                **batch_of(
                    plan,
                    **{"batch.size": BATCH_MAX, "message.max.bytes": BATCH_MAX, "batch.num.messages": 100_000},
                    **{"linger.ms": LINGER_MS},
                ),
                **(OLD if plan.get("old") else {}),
            }
        )

    async def send(self, partition: int, value: bytes, done: Done, time_ms: int | None) -> None:
        def ended(error: Any, sent: Any) -> None:
            done(-1 if error else sent.offset(), error.name() if error else "")

        when = time_ms or 0  # with 0 the client chooses
        while True:
            try:
                self._made.produce(self.plan["topic"], value, partition=partition, on_delivery=ended, timestamp=when)
            except BufferError:
                self._made.poll(0.01)
            else:
                self._made.poll(0)
                return

    async def flush(self) -> None:
        self._made.flush()

    async def breathe(self) -> None:
        self._made.poll(0.01)

    async def close(self) -> None:
        self._made.flush()


class ConfluentConsumer(Consumer):
    async def start(self) -> None:
        from confluent_kafka import Consumer as Made
        from confluent_kafka import TopicPartition

        plan = self.plan
        self._part = TopicPartition
        self._mine: set[int] = set()
        self._made = Made(
            {
                "bootstrap.servers": plan["bootstrap"],
                "client.id": plan["name"],
                "group.id": plan.get("group") or f"alone-{plan['name']}",  # this client requires a group id
                "auto.offset.reset": "earliest",
                **({} if plan.get("group") else {"enable.auto.commit": False}),
                **({"group.instance.id": plan["instance"]} if plan.get("instance") else {}),
                **session_of(plan, "session.timeout.ms", "heartbeat.interval.ms"),
            }
        )
        if plan.get("group") and not plan.get("assign"):
            self._made.subscribe(topics_of(plan), on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)
        else:
            self._made.assign([TopicPartition(plan["topic"], number, 0) for number in range(plan["partitions"])])

    def _given(self, _: Any, parts: list[Any]) -> None:
        self._mine |= {part.partition for part in parts}

    def _taken(self, _: Any, parts: list[Any]) -> None:
        self._mine -= {part.partition for part in parts}

    async def poll(self, seconds: float) -> list[Row]:
        polled = self._made.consume(500, seconds)
        return [(one.partition(), one.offset(), one.value() or b"") for one in polled if not one.error()]  # type: ignore[misc]

    def assigned(self) -> list[int]:
        return sorted(self._mine)

    async def commit(self, offsets: dict[int, int]) -> None:
        topic = self.plan["topic"]
        self._made.commit(offsets=[self._part(topic, number, to) for number, to in offsets.items()], asynchronous=False)

    async def committed(self, partitions: int) -> dict[int, int]:
        asked = [self._part(self.plan["topic"], number) for number in range(partitions)]
        return {part.partition: max(0, part.offset) for part in self._made.committed(asked, 10)}

    async def close(self) -> None:
        self._made.close()


# which one ------------------------------------------------------------------------------------------------------------


def acks_of(plan: dict[str, Any], acks: str, idempotence: str) -> dict[str, Any]:
    """The settings of a producer: idempotent, or with the plan's acks."""
    given = plan.get("acks", "all")
    return {idempotence: True} if given == "all" else {idempotence: False, acks: given}


def batch_of(plan: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The settings with which all records of a partition are one batch, if the plan wants that."""
    return settings if plan.get("one_batch") else {}


def topics_of(plan: dict[str, Any]) -> list[str]:
    """The topics of a member."""
    found: list[str] = plan.get("topics") or [plan["topic"]]
    return found


def session_of(plan: dict[str, Any], session: str, heartbeat: str) -> dict[str, Any]:
    """The settings of a member: its session timeout, and the interval of its heartbeats."""
    if not plan.get("session_ms"):
        return {}
    return {session: plan["session_ms"], heartbeat: plan["heartbeat_ms"]}


PRODUCERS: dict[str, Callable[[dict[str, Any]], Producer]] = {
    "kafka-python": KafkaPythonProducer,
    "aiokafka": AiokafkaProducer,
    "confluent-kafka": ConfluentProducer,
}
CONSUMERS: dict[str, type[Consumer]] = {
    "kafka-python": KafkaPythonConsumer,
    "aiokafka": AiokafkaConsumer,
    "confluent-kafka": ConfluentConsumer,
}
