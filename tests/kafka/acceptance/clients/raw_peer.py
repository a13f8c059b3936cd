"""The roles of a raw client, in a process of its own.

bystander  produces, reads and asks for metadata, again and again, until "stop"; notes the time and the outcome of each
requests   sends requests of many kinds with random timeouts to all workers, until "stop"
attack     sends `count` damaged frames
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from kio.schema.errors import ErrorCode

from clients import attack
from clients.errand import Role, say, stop
from support.kafka.rawkafka import FETCH, LIST_OFFSETS, METADATA, PRODUCE, RawKafka, batch, fetch_fields, seconds
from timerd_kafka.wire.codec import Question

HEARTBEAT = 12
PATIENCE_S = 60.0
Row = tuple[str, float, float, float, str]  # kind, time of sending, timeout, how long it took, the answer


def connect(address: str) -> RawKafka:
    raw = RawKafka(address)
    raw._socket.settimeout(PATIENCE_S)
    return raw


# bystander ------------------------------------------------------------------------------------------------------------


def bystander(plan: dict[str, Any]) -> dict[str, Any]:
    """Send requests that need no wait, and with plan["all"] also acks=all. A lost connection is made again."""
    rows: list[Row] = []
    raw: RawKafka | None = None
    say(ready=True)
    number = 0
    while not stop.is_set():
        kinds = ["acks=1", "fetch with data", "metadata", *(["acks=all"] if plan.get("all") else [])]
        kind = kinds[number % len(kinds)]
        number += 1
        begun = time.monotonic()
        try:
            raw = raw or connect(plan["address"])
            outcome = look(raw, kind, plan)
        except TimeoutError:
            raw, outcome = None, "nothing"
        except (OSError, EOFError) as error:
            raw, outcome = None, type(error).__name__
        rows.append((kind, begun, 0.0, time.monotonic() - begun, outcome))
        stop.wait(plan.get("interval", 0.01))
    return {"rows": rows}


def look(raw: RawKafka, kind: str, plan: dict[str, Any]) -> str:
    """Send one request. Returns the name of the answer's error code. A fetch without records counts as an error."""
    topic, partition = plan["topic"], plan.get("partition", 0)
    match kind:
        case "acks=1" | "acks=all":
            acks = 1 if kind == "acks=1" else -1
            code = raw.produce(topic, {partition: batch([b"bystander"])}, acks=acks, timeout=5.0)[partition].error_code
        case "fetch with data":
            answer = raw.fetch(topic, {partition: 0}, max_wait=5.0, max_bytes=1_000)[partition]
            code = answer.error_code if answer.records or answer.error_code else ErrorCode.unknown_server_error
        case _:
            code = raw.metadata(topic).topics[0].error_code
    return ErrorCode(code).name


# requests -------------------------------------------------------------------------------------------------------------


def requests(plan: dict[str, Any]) -> dict[str, Any]:
    """Send requests from several threads, each of which has one connection at a time."""
    rows: list[Row] = []
    threads = [
        threading.Thread(target=request_again, args=(plan, random.Random(plan["seed"] + number), rows))
        for number in range(plan["threads"])
    ]
    say(ready=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"rows": rows}


def request_again(plan: dict[str, Any], rng: random.Random, rows: list[Row]) -> None:
    raw: RawKafka | None = None
    led = {name: {at: int(number) for number, at in leaders.items()} for name, leaders in plan["topics"].items()}
    addresses, address = sorted({at for leaders in plan["topics"].values() for at in leaders.values()}), ""
    while not stop.is_set():
        if raw is None or rng.random() < 0.05:
            if raw is not None:
                raw.close()
            try:
                address = rng.choice(addresses)
                raw = connect(address)
            except OSError:  # that worker is being started again
                raw = None
                time.sleep(0.02)
                continue
        topic = rng.choice(list(led))
        partition = led[topic][address] if rng.random() < 0.8 else rng.randrange(len(led[topic]))
        kind, timeout, question, frame = some_request(raw, topic, partition, rng)
        raw._socket.settimeout(timeout + PATIENCE_S)
        begun = time.monotonic()
        try:
            raw.send(frame)
            outcome = codes_of(kind, question.read(raw.frame()))
        except TimeoutError:
            outcome, raw = "nothing", None
        except (OSError, EOFError):
            outcome, raw = "closed", None
        rows.append((kind, begun, timeout, time.monotonic() - begun, outcome))


def some_request(raw: RawKafka, topic: str, partition: int, rng: random.Random) -> tuple[str, float, Question, bytes]:
    """A request of a random kind: its kind, the seconds that it may wait, the question and its frame."""
    timeout = round(rng.uniform(0.05, 3.0), 3)
    match rng.choice(("produce", "fetch", "metadata", "list_offsets", "heartbeat")):
        case "produce":
            module = Question(PRODUCE, 9).module
            data = (module.PartitionProduceData(index=partition, records=batch([b"request"])),)
            topics = (module.TopicProduceData(name=topic, partition_data=data),)
            fields: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout": seconds(timeout)}
            return "produce", timeout, *raw.question(PRODUCE, 9, **fields, topic_data=topics)
        case "fetch":
            offset = rng.choice((0, rng.randrange(2_000)))
            fields = fetch_fields(topic, {partition: offset}, timeout, rng.choice((1, 1 << 20)), 10_000)
            return "fetch", timeout, *raw.question(FETCH, 12, **fields)
        case "metadata":
            named = Question(METADATA, 12).module.MetadataRequestTopic(topic_id=None, name=topic)
            fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
            return "metadata", 0.0, *raw.question(METADATA, 12, topics=(named,), **fields)
        case "list_offsets":
            module = Question(LIST_OFFSETS, 5).module
            part = module.ListOffsetsPartition(partition_index=partition, timestamp=-1)
            asked = (module.ListOffsetsTopic(name=topic, partitions=(part,)),)
            return "list_offsets", 0.0, *raw.question(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=asked)
        case _:
            fields = {"group_id": f"group-{rng.randrange(50)}", "generation_id": 1, "member_id": "nobody"}
            return "heartbeat", 0.0, *raw.question(HEARTBEAT, 3, group_instance_id=None, **fields)


def codes_of(kind: str, answer: Any) -> str:
    """The error code of an answer, by name."""
    match kind:
        case "produce":
            code = answer.responses[0].partition_responses[0].error_code
        case "fetch":
            code = answer.responses[0].partitions[0].error_code
        case "metadata":
            code = answer.topics[0].error_code
        case "list_offsets":
            code = answer.topics[0].partitions[0].error_code
        case _:
            code = answer.error_code
    return ErrorCode(code).name


ROLES: dict[str, Role] = {
    "bystander": bystander,
    "requests": requests,
    "attack": lambda plan: attack.play(plan, stop, say),
}
