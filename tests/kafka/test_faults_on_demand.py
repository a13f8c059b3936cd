"""Errors, late answers and cut answers that a test or the shell sets, and the waits for groups and records."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import aiokafka
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kio.schema.errors import ErrorCode
from kio.serial.errors import BufferUnderflow

from support.kafka.least import least
from support.kafka.patience import PATIENCE_S, eventually
from support.kafka.rawkafka import FETCH, METADATA, PRODUCE, RawKafka, batch, fetch_fields, seconds
from timerd_kafka.apis.table import APIS
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.faults import rules as rules_module
from timerd_kafka.faults.faults import Faults
from timerd_kafka.faults.rules import Counted, Rule, RuleError, count_file
from timerd_kafka.faults.shapes import MESSAGE, SHAPES, Form
from timerd_kafka.supervisor import shell
from timerd_kafka.supervisor.door import DOOR, LINE_MAX, address
from timerd_kafka.testing import KafkaCluster, KafkaClusterError
from timerd_kafka.wire.codec import Question, Request, api_of, versions_of

ALL = [(key, version) for key, (name, _) in APIS.items() for version in versions_of(name)]
TIMED_OUT, NOT_LEADER = ErrorCode.request_timed_out, ErrorCode.not_leader_or_follower
FIND_COORDINATOR = 10
NO_TOPICS: Any = SimpleNamespace(by_id={}, by_name={})
ONE_TOPIC: Any = SimpleNamespace(by_name={"x": 0}, by_id={UUID(int=7): Topic("x", UUID(int=7), 1, 1)})


@pytest.fixture(autouse=True)
def no_faults_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").clear_faults()


def errors_in(part: Any) -> list[ErrorCode]:
    """The error codes of an answer that are not `none`."""
    found = []
    for name in (field.name for field in fields(part)):
        value = getattr(part, name)
        if name == "error_code" and value is not ErrorCode.none:
            found.append(value)
        for one in value if isinstance(value, tuple) else ():
            found += errors_in(one) if hasattr(one, "__dataclass_fields__") else []
    return found


def of_one_leader(raw: RawKafka, topic: str) -> tuple[str, list[int]]:
    """The address of the leader of partition 0, and all partitions that this broker leads."""
    leaders = raw.leaders(topic)
    return leaders[0], [number for number, address in leaders.items() if address == leaders[0]]


# the form of answers --------------------------------------------------------------------------------------------------


def test_the_shapes_are_those_of_all_apis() -> None:
    assert set(SHAPES) == {api_of(key, versions_of(name)[-1]).name for key, (name, _) in APIS.items()}


@pytest.mark.parametrize("key", APIS)
def test_a_client_gets_the_error_in_every_version_of_every_api(cluster: KafkaCluster, key: int) -> None:
    name = APIS[key][0]
    # An error that no broker answers by itself: on a busy machine a request of `least` may time out.
    cluster.fail(api_of(key, versions_of(name)[-1]).name, "POLICY_VIOLATION", client_id="least", times=None)
    with RawKafka(cluster.bootstrap) as client:
        for version in versions_of(name):
            question = Question(key, version)
            client.send(question.write(version, "least", least(question.request)))
            assert errors_in(question.read(client.frame())) == [ErrorCode.policy_violation], version
            if key == METADATA:
                continue
            client.send(question.write(version, "another", least(question.request)))
            assert ErrorCode.policy_violation not in errors_in(question.read(client.frame())), version
    (fault,) = cluster.faults()
    assert fault.met == fault.applied == len(versions_of(name))


@pytest.mark.parametrize(("key", "version"), ALL)
def test_an_error_names_the_part_of_the_request(key: int, version: int) -> None:
    """The answer to a request for "x" has "x" where the version has a field for it, and a message with the reason."""
    api, body = api_of(key, version), least(Question(key, version).request)
    rest, failed = Form(api, ONE_TOPIC).divide(body, TIMED_OUT, lambda _: True)
    assert rest is None
    read = Question(key, version).read(api.write(1, failed)[4:])
    assert read == failed
    for part in parts_of(read):
        for name in ("name", "topic", "group_id", "key", "resource_name"):
            assert getattr(part, name, "x") in ("x", None)
        for name in ("index", "partition_index", "resource_type"):
            assert getattr(part, name, 1) == 1
        assert getattr(part, "topic_id", None) in (None, UUID(int=7))
        if getattr(part, "error_code", ErrorCode.none) and hasattr(part, "error_message"):
            assert part.error_message == MESSAGE


def parts_of(part: Any) -> Iterator[Any]:
    yield part
    for field in fields(part):
        for one in value if isinstance(value := getattr(part, field.name), tuple) else ():
            if hasattr(one, "__dataclass_fields__"):
                yield from parts_of(one)


@pytest.mark.parametrize("version", versions_of("fetch"))
def test_an_error_of_a_fetch_session_stands_at_the_top_if_the_version_has_a_place_there(version: int) -> None:
    body = least(Question(FETCH, version).request)
    _, failed = Form(api_of(FETCH, version), NO_TOPICS).divide(
        body, ErrorCode.fetch_session_id_not_found, lambda _: True
    )
    assert (getattr(failed, "error_code", None) is ErrorCode.fetch_session_id_not_found) == (version >= 7)
    assert len(errors_in(failed)) == 1


@pytest.mark.parametrize("version", [0, 1, 4, 9, 12, 13])
def test_metadata_keeps_its_brokers_and_a_request_for_all_topics_has_the_error_too(
    cluster: KafkaCluster, version: int
) -> None:
    wanted, other = cluster.topic(), cluster.topic()
    cluster.fail("Metadata", "LEADER_NOT_AVAILABLE", topic=wanted, times=None)
    question = Question(METADATA, version)
    with RawKafka(cluster.bootstrap) as client:
        client.send(question.write(1, "raw", replace(least(question.request), topics=() if version == 0 else None)))
        answer = question.read(client.frame())
    found = {topic.name: topic for topic in answer.topics}
    assert len(answer.brokers) == 4
    assert found[wanted].error_code is ErrorCode.leader_not_available and not found[wanted].partitions
    assert found[other].error_code is ErrorCode.none and found[other].partitions


def test_a_request_without_a_place_for_the_error_does_not_count(cluster: KafkaCluster, raw: RawKafka) -> None:
    cluster.fail("Metadata", "LEADER_NOT_AVAILABLE")
    question = Question(METADATA, 9)
    raw.send(question.write(1, "raw", replace(least(question.request), topics=())))
    assert len(question.read(raw.frame()).brokers) == 4
    assert cluster.faults()[0].met == 0


def test_a_fault_names_one_partition_and_the_others_are_carried_out(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(partitions=8, replicas=1)
    address, (first, second) = of_one_leader(raw, topic)
    cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=second)
    cluster.fail("Fetch", "OFFSET_OUT_OF_RANGE", topic=topic, partition=second)
    with RawKafka(address) as client:
        produced = client.produce(topic, {first: batch([b"a"]), second: batch([b"b"])})
        assert {number: one.error_code for number, one in produced.items()} == {
            first: ErrorCode.none,
            second: NOT_LEADER,
        }
        assert cluster.wait_for_records(topic, 1, partition=first)[second] == 0
        fetched = client.fetch(topic, {second: 0, first: 1}, max_wait=1_000.0)
        assert fetched[second].error_code is ErrorCode.offset_out_of_range, "it comes at once, as in Kafka"
        assert fetched[first].error_code is ErrorCode.none and fetched[first].high_watermark == 1


def test_an_answer_has_all_parts_of_a_topic_that_the_request_names_in_several_entries(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    """librdkafka begins a new entry in Fetch whenever the topic changes from one partition to the next."""
    topic = cluster.topic(partitions=12, replicas=1)
    address, numbers = of_one_leader(raw, topic)
    assert len(numbers) == 3
    cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=numbers[2])
    cluster.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=numbers[0])
    with RawKafka(address) as client:
        produced = produce_entries(client, topic, numbers)
        assert produced == {numbers[0]: [ErrorCode.none], numbers[1]: [ErrorCode.none], numbers[2]: [NOT_LEADER]}
        entries = [one for number in numbers for one in fetch_fields(topic, {number: 0}, 0.0)["topics"]]
        answer = client.ask(FETCH, 12, **fetch_fields(topic, {}, 0.0) | {"topics": tuple(entries)})
    fetched = {one.partition_index: one.error_code for entry in answer.responses for one in entry.partitions}
    assert fetched == {numbers[0]: NOT_LEADER, numbers[1]: ErrorCode.none, numbers[2]: ErrorCode.none}


def test_an_answer_has_a_part_twice_that_the_request_names_twice(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(partitions=8, replicas=1)
    address, (failed, other) = of_one_leader(raw, topic)
    cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=failed, times=2)
    with RawKafka(address) as client:
        assert produce_entries(client, topic, [failed, other, failed]) == {
            failed: [NOT_LEADER, NOT_LEADER],
            other: [ErrorCode.none],
        }
        assert produce_entries(client, topic, [other, failed, other]) == {
            failed: [NOT_LEADER],
            other: [ErrorCode.invalid_request, ErrorCode.invalid_request],
        }


def produce_entries(client: RawKafka, topic: str, numbers: list[int]) -> dict[int, list[ErrorCode]]:
    """Send a batch to each of these partitions, each in an entry of its own. Returns the errors of each partition."""
    entries = tuple(one for number in numbers for one in topic_data(topic, number))
    answer = client.ask(PRODUCE, 9, transactional_id=None, acks=-1, timeout=seconds(5), topic_data=entries)
    found: dict[int, list[ErrorCode]] = {}
    for entry in answer.responses:
        for one in entry.partition_responses:
            found.setdefault(one.index, []).append(one.error_code)
    return found


def test_topics_by_id_are_known_by_name(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    number = raw.metadata(topic).topics[0].topic_id
    cluster.fail("Produce", "KAFKA_STORAGE_ERROR", topic=topic)
    module = Question(PRODUCE, 13).module
    data = module.PartitionProduceData(index=0, records=batch([b"a"]))
    with RawKafka(raw.leaders(topic)[0]) as client:
        answer = client.ask(
            PRODUCE, 13, transactional_id=None, acks=-1, timeout=seconds(5),
            topic_data=(module.TopicProduceData(topic_id=number, partition_data=(data,)),),
        )  # fmt: skip
    assert errors_in(answer) == [ErrorCode.kafka_storage_error] and answer.responses[0].topic_id == number


# counting -------------------------------------------------------------------------------------------------------------


def test_requests_are_counted_as_a_plain_model_counts_them(tmp_path: Path, rng: random.Random) -> None:
    """Two brokers share the counts. A request gets one fault of each kind at most.

    When it has got one, the faults of this kind that were set later do not count the request.
    """
    heartbeat: Any = Question(12, 4).request
    brokers = [Faults(tmp_path, number, "secret") for number in range(2)]
    rules, counts = [], {}
    for number in range(1, 13):
        fault = rng.choice(("fail", "cut", "delay"))
        given: dict[str, Any] = {"fault": fault, "api": rng.choice(("Heartbeat", "SyncGroup"))}
        if fault == "fail":
            given["error"] = "NOT_COORDINATOR"
        if fault == "delay":
            given["seconds"] = number
        given |= {name: rng.choice((None, *some)) for name, some in (("group", "gh"), ("client_id", "cd"))}
        given |= {"broker": rng.choice((None, 0, 1)), "after": rng.randrange(4), "times": rng.choice((None, 1, 3))}
        rules.append(Rule.of(given, number, 2))
        counts[number] = 0
        count_file(tmp_path, rules[-1]).parent.mkdir(exist_ok=True)
        count_file(tmp_path, rules[-1]).touch()
    for broker in brokers:
        broker.set(rules)
    for _ in range(400):
        at, group, client = rng.randrange(2), rng.choice("gh"), rng.choice(["c", "d", "secret"])
        body = heartbeat(group_id=group, generation_id=1, member_id="m", group_instance_id=None)
        fate = brokers[at].fate(api_of(12, 4), Request(1, client, body), NO_TOPICS)
        due: dict[str, Rule] = {}
        for rule in rules:
            is_met = (
                (rule.api, client != "secret") == ("Heartbeat", True)
                and rule.group in (None, group)
                and rule.client_id in (None, client)
                and rule.broker in (None, at)
            )
            if is_met and rule.fault not in due and counts[rule.number] < rule.last:
                counts[rule.number] += 1
                if counts[rule.number] > rule.after:
                    due[rule.fault] = rule
        assert (fate.error, fate.is_cut) == (due.get("fail"), "cut" in due)
        assert fate.seconds == (due["delay"].seconds if "delay" in due else 0.0)
    assert [Counted.read(tmp_path, rule).met for rule in rules] == list(counts.values())


def test_a_fault_without_an_end_meets_requests_when_its_file_of_counts_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules_module, "LENGTH_MAX", 5)
    rule = Rule.of({"fault": "cut", "api": "Heartbeat", "after": 2, "times": None}, 1, 1)
    count_file(tmp_path, rule).parent.mkdir()
    count_file(tmp_path, rule).touch()
    broker = Faults(tmp_path, 0, "secret")
    broker.set([rule])
    heartbeat: Any = Question(12, 4).request
    body = heartbeat(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    fates = [broker.fate(api_of(12, 4), Request(1, "c", body), NO_TOPICS) for _ in range(20)]
    assert [fate.is_cut for fate in fates] == [False] * 2 + [True] * 18
    assert Counted.read(tmp_path, rule) == (rule, 6, 4)


def asked(broker: str) -> ErrorCode:
    """The error of a broker that is asked for the coordinator of the group x."""
    question = Question(FIND_COORDINATOR, 3)
    with RawKafka(broker) as client:
        client.send(question.write(1, "raw", replace(least(question.request), key_type=0)))
        return ErrorCode(question.read(client.frame()).error_code)


def test_requests_are_counted_over_the_whole_cluster(cluster: KafkaCluster, raw: RawKafka) -> None:
    """Clients ask any broker for a coordinator. So one request at each of four brokers counts as four requests."""
    cluster.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", group="x", after=1, times=2)
    found = []
    for broker in raw.metadata("x").brokers:
        found.append(asked(f"{broker.host}:{broker.port}"))
    refused = ErrorCode.coordinator_not_available
    assert found == [ErrorCode.none, refused, refused, ErrorCode.none]
    (fault,) = cluster.faults()
    assert (fault.met, fault.applied) == (3, 2)


@pytest.mark.long
def test_a_broker_that_is_started_again_has_the_faults_and_their_counts() -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster:
        cluster.fail("FindCoordinator", "NOT_CONTROLLER", after=1)

        assert asked(cluster.bootstrap) is ErrorCode.none
        pid = cluster.pids()["0"]
        cluster.kill(0)
        eventually(lambda: cluster.pids().get("0", pid) != pid)
        assert cluster.wait_for_group("g", state="Dead").members == 0, "the broker answers again"
        assert [asked(cluster.bootstrap), asked(cluster.bootstrap)] == [ErrorCode.not_controller, ErrorCode.none]


def test_followers_meet_no_fault(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=3)
    cluster.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=None)
    with RawKafka(raw.leaders(topic)[0]) as client:
        assert client.produce(topic, {0: batch([b"a"])})[0].error_code is ErrorCode.none
        assert client.fetch(topic, {0: 0})[0].error_code is NOT_LEADER
    assert cluster.faults()[0].met == 1


# what clients see -----------------------------------------------------------------------------------------------------


def test_kafka_python_repeats_the_third_request_that_the_leader_refuses(cluster: KafkaCluster) -> None:
    topic = cluster.topic()
    cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, after=2)
    with KafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        assert [producer.send(topic, b"x").get(timeout=PATIENCE_S).offset for _ in range(4)] == [0, 1, 2, 3]
    (fault,) = cluster.faults()
    assert (fault.met, fault.applied) == (3, 1)
    assert cluster.wait_for_records(topic, 4) == {0: 4}


def test_aiokafka_gets_a_late_answer(cluster: KafkaCluster) -> None:
    topic = cluster.topic()
    cluster.delay("Fetch", 0.5, topic=topic)
    with KafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"x").get(timeout=PATIENCE_S)

    async def read() -> None:
        async with aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value == b"x"

    begun = time.monotonic()
    asyncio.run(read())
    assert time.monotonic() - begun >= 0.5
    assert cluster.faults()[0].applied == 1


def test_a_cut_answer_comes_after_the_records_and_an_idempotent_producer_sends_them_once(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    topic = cluster.topic()
    cluster.cut("Produce", topic=topic, times=2)
    leader = raw.leaders(topic)[0]
    with RawKafka(leader) as client:
        client.send(
            client.question(
                PRODUCE, 9, transactional_id=None, acks=-1, timeout=seconds(5), topic_data=topic_data(topic)
            )[1]
        )
        size = int.from_bytes(client._answers.read(4))
        assert 0 < len(client._answers.read(size)) < size
    assert cluster.wait_for_records(topic, 1) == {0: 1}
    with KafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True) as producer:
        assert producer.send(topic, b"x").get(timeout=PATIENCE_S).offset == 1
    assert cluster.wait_for_records(topic, 2) == {0: 2}
    assert cluster.faults()[0].applied == 2


def topic_data(topic: str, number: int = 0) -> tuple[Any, ...]:
    module = Question(PRODUCE, 9).module
    data = module.PartitionProduceData(index=number, records=batch([b"a"]))
    return (module.TopicProduceData(name=topic, partition_data=(data,)),)


def test_an_error_together_with_a_cut_appends_nothing(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    cluster.cut("Produce", topic=topic)
    cluster.fail("Produce", "REQUEST_TIMED_OUT", topic=topic)
    with RawKafka(raw.leaders(topic)[0]) as client, pytest.raises(BufferUnderflow):
        client.produce(topic, {0: batch([b"a"])})
    assert cluster.wait_for_records(topic, 0) == {0: 0}


def test_a_produce_request_without_acks_loses_its_connection_as_in_kafka(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic)
    with RawKafka(raw.leaders(topic)[0]) as client, pytest.raises((EOFError, ConnectionResetError)):
        client.produce(topic, {0: batch([b"a"])}, acks=0)
    assert cluster.wait_for_records(topic, 0) == {0: 0}


def test_a_produce_request_without_acks_is_carried_out_but_for_the_partition_of_the_fault(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    topic = cluster.topic(partitions=8, replicas=1)
    address, (first, second) = of_one_leader(raw, topic)
    cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=second)
    with RawKafka(address) as client, pytest.raises((EOFError, ConnectionResetError)):
        client.produce(topic, {first: batch([b"a"]), second: batch([b"b"])}, acks=0)
    found = cluster.wait_for_records(topic, 1, partition=first)
    assert (found[first], found[second]) == (1, 0)


def test_a_late_answer_is_an_operation_of_timerd_and_ends_with_its_connection(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    topic = cluster.topic(replicas=1)
    cluster.delay("Fetch", 3_000, topic=topic)
    with RawKafka(raw.leaders(topic)[0]) as client:
        client.send(client.question(FETCH, 12, **fetch_fields(topic, {0: 0}, 0.0))[1])
        eventually(lambda: cluster.purgatories()["fault"]["pending"] == 1)
    eventually(lambda: cluster.purgatories()["fault"]["pending"] == 0)


# wrong calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "a fault has at least 'fault'"),
        ({"fault": "break", "api": "Fetch"}, "fault='break': fail, delay, cut"),
        ({"fault": "cut", "api": "produce"}, "api='produce': this broker has Produce, Fetch, ListOffsets"),
        (
            {"fault": "fail", "api": "Fetch", "error": "NOT_LEADER"},
            "error='NOT_LEADER': Kafka's errors are NOT_LEADER_O",
        ),
        ({"fault": "fail", "api": "Fetch", "error": "NONE"}, "error='NONE'"),
        ({"fault": "fail", "api": "Fetch"}, "error=None: Kafka's errors are "),
        ({"fault": "cut", "api": "Fetch", "error": "NOT_LEADER_OR_FOLLOWER"}, "of the kind 'cut' has no error"),
        ({"fault": "delay", "api": "Fetch", "seconds": 0}, "seconds=0: above 0, and 3600 s at most"),
        ({"fault": "delay", "api": "Fetch", "seconds": float("nan")}, "seconds=nan"),
        ({"fault": "delay", "api": "Fetch", "seconds": "2"}, "seconds='2'"),
        (
            {"fault": "cut", "api": "Heartbeat", "topic": "t"},
            "Heartbeat has no topic; it is selected by group, client_id",
        ),
        ({"fault": "cut", "api": "Produce", "group": "g"}, "APIs with a group: OffsetCommit, OffsetFetch"),
        ({"fault": "cut", "api": "Metadata", "partition": 0}, "Metadata has no partition"),
        ({"fault": "cut", "api": "Fetch", "topic": 7}, "topic=7: a text"),
        ({"fault": "cut", "api": "Fetch", "client_id": "c" * 1_001}, r"client_id='c{100}'\.\.\.: 1,000 characters at"),
        ({"fault": "cut", "api": "Fetch", "partition": True}, "partition=True: 0 to "),
        ({"fault": "cut", "api": "Fetch", "broker": 3}, "broker=3: 0 to 2"),
        ({"fault": "cut", "api": "Fetch", "after": None}, "after=None: 0 to "),
        ({"fault": "cut", "api": "Fetch", "times": 0}, "times=0: 1 to 10000000; None for every request"),
        ({"fault": "cut", "api": "Fetch", "after": 10_000_001}, "after=10000001: 0 to 10000000"),
        ({"fault": "cut", "api": "Fetch", "number": 1}, "number: a fault has fault, api, error"),
        ({"fault": "cut", "api": ["Fetch"]}, r"api=\['Fetch'\]: "),
    ],
)
def test_a_wrong_fault_is_refused_with_the_choices(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RuleError, match=says):
        Rule.of(given, 1, 3)


def test_wrong_calls_name_the_method_and_set_nothing(cluster: KafkaCluster) -> None:
    with pytest.raises(KafkaClusterError, match="fail: api='Produc': this broker has Produce"):
        cluster.fail("Produc", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(KafkaClusterError, match=r"cut: .* not JSON"):
        cluster.cut("Fetch", topic=b"t")  # type: ignore[arg-type]
    with pytest.raises(KafkaClusterError, match="cut: topics: a fault has fault, api"):
        cluster.cut("Fetch", topics="t")  # type: ignore[call-arg]
    with pytest.raises(KafkaClusterError, match="wait_for_group: state='stable': Empty, PreparingRebalance"):
        cluster.wait_for_group("g", state="stable")
    with pytest.raises(KafkaClusterError, match="wait_for_group: timeout=0: above 0, and 3600 s at most"):
        cluster.wait_for_group("g", timeout=0)
    with pytest.raises(KafkaClusterError, match="wait_for_records: count=-1: 0 or more"):
        cluster.wait_for_records("t", -1)
    assert cluster.faults() == []
    with pytest.raises(KafkaClusterError, match="faults: the cluster does not run"):
        KafkaCluster().faults()


# waiting --------------------------------------------------------------------------------------------------------------


def misses(says: str, wait: Callable[..., object], *given: object, **more: object) -> None:
    """Check the error of a wait in vain. On a busy machine the brokers may not answer within its short timeout."""

    def look() -> object:
        with pytest.raises(KafkaClusterError) as refused:
            wait(*given, **more, timeout=0.1)
        return re.search(says, str(refused.value))

    eventually(look, f"no error is {says}")


def test_a_wait_for_records_ends_when_they_can_be_read_and_holds_up_no_other_thread(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    topic = cluster.topic(partitions=4, replicas=2)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(cluster.wait_for_records, topic, 5, timeout=PATIENCE_S)
        for number, address in raw.leaders(topic).items():
            assert not waits.done()
            with RawKafka(address) as client:
                client.produce(topic, {number: batch([b"a", b"b"])})
            assert "daemon" in cluster.pids()
            if number == 2:
                break
        assert sum(waits.result().values()) >= 5
    says = rf"after 0.1 s {topic}-3 has fewer than 1 .*partition 0: 2.*3: 0"
    misses(says, cluster.wait_for_records, topic, 1, partition=3)
    misses("after 0.1 s the topic .no. has fewer than 0 .*no such topic", cluster.wait_for_records, "no", 0)


def test_a_wait_for_a_group_ends_when_its_members_have_joined(cluster: KafkaCluster) -> None:
    topic, group = cluster.topic(partitions=2), "group-of-waits"
    says = "after 0.1 s the group .group-of-waits. is Dead with members=0, and not Stable with mem"
    misses(says, cluster.wait_for_group, group, members=1)
    consumer = KafkaConsumer(topic, group_id=group, bootstrap_servers=cluster.bootstrap)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(cluster.wait_for_group, group, members=1, timeout=PATIENCE_S)
        eventually(lambda: consumer.poll(timeout_ms=50) is not None and waits.done())
        assert waits.result() == ("Stable", 1)
    consumer.close()
    assert cluster.wait_for_group(group, state="Dead", timeout=PATIENCE_S).members == 0


# from the shell -------------------------------------------------------------------------------------------------------


def test_the_shell_sets_shows_and_clears_faults(cluster: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> None:
    def does(line: str) -> tuple[int, str]:
        status = shell.main(["--data", str(cluster.data), *line.split()])
        said = capsys.readouterr()
        return status, said.out + said.err

    assert does("fail Produce NOT_LEADER_OR_FOLLOWER --topic t --after 2") == (0, "")
    assert does("delay Fetch 2 --client-id c --times all") == (0, "")
    said = does("list")[1]
    first, second = said.splitlines()
    assert first.endswith(": fail Produce NOT_LEADER_OR_FOLLOWER topic=t after=2 times=1 met=0 applied=0")
    assert second.endswith(": delay Fetch 2.0 client_id=c times=all met=0 applied=0")
    assert [one.fault for one in cluster.faults()] == ["fail", "delay"]
    assert does("cut Heartbeat --broker 9") == (2, "timerd_kafka: broker=9: 0 to 3\n")
    assert does("clear") == (0, "") and does("list") == (0, "")


def test_the_shell_says_that_no_cluster_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data in (tmp_path, tmp_path / "no"):
        assert shell.main(["--data", str(data), "list"]) == 2
        assert f"no cluster answers in --data {data} (No such file" in capsys.readouterr().err


def test_the_socket_of_commands_is_for_its_user_and_survives_what_is_no_command(cluster: KafkaCluster) -> None:
    assert (cluster.data / DOOR).stat().st_mode & 0o777 == 0o600
    lines = (b"[]", b"{", b"7", b'{"do": []}', b'{"do": "set_fault", "fault": 7}', b"\xff", b'{"do": "kill"}', b"null")
    for line in lines:
        with socket.socket(socket.AF_UNIX) as connection, address(cluster.data) as path:
            connection.connect(path)
            connection.sendall(line + b"\n")
            assert "error" in json.loads(connection.makefile().readline()), line
    with socket.socket(socket.AF_UNIX) as connection, address(cluster.data) as path:
        connection.connect(path)
        connection.sendall(b"x" * (LINE_MAX + 1))
        connection.settimeout(PATIENCE_S)
        with pytest.raises((ConnectionResetError, EOFError)):
            if not connection.recv(1):
                raise EOFError
    assert cluster.faults() == [] and len(cluster.pids()) == 5
