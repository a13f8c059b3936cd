"""The timer daemon is full, stopped or killed: requests that wait get errors after which clients try again."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from bench.lib.common import Suite
from clients.rawgroup import RawMember
from processes import RawPeer
from support.kafka.rawkafka import CREATE_TOPICS, FETCH, PRODUCE, RawKafka, batch, fetch_fields, seconds
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question
from world import PATIENCE_S, arrivals, cluster, eventually, percentiles, produce_fields

CAPACITY = 512
GRACE_S = 2.0
# After each of these errors every client tries again.
RETRIABLE = {"not_leader_or_follower", "request_timed_out", "coordinator_load_in_progress", "leader_not_available"}
KINDS = ("produce", "fetch", "create topic", "acks=1, muted")
BYSTANDER_MAX_S = 1.0


def play_full(suite: Suite) -> None:
    """Send more fetches that must wait than the daemon has room for: those without room get an error."""
    count, wait_s = (1_000, 8.0) if suite.short else (4_000, 5.0)
    with cluster(suite, "--capacity", str(CAPACITY)) as kafka:
        topic, busy = kafka.topic(partitions=4, replicas=1), kafka.topic(replicas=3)
        with RawKafka(kafka.bootstrap) as raw:
            leaders, leader = raw.leaders(topic), raw.leaders(busy)[0]
            RawKafka(leader).produce(busy, {0: batch([b"there"])})
        readers = [RawKafka(leaders[number % 4]) for number in range(count)]
        with RawPeer("bystander", address=leader, topic=busy) as bystander:
            bystander.ready()
            suite.say(f"{count:,} fetches wait, and {CAPACITY} have room")
            begun, questions = [], []
            for number, reader in enumerate(readers):
                question, frame = reader.question(FETCH, 12, **fetch_fields(topic, {number % 4: 0}, wait_s))
                begun.append(time.monotonic())
                reader.send(frame)
                questions.append(question)
            came = arrivals(readers, wait_s + PATIENCE_S)
            took = [arrived - sent for arrived, sent in zip(came, begun, strict=True)]
            codes = Counter(
                ErrorCode(question.read(reader.frame()).responses[0].partitions[0].error_code).name
                for reader, question, arrived in zip(readers, questions, came, strict=True)
                if arrived < math.inf
            )
            bystander.stop()
            report_bystander(suite, "full", bystander.result()["rows"])
        for reader in readers:
            reader.close()
        suite.add(
            "full",
            capacity=CAPACITY,
            fetches=count,
            **codes,
            unanswered=came.count(math.inf),
            **percentiles(took, "s", 1.0),
        )
        refused = count - codes["none"]
        right = set(codes) <= RETRIABLE | {"none"} and refused > 0 and math.inf not in came
        suite.check("refused_retriably", right, "a fetch without room gets an error after which clients try again")
        suite.check(
            "refused_in_time", max(took) <= wait_s + GRACE_S, "each fetch is answered at most 2 s after its timeout"
        )
        works_again(suite, kafka, "full")


def works_again(suite: Suite, kafka: KafkaCluster, after: str) -> None:
    """Check that produce, fetch and group requests work again, and that a fetch waits for its time, but not longer."""
    topic = kafka.topic(replicas=3)
    with RawKafka(kafka.bootstrap) as raw:
        address = raw.leaders(topic)[0]
    with RawKafka(address) as leader:
        eventually(lambda: not leader.produce(topic, {0: batch([b"a"])})[0].error_code, f"produce works after {after}")
        end = leader.fetch(topic, {0: 0})[0].high_watermark
        begun = time.monotonic()
        empty = leader.fetch(topic, {0: end}, max_wait=0.5)[0]
        took = time.monotonic() - begun
    with RawMember(kafka.bootstrap, f"after-{topic}", session=5.0, rebalance=2.0) as member:
        member.join()
        joined = member.sync() == member.heartbeat() == ErrorCode.none
        member.leave()
    suite.add("afterwards", after=after, empty_fetch_of_500_ms_took_ms=took * 1e3, group_works=joined)
    suite.check(
        "works_again",
        joined and empty.error_code == ErrorCode.none and took >= 0.5,
        "afterwards produce, fetch and group requests work again",
    )
    suite.check("works_again_in_time", took <= 0.75, "a fetch that waits for 0.5 s is then answered within 0.75 s")


def play_daemon(suite: Suite) -> None:
    """The timer daemon is stopped, and then killed."""
    stopped_s = 4.0 if suite.short else 10.0
    with cluster(suite, "--capacity", "8192", "--produce-quota", "200kB") as kafka:
        play_lost(suite, kafka, "stopped", stopped_s)
        works_again(suite, kafka, "SIGSTOP")
        for _ in range(1 if suite.short else 5):
            play_lost(suite, kafka, "killed", 2.0)
            works_again(suite, kafka, "SIGKILL")


def play_lost(suite: Suite, kafka: KafkaCluster, how: str, lasts: float) -> None:
    """Stop or kill the daemon. Requests that wait are sent before and during the outage, a bystander's all the time."""
    topic, stuck = kafka.topic(partitions=4, replicas=3), kafka.topic(partitions=4, replicas=3)
    kafka.stop_follower(stuck)
    with RawKafka(kafka.bootstrap) as raw:
        leaders, brokers = raw.leaders(stuck), raw.replicas(topic)
        with RawKafka(brokers[0][0]) as leader:
            leader.produce(topic, {0: batch([b"there"])})
    with (
        RawPeer("bystander", address=brokers[0][0], topic=topic, interval=0.02) as bystander,
        RawMember(kafka.bootstrap, f"lost-{topic}", session=2.0, rebalance=1.0) as member,
        RawKafka(brokers[0][0], f"greedy-{topic}") as greedy,
        beating(member) as answers,
    ):
        bystander.ready()
        time.sleep(0.3)
        throttle = spend(greedy, topic)
        before = waiting_requests(leaders, stuck)  # these wait before the daemon is lost
        time.sleep(0.2)
        begun = time.monotonic()
        if how == "stopped":
            kafka.kill_daemon(signal.SIGSTOP)
        else:
            kafka.kill_daemon()
        try:
            during = waiting_requests(leaders, stuck)
            during.append(muted_request(greedy, topic, throttle))
            report_lost(suite, how, before, during)
            time.sleep(max(0.0, begun + lasts - time.monotonic()))
        finally:
            if how == "stopped":
                kafka.kill_daemon(signal.SIGCONT)
        bystander.stop()
        time.sleep(0.5)
        beats = {"heartbeats": len(answers), "answers": names(answers)}
        suite.add("member_meanwhile", daemon=how, session_s=member.session, **beats)
        suite.check(
            "members_stay", set(answers) == {"none"}, "a member that sends heartbeats all the while stays in its group"
        )
        rows = [row for row in bystander.result()["rows"] if row[1] >= begun - 0.1]
        report_bystander(suite, how, rows)
    kafka.start_follower(stuck)


@contextlib.contextmanager
def beating(member: RawMember) -> Iterator[list[str]]:
    """Send heartbeats of a member of a stable group. Yields the list of their answers."""
    member.join()
    member.sync()
    answers: list[str] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.3):
            answers.append(member.heartbeat().name)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def names(answers: list[str]) -> str:
    """Each answer, and how often it came."""
    return ", ".join(f"{name} {count}" for name, count in Counter(answers).most_common())


def spend(greedy: RawKafka, topic: str) -> float:
    """Use up a quota. Returns the seconds for which the connection is muted now."""
    one = batch([b"x" * 100_000])
    while True:
        question, frame = greedy.question(PRODUCE, 9, **produce_fields(topic, {0: one}, acks=1))
        greedy.send(frame)
        throttle = float(question.read(greedy.frame()).throttle_time.total_seconds())
        if throttle > 0.3:
            return throttle


Waiting = tuple[str, float, RawKafka, Question, float]  # kind, timeout, connection, question, when it was sent


def waiting_requests(leaders: dict[int, str], topic: str) -> list[Waiting]:
    """Send produce and fetch requests with several timeouts to each worker, and a request that creates a topic."""
    made: list[Waiting] = []
    for number, address in leaders.items():
        for timeout in (0.5, 1.5):
            asked: tuple[tuple[str, int, dict[str, Any]], ...] = (
                ("produce", PRODUCE, produce_fields(topic, {number: batch([b"a"])}, timeout=timeout)),
                ("fetch", FETCH, fetch_fields(topic, {number: 0}, timeout)),
            )
            for kind, key, fields in asked:
                raw = RawKafka(address)
                question, frame = raw.question(key, 9 if kind == "produce" else 12, **fields)
                made.append((kind, timeout, raw, question, time.monotonic()))
                raw.send(frame)
    raw = RawKafka(leaders[0])
    module = Question(CREATE_TOPICS, 7).module
    new = module.CreatableTopic(
        name=f"new-{time.monotonic_ns()}", num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    question, frame = raw.question(CREATE_TOPICS, 7, topics=(new,), timeout=seconds(1.0), validate_only=False)
    made.append(("create topic", 1.0, raw, question, time.monotonic()))
    raw.send(frame)
    return made


def muted_request(greedy: RawKafka, topic: str, throttle: float) -> Waiting:
    """Send a request on a connection that is muted now: the request waits for the throttle time."""
    question, frame = greedy.question(PRODUCE, 9, **produce_fields(topic, {0: batch([b"a"])}, acks=1))
    greedy.send(frame)
    return "acks=1, muted", throttle, greedy, question, time.monotonic()


def report_lost(suite: Suite, how: str, before: list[Waiting], during: list[Waiting]) -> None:
    """Report the answers to these requests, and how long after their timeouts the answers came."""
    requests = [*before, *during]
    came = arrivals([raw for _, _, raw, _, _ in requests], PATIENCE_S)
    for sent, kind in [(sent, kind) for sent in ("before", "during") for kind in KINDS]:
        late, codes = [], Counter[str]()
        mine = before if sent == "before" else during
        for request, arrived in zip(requests, came, strict=True):
            its, timeout, raw, question, begun = request
            if its != kind or request not in mine:
                continue
            late.append(arrived - begun - timeout)
            if arrived < math.inf:
                codes[code_of(kind, question.read(raw.frame()))] += 1
        if not late:
            continue
        suite.add(
            "daemon_lost",
            daemon=how,
            request=kind,
            sent=f"{sent} the outage",
            **{name: codes.get(name, 0) for name in sorted({*codes, "none"})},
            unanswered=late.count(math.inf),
            beyond_timeout_max_s=max(late),
        )
        suite.check("answered_in_time", max(late) <= GRACE_S, "each request is answered at most 2 s after its timeout")
        # A fetch whose timeout is over may get an empty answer, as always. The request to create a topic may be carried
        # out before the daemon is lost, or, if a killed daemon is back in time, during the outage.
        allowed = RETRIABLE | ({"none"} if kind != "produce" else set())
        if kind == "acks=1, muted":
            allowed = {"none"}
        suite.check(
            "told_to_try_again",
            set(codes) <= allowed,
            "errors of waiting requests are those after which clients try again",
        )
    for _, _, raw, _, _ in requests:
        raw.close()


def code_of(kind: str, answer: Any) -> str:
    """The error code of an answer."""
    match kind:
        case "produce" | "acks=1, muted":
            code = answer.responses[0].partition_responses[0].error_code
        case "fetch":
            code = answer.responses[0].partitions[0].error_code
        case _:
            code = answer.topics[0].error_code
    return ErrorCode(code).name


def report_bystander(suite: Suite, what: str, rows: list[list[Any]]) -> None:
    """Report the requests that need no wait, and check that they are still answered."""
    for kind in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == kind]
        failed = sum(row[4] != "none" for row in mine)
        slowest = max(row[3] for row in mine)
        figures = percentiles(row[3] for row in mine)
        suite.add("what_needs_no_wait", meanwhile=what, request=kind, requests=len(mine), failed=failed, **figures)
        suite.check(
            "goes_on",
            not failed,
            "requests that need no wait (acks=1, fetches with data, metadata) go on without an error",
        )
        suite.check(
            "goes_on_in_time",
            slowest < BYSTANDER_MAX_S,
            f"each request that needs no wait is answered within {BYSTANDER_MAX_S:g} s",
        )
