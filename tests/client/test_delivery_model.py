"""Deliveries on a clock moved by hand: random programs, judged by what the transport and the holder have seen.

The holder of deadlines decides whether a delivery was in time. Without a holder, the clock decides.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import pytest

from timerd_client.delivery.accumulator import Accumulator
from timerd_client.delivery.batch import Attempt, Batch, Delivery, DeliveryOutcome
from timerd_client.delivery.errors import DeliveryTimeoutTooShortError
from timerd_client.delivery.options import MS, NEVER, DeliveryOptions, S
from timerd_shm.declare.errors import BackpressureError, ClosedError, InvalidValueError, PayloadTooLargeError

DELIVERED, FAILED, EXPIRED = DeliveryOutcome


class Fate(NamedTuple):
    """The end of one attempt."""

    after_ns: int  # NEVER: the attempt is stuck
    error: str | None
    retriable: bool = True


class Network:
    """A transport that keeps a log, and ends each attempt with the fate that `draw` gives."""

    def __init__(
        self, draw: Any, room: int = 1 << 30, is_ready: Callable[[Hashable, int], bool] = lambda lane, now_ns: True
    ) -> None:
        self.draw = draw
        self.is_ready = is_ready  # whether a lane is ready at a time
        self.slots = room
        self.now_ns = 0
        self.running: dict[Attempt, tuple[int, Fate]] = {}
        self.log: list[tuple[int, Attempt, tuple[Any, ...]]] = []
        self.ends: dict[Attempt, tuple[int, Fate | None]] = {}  # when the attempt ended, and how; None: given up

    def room(self) -> int:
        return self.slots - len(self.running)

    def ready(self, lane: Hashable) -> bool:
        return self.is_ready(lane, self.now_ns)

    def why(self, lane: Hashable) -> str:
        return "not ready"

    def send(self, attempt: Attempt) -> None:
        fate = self.draw(attempt)
        self.running[attempt] = (min(self.now_ns + fate.after_ns, NEVER), fate)
        self.log.append((self.now_ns, attempt, tuple(attempt.records)))

    def abandon(self, attempt: Attempt) -> None:
        self.ends.setdefault(attempt, (self.now_ns, None))

    def due_ns(self) -> int:
        return min((when_ns for when_ns, _ in self.running.values()), default=NEVER)

    def deliver(self, accumulator: Accumulator, now_ns: int) -> None:
        for attempt, (when_ns, fate) in list(self.running.items()):
            if when_ns <= now_ns:
                del self.running[attempt]
                self.ends.setdefault(attempt, (now_ns, fate))
                accumulator.finished(attempt, now_ns, fate.error, retriable=fate.retriable)


class Holder:
    """A holder of deadlines. It answers late and never wrongly. Sometimes it is silent, or does not know."""

    grace_ns = 1 * S

    def __init__(self, rng: random.Random, faults: float) -> None:
        self.rng = rng
        self.faults = faults
        self.now_ns = 0
        self.words: list[tuple[int, Batch, DeliveryOutcome | None]] = []
        self.said: dict[int, DeliveryOutcome | None] = {}
        self.held: dict[int, Batch] = {}

    def hold(self, batch: Batch) -> bool:
        if self.rng.random() < self.faults:
            return False
        self.held[batch.number] = batch
        if self.rng.random() >= self.faults:  # else it is silent
            self.words.append((batch.deadline_ns + self.rng.randrange(3 * MS), batch, EXPIRED))
        return True

    def claim(self, batch: Batch, outcome: DeliveryOutcome) -> bool:
        if self.rng.random() < self.faults:
            return False
        if self.rng.random() < self.faults:
            self.words.append((self.now_ns + self.rng.randrange(2 * MS), batch, None))
        elif self.rng.random() >= self.faults:
            self.words.append((self.now_ns + self.rng.randrange(2 * MS), batch, outcome))
        return True

    def due_ns(self) -> int:
        return min((when_ns for when_ns, _, _ in self.words), default=NEVER)

    def speak(self, accumulator: Accumulator, now_ns: int) -> None:
        due = sorted((word for word in self.words if word[0] <= now_ns), key=lambda word: word[0])
        self.words = [word for word in self.words if word[0] > now_ns]
        for _, batch, outcome in due:
            if not batch.settled:
                self.said[batch.number] = outcome
            accumulator.settled(batch, outcome, now_ns)


class Program:
    """One random program: options, a network, perhaps a holder; run to its end, then judged."""

    def __init__(self, rng: random.Random, *, holder: bool) -> None:
        self.rng = rng
        linger_ns, request_ns = rng.choice((0, 1, 20)) * MS, rng.choice((20, 100, 400)) * MS
        self.options = DeliveryOptions(
            delivery_timeout_ns=linger_ns + request_ns + rng.choice((0, 1, 300, 2_000)) * MS,
            request_timeout_ns=request_ns,
            linger_ns=linger_ns,
            batch_size=rng.choice((1, 3, 20)),
            batch_bytes=rng.choice((1, 50, 10_000)),
            max_in_flight=rng.choice((1, 2, 5)),
            retries=rng.choice((None, None, 0, 3)),
            retry_backoff_ns=rng.choice((0, 1, 50)) * MS,
            retry_backoff_max_ns=rng.choice((50, 200)) * MS,
            buffer_records=rng.choice((5, 1_000)),
            buffer_bytes=rng.choice((100, 100_000)),
        )
        self.trouble = rng.choice((0.0, 0.3, 0.9))
        self.away_ns = rng.choice((0, 0, 7, 500, 5_000)) * MS  # how long a lane is not ready, in each 10 s
        self.network = Network(self.draw, rng.choice((1, 3, 1 << 30)), self.is_ready)
        self.holder = Holder(rng, rng.choice((0.0, 0.1))) if holder else None
        self.accumulator = Accumulator(self.options, self.network, self.holder, random.Random(rng.random()))
        self.now_ns = 1_000 * S
        self.entered: dict[int, tuple[int, int | None, int]] = {}  # record: when, its lane, its size
        self.out: dict[int, tuple[int, Delivery]] = {}
        self.poll_gap_ns = rng.choice((0, 0, 5, 200)) * MS  # how long the polling loop may be stuck
        self.stuck_ns = 0  # the longest time for which the polling loop was stuck

    def is_ready(self, lane: Hashable, now_ns: int) -> bool:
        return lane == 2 or now_ns % (10 * S) >= self.away_ns

    def draw(self, attempt: Attempt) -> Fate:
        rng = self.rng
        after_ns = rng.choice((0, 1, 10, 150)) * MS
        if rng.random() >= self.trouble:
            return Fate(after_ns, None)
        kind = rng.random()
        if kind < 0.3:
            return Fate(NEVER if kind < 0.1 else 700 * MS, None)  # too late for most timeouts
        return Fate(after_ns, f"error {attempt.number}", retriable=kind < 0.9)

    def run(self) -> None:
        records = self.rng.randrange(1, 120)
        next_ns = self.now_ns
        while len(self.entered) < records or self.accumulator.records:
            due_ns = min(self.accumulator.due_ns(), self.network.due_ns())
            if self.holder is not None:
                due_ns = min(due_ns, self.holder.due_ns())
            if len(self.entered) < records:
                due_ns = min(due_ns, next_ns)
            assert due_ns < NEVER, f"{self.accumulator.records} records are left, and nothing is due"
            self.now_ns = max(self.now_ns, due_ns)
            if self.poll_gap_ns and self.rng.random() < 0.2:
                late_ns = self.rng.randrange(self.poll_gap_ns)
                self.now_ns += late_ns
                self.stuck_ns = max(self.stuck_ns, late_ns)
            self.step()
            if len(self.entered) < records and self.now_ns >= next_ns:
                self.enter(len(self.entered))
                next_ns = self.now_ns + self.rng.choice((0, 0, 0, 1, 30)) * MS
        self.accumulator.close()
        with pytest.raises(ClosedError):
            self.accumulator.append(0, self.now_ns)

    def enter(self, record: int) -> None:
        lane, size = self.rng.choice((None, 1, 2)), self.rng.choice((0, 1, 40))
        held = [self.entered[old][2] for old in self.entered if old not in self.out]
        full = len(held) >= self.options.buffer_records or sum(held) + size > self.options.buffer_bytes
        try:
            self.accumulator.append(record, self.now_ns, lane=lane, size=size)
        except BackpressureError:
            assert full
        else:
            assert not full
            self.entered[record] = (self.now_ns, lane, size)
        self.step()

    def step(self) -> None:
        accumulator, network, now_ns = self.accumulator, self.network, self.now_ns
        network.now_ns = now_ns
        if self.holder is not None:
            self.holder.now_ns = now_ns
            self.holder.speak(accumulator, now_ns)
        network.deliver(accumulator, now_ns)
        accumulator.poll(now_ns)
        for delivery in accumulator.take():
            assert delivery.record not in self.out, f"record {delivery.record} has ended twice"
            self.out[delivery.record] = (now_ns, delivery)
        assert accumulator.due_ns() > now_ns or not accumulator.records, "poll() has left what was due"
        in_flight = [attempt for attempt in network.running if attempt not in network.ends]
        assert len(in_flight) <= self.options.max_in_flight
        assert network.room() >= 0

    # the judgement ------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        assert self.out.keys() == self.entered.keys()
        of_record: dict[int, list[tuple[int, Attempt]]] = defaultdict(list)
        for begun_ns, attempt, records in self.network.log:
            assert begun_ns < attempt.batch.deadline_ns, "sent after its deadline"
            assert self.is_ready(self.entered[records[0]][1], begun_ns), "sent while its lane was not ready"
            self.judge_batch(records)
            for record in records:
                of_record[record].append((begun_ns, attempt))
        for record, (ended_ns, delivery) in self.out.items():
            entered_ns = self.entered[record][0]
            assert delivery.attempts == len(of_record[record])
            assert delivery.latency_ns == ended_ns - entered_ns
            grace_ns = self.holder.grace_ns if self.holder else 0
            assert delivery.latency_ns <= self.options.delivery_timeout_ns + grace_ns + self.stuck_ns
            assert (delivery.error is None) is (delivery.outcome is DELIVERED)
            attempts = of_record[record]
            batch = attempts[0][1].batch if attempts else None
            said = self.holder.said.get(batch.number) if self.holder and batch else None
            assert delivery.outcome is (said or self.expected(attempts)), f"{delivery}, {said}"
        self.judge_order()

    def judge_batch(self, records: tuple[Any, ...]) -> None:
        options = self.options
        assert 0 < len(records) <= options.batch_size
        assert len(records) == 1 or sum(self.entered[record][2] for record in records) <= options.batch_bytes
        assert len({self.entered[record][1] for record in records}) == 1, "lanes are not mixed"
        first_ns = self.entered[records[0]][0]
        assert all(self.entered[record][0] <= first_ns + options.linger_ns for record in records)

    def expected(self, attempts: list[tuple[int, Attempt]]) -> DeliveryOutcome:
        for number, (_, attempt) in enumerate(attempts, 1):
            ended_ns, fate = self.network.ends.get(attempt, (NEVER, None))
            if ended_ns >= attempt.batch.deadline_ns:
                return EXPIRED
            if fate is not None and fate.error is None:
                return DELIVERED
            out_of_retries = self.options.retries is not None and number > self.options.retries
            if out_of_retries or (fate is not None and not fate.retriable):
                return FAILED
        return EXPIRED

    def judge_order(self) -> None:
        """A lane has one attempt at a time. Once it has sent a record, no earlier record of the lane is sent.

        Nor does an earlier record expire then, unless the holder had claimed its batch. Records without a lane have
        no order.
        """
        free_ns: dict[int, int] = defaultdict(int)
        newest: dict[int, int] = defaultdict(lambda: -1)
        for begun_ns, attempt, records in self.network.log:
            lane = self.entered[records[0]][1]
            assert list(records) == sorted(records)
            if lane is None:
                continue
            assert begun_ns >= free_ns[lane], f"lane {lane}: two attempts at once"
            free_ns[lane] = self.network.ends.get(attempt, (NEVER, None))[0]
            assert records[0] >= newest[lane], f"lane {lane}: {records} after {newest[lane]}"
            newest[lane] = records[0]
            for record, (ended_ns, delivery) in self.out.items():
                if record < records[0] and self.entered[record][1] == lane and delivery.outcome is EXPIRED:
                    attempts = [sent for _, sent, batch in self.network.log if record in batch]
                    was_claimed = any(sent.batch.claimed is not None for sent in attempts)
                    assert ended_ns <= begun_ns or was_claimed, f"lane {lane}: {records} sent before {record} expired"


@pytest.mark.long
@pytest.mark.parametrize("held", [False, True], ids=["by the clock", "held elsewhere"])
def test_each_record_settles_once_in_time_and_in_order(rng: random.Random, held: bool) -> None:
    seen: dict[DeliveryOutcome, int] = dict.fromkeys(DeliveryOutcome, 0)
    for _ in range(100):
        program = Program(rng, holder=held)
        program.run()
        program.judge()
        for _, delivery in program.out.values():
            seen[delivery.outcome] += 1
    assert all(count > 50 for count in seen.values()), f"the programs show too little: {seen}"


# cases that random programs do not show plainly -----------------------------------------------------------------------


def options(**given: int | None) -> DeliveryOptions:
    small: dict[str, Any] = {
        "delivery_timeout_ns": 1_000 * MS,
        "request_timeout_ns": 200 * MS,
        "linger_ns": 10 * MS,
        "retry_backoff_ns": 100 * MS,
    }
    return DeliveryOptions(**{**small, **given})


def drive(accumulator: Accumulator, network: Network, until_ns: int) -> list[tuple[int, Delivery]]:
    """Poll at each due time up to `until_ns`. Returns the deliveries that ended, each with its time."""
    ended: list[tuple[int, Delivery]] = []
    now_ns = network.now_ns
    while now_ns <= until_ns:
        network.now_ns = now_ns
        network.deliver(accumulator, now_ns)
        accumulator.poll(now_ns)
        ended += [(now_ns, delivery) for delivery in accumulator.take()]
        now_ns = max(now_ns + 1, min(accumulator.due_ns(), network.due_ns()))
    return ended


def test_a_batch_is_sent_when_it_is_full_or_has_lingered() -> None:
    network = Network(lambda attempt: Fate(0, None))
    accumulator = Accumulator(options(batch_size=3), network)
    for record in range(4):
        accumulator.append(record, 0, lane="a")
    drive(accumulator, network, 50 * MS)
    assert [(when_ns, records) for when_ns, _, records in network.log] == [(0, (0, 1, 2)), (10 * MS, (3,))]


def test_retries_double_their_backoff_within_the_jitter_until_the_deadline() -> None:
    network = Network(lambda attempt: Fate(0, "busy"))
    accumulator = Accumulator(options(linger_ns=0, retry_backoff_max_ns=300 * MS), network, random=random.Random(1))
    accumulator.append("r", 0)
    ((when_ns, delivery),) = drive(accumulator, network, 5 * S)
    gaps = [(after[0] - before[0]) / MS for before, after in zip(network.log, network.log[1:], strict=False)]
    assert all(0.8 * wanted <= gap <= 1.2 * wanted for gap, wanted in zip(gaps, (100, 200, 300), strict=False)), gaps
    assert when_ns == 1_000 * MS and delivery.outcome is EXPIRED and delivery.attempts == len(network.log) >= 3
    assert delivery.error is not None and delivery.error.endswith("the last error: busy")


def test_an_expired_batch_stays_in_flight_until_its_attempt_ends() -> None:
    network = Network(lambda attempt: Fate(NEVER if attempt.records[0] == "stuck" else 0, None))
    chosen = options(delivery_timeout_ns=250 * MS, linger_ns=0, retry_backoff_ns=0)
    accumulator = Accumulator(chosen, network)
    accumulator.append("stuck", 0, lane="a")
    ended = drive(accumulator, network, 100 * MS)
    network.now_ns = 160 * MS
    accumulator.append("next", 160 * MS, lane="a")
    accumulator.append("other", 160 * MS, lane="b")
    ended += drive(accumulator, network, S)
    # The second attempt of "stuck" is under way from 200 to 400 ms. The record expires at 250 ms, and its lane waits
    # until 400 ms.
    assert [(when_ns // MS, records[0]) for when_ns, _, records in network.log] == [
        (0, "stuck"),
        (160, "other"),
        (200, "stuck"),
        (400, "next"),
    ]
    assert [(when_ns // MS, delivery.record, delivery.outcome) for when_ns, delivery in ended] == [
        (160, "other", DELIVERED),
        (250, "stuck", EXPIRED),
        (400, "next", DELIVERED),
    ]


def test_without_a_lane_a_retried_batch_does_not_delay_other_batches() -> None:
    network = Network(lambda attempt: Fate(0, "busy" if attempt.records[0] == "bad" else None))
    accumulator = Accumulator(options(linger_ns=0, batch_size=1, max_in_flight=1), network)
    for record in ("bad", "good", "better"):
        accumulator.append(record, 0)
    ended = drive(accumulator, network, 2 * S)
    assert [(when_ns // MS, delivery.record) for when_ns, delivery in ended][:2] == [(0, "good"), (0, "better")]
    assert ended[2][1].outcome is EXPIRED


def test_without_a_lane_max_in_flight_batches_are_in_flight() -> None:
    network = Network(lambda attempt: Fate(50 * MS, None))
    accumulator = Accumulator(options(batch_size=1, max_in_flight=3), network)
    for record in range(7):
        accumulator.append(record, 0)
    drive(accumulator, network, S)
    assert [when_ns // MS for when_ns, _, _ in network.log] == [0, 0, 0, 50, 50, 50, 100]


def test_without_a_lane_a_batch_does_not_wait_for_the_verdict_on_a_late_batch() -> None:
    network, told = Network(lambda attempt: Fate(0, None), room=0), Told()
    accumulator = Accumulator(options(linger_ns=0, batch_size=1), network, told)
    accumulator.append("late", 0)
    drive(accumulator, network, 900 * MS)
    network.now_ns = 900 * MS
    accumulator.append("next", 900 * MS)
    drive(accumulator, network, 1_100 * MS)  # past the deadline of the first record, and the holder is silent
    network.slots, network.now_ns = 1, 1_100 * MS
    drive(accumulator, network, 1_200 * MS)
    assert [(when_ns // MS, records) for when_ns, _, records in network.log] == [(1_100, ("next",))]
    assert accumulator.take() == [] and accumulator.records == 2


class Told:
    """A holder of deadlines that gives only the answers of a test."""

    grace_ns = 1 * S

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.claims: list[DeliveryOutcome] = []

    def hold(self, batch: Batch) -> bool:
        self.batches.append(batch)
        return True

    def claim(self, batch: Batch, outcome: DeliveryOutcome) -> bool:
        self.claims.append(outcome)
        return True


def test_a_claim_waits_for_the_verdict_of_the_holder_of_the_deadline() -> None:
    network, told = Network(lambda attempt: Fate(0, None)), Told()
    accumulator = Accumulator(options(linger_ns=0, batch_size=1), network, told)
    for record in ("confirmed", "expired", "not known"):
        accumulator.append(record, 0)
    assert drive(accumulator, network, 300 * MS) == [] and told.claims == [DELIVERED] * 3
    for batch, word in zip(told.batches, (DELIVERED, EXPIRED, None), strict=True):
        accumulator.settled(batch, word, 300 * MS)
    ended = accumulator.take()
    assert [(delivery.record, delivery.outcome) for delivery in ended] == [
        ("confirmed", DELIVERED),
        ("expired", EXPIRED),
        ("not known", DELIVERED),
    ]
    assert {delivery.latency_ns for delivery in ended} == {300 * MS} and accumulator.due_ns() == NEVER


def test_a_claim_waits_for_a_silent_holder_only_for_its_grace() -> None:
    network, told = Network(lambda attempt: Fate(0, "busy")), Told()
    accumulator = Accumulator(options(), network, told)
    accumulator.append("r", 0)
    assert [(when_ns // MS, delivery.outcome) for when_ns, delivery in drive(accumulator, network, 3 * S)] == [
        (2_000, EXPIRED)
    ]
    assert all(when_ns < 1_000 * MS for when_ns, _, _ in network.log)


def test_a_lane_continues_after_the_verdict_on_its_first_batch() -> None:
    network, told = Network(lambda attempt: Fate(0, "busy" if attempt.records[0] == "first" else None)), Told()
    accumulator = Accumulator(options(batch_size=1), network, told)
    accumulator.append("first", 0, lane="a")
    drive(accumulator, network, 900 * MS)
    network.now_ns = 900 * MS
    accumulator.append("second", 900 * MS, lane="a")
    drive(accumulator, network, 1_200 * MS)  # past the deadline of the first record, and the holder is silent
    assert [records for _, _, records in network.log].count(("second",)) == 0
    accumulator.settled(told.batches[0], EXPIRED, 1_200 * MS)
    network.now_ns = 1_200 * MS
    drive(accumulator, network, 1_250 * MS)
    assert network.log[-1][0] == 1_200 * MS and network.log[-1][2] == ("second",)


def test_a_full_accumulator_does_not_linger() -> None:
    network = Network(lambda attempt: Fate(0, None))
    accumulator = Accumulator(options(linger_ns=500 * MS, buffer_records=2), network)
    accumulator.append(1, 0)
    accumulator.append(2, 0)
    with pytest.raises(BackpressureError, match="2 of 2 records"):
        accumulator.append(3, 0)
    assert [delivery.record for _, delivery in drive(accumulator, network, MS)] == [1, 2]


def test_a_stuck_attempt_ends_at_its_request_timeout_and_its_late_result_is_ignored() -> None:
    fates = {1: Fate(300 * MS, None), 2: Fate(0, "wrong", retriable=False)}
    network = Network(lambda attempt: fates[attempt.number])
    accumulator = Accumulator(options(linger_ns=0, retry_backoff_ns=200 * MS), network, random=random.Random(1))
    accumulator.append("r", 0)
    ((when_ns, delivery),) = drive(accumulator, network, 2 * S)
    assert (delivery.outcome, delivery.attempts, delivery.error) == (FAILED, 2, "wrong")
    assert 360 * MS <= when_ns <= 440 * MS


def test_delivery_timeout_covers_linger_and_one_request() -> None:
    with pytest.raises(DeliveryTimeoutTooShortError, match=r"=1 s < linger=0.01 s \+ request_timeout=1 s"):
        options(request_timeout_ns=1_000 * MS)
    options(request_timeout_ns=990 * MS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_in_flight": 0}, "max_in_flight=0: an int from 1"),
        ({"batch_size": 1.5}, "batch_size=1.5"),
        ({"linger_ns": -1}, "linger_ns=-1"),
        ({"retry_backoff_max_ns": MS}, "retry_backoff_max=0.001 s < retry_backoff=0.1 s"),
    ],
)
def test_an_impossible_option_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        options(**wrong)


def test_a_record_that_never_fits_is_refused() -> None:
    accumulator = Accumulator(options(buffer_bytes=10), Network(lambda attempt: Fate(0, None)))
    with pytest.raises(PayloadTooLargeError, match="a record of 11 bytes; buffer_bytes=10"):
        accumulator.append("r", 0, size=11)


def test_a_lane_that_is_not_ready_is_asked_for_at_a_steady_pace_however_many_batches_wait() -> None:
    asked: list[int] = []

    def is_ready(lane: Hashable, now_ns: int) -> bool:
        asked.append(now_ns)
        return False

    network = Network(lambda attempt: Fate(0, None), is_ready=is_ready)
    accumulator = Accumulator(options(delivery_timeout_ns=10 * S, batch_size=1), network)
    for record in range(100):
        network.now_ns = record * MS
        accumulator.append(record, network.now_ns, lane="a")
        accumulator.wake()
        accumulator.poll(network.now_ns)
    drive(accumulator, network, 200 * MS)  # the last batches have lingered
    asked.clear()
    drive(accumulator, network, 2_200 * MS)
    assert 15 <= len(asked) <= 25, "each 100 ms, for two seconds"
