"""The workload of the load test, from a seed: when operations are registered, and their events fired. No I/O, no clock.

Arrivals are a Poisson process; the delay from an operation's arrival to its event is log-normal, given by its median
and upper quartile. The defaults are those of the benchmark in "Apache Kafka, Purgatory, and Hierarchical Timing
Wheels": a timeout of 200 ms, payloads of 100 bytes, and 20 and 60 ms as median and quartile (or 200 and 400 ms).
Intervals and delays are drawn from a table of QUANTILES midpoints of their distribution, so that a million rows take a
third of a second without numpy.

    workload = check(Workload(rate=20_000, count=100_000))
    rows = plan(workload, registrar=0)        # what registrar 0 of workload.registrars registers, in order of time
    events = fire_plan(workload, firer=0)     # what firer 0 fires, in order of time
    expected_share(workload)                  # 0.079: the share of operations that expire in a correct run

Registrars and firers share only the workload and the time of the start: each of them makes its own columns. Registrar r
draws a Poisson process of its own, at its share of the rate (the sum of Poisson processes is a Poisson process). Row i
of registrar r is operation `i * registrars + r` of the run, and firer `i % firers` fires its event.

No event comes sooner than MARGIN_NS after its operation's arrival, and no event within MARGIN_NS of the timeout is
judged: two processes send the registration and its event, and neither is punctual to a millisecond.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from operator import add
from statistics import NormalDist
from typing import NamedTuple

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import KEYS_MAX, PAYLOAD_SIZE_MAX, TIMEOUT_NS_MAX

QUANTILES = 1 << 16
MARGIN_NS = 5_000_000
NS = 1_000_000_000
RATE_MAX = 10_000_000.0
COUNT_MAX = 1 << 31
PROCESSES_MAX = 64
_LOW_BITS = 12  # low bits of an operation's number, whose hexadecimal digits come from a table
_LOW_MASK = (1 << _LOW_BITS) - 1
_LOW = tuple(f"{low:03x}" for low in range(1 << _LOW_BITS))


class Workload(NamedTuple):
    """The parameters of a run. The whole plan follows from them."""

    rate: float  # operations per second, over all registrars
    count: int  # operations in all
    timeout_ns: int = 200_000_000
    p50_ns: int = 20_000_000  # median of the delay until the event
    p75_ns: int = 60_000_000
    payload: int = 100  # bytes of each operation's payload
    keys: int = 0  # the number of keys that operations share; 0 = each operation has its own
    keys_per_op: int = 1
    registrars: int = 1
    firers: int = 1
    seed: int = 1


class Rows(NamedTuple):
    """The operations of one registrar, in order of time: columns of equal length."""

    registrar: int
    due_ns: array[int]  # the time of each registration, from the start of the run
    delay_ns: array[int]  # from the registration to the operation's event
    keys: array[int]  # the first key of each operation; empty if operations share no keys


class Events(NamedTuple):
    """The events of one firer, in order of time: columns of equal length."""

    due_ns: array[int]  # the time of each event, from the start of the run
    operation: array[int]  # number of the event's operation
    keys: array[int]  # number of the event's key


class Spans(NamedTuple):
    """How long after its arrival each operation completes. The two columns differ only if operations share keys."""

    earliest_ns: Sequence[int]  # by the first event that may count
    latest_ns: Sequence[int]  # by the first event that counts for certain


def check(workload: Workload) -> Workload:
    """The workload, if it is valid. Raises InvalidValueError, which names the parameter, its limits and a remedy."""
    w = workload
    _within("rate", w.rate, 0.001, RATE_MAX, "operations a second")
    _within("registrars", w.registrars, 1, PROCESSES_MAX)
    _within("firers", w.firers, 1, PROCESSES_MAX)
    _within("count", w.count, w.registrars, COUNT_MAX, "operations, at least one for each registrar")
    _within("timeout", w.timeout_ns, 2 * MARGIN_NS, TIMEOUT_NS_MAX, "ns")
    _within("p50", w.p50_ns, 1_000, TIMEOUT_NS_MAX, "ns")
    _within("p75", w.p75_ns, w.p50_ns + 1, TIMEOUT_NS_MAX, "ns: the upper quartile is above the median")
    _within("payload", w.payload, 0, PAYLOAD_SIZE_MAX, "bytes")
    _within("keys_per_op", w.keys_per_op, 1, KEYS_MAX)
    _within("keys", w.keys, w.keys_per_op if w.keys else 0, COUNT_MAX, "keys: 0 (unique keys), or keys_per_op at least")
    return workload


def _within(name: str, value: float, low: float, high: float, unit: str = "") -> None:
    if not low <= value <= high:  # also refuses NaN
        raise InvalidValueError(f"{name}={value:,} is not within {low:,} and {high:,} {unit}".rstrip())


def rows_of(workload: Workload, registrar: int) -> int:
    """How many operations a registrar registers."""
    return -(-(workload.count - registrar) // workload.registrars)


def plan(workload: Workload, registrar: int = 0) -> Rows:
    """The registrations of one registrar, and when their events are due."""
    rows = rows_of(workload, registrar)
    generator = random.Random(f"{workload.seed}/{registrar}")
    intervals = _intervals(workload.registrars / workload.rate * NS)
    due = array("q", accumulate(map(intervals.__getitem__, _draw(generator, rows))))
    quantiles = delays(workload.p50_ns, workload.p75_ns)
    delay = array("q", map(quantiles.__getitem__, _draw(generator, rows)))
    keys = array("I", generator.choices(range(workload.keys), k=rows) if workload.keys else ())
    return Rows(registrar, due, delay, keys)


def fire_plan(workload: Workload, firer: int = 0) -> Events:
    """The events of one firer: one for each of its operations, except events after the last deadline of the run."""
    plans = [plan(workload, registrar) for registrar in range(workload.registrars)]
    due: list[float] = []  # floats: comparing them takes half the time
    operations: list[int] = []
    keys: list[int] = []
    for rows in plans:
        mine = range(firer, len(rows.due_ns), workload.firers)
        taken = slice(firer, None, workload.firers)
        due += map(float, map(add, rows.due_ns[taken], rows.delay_ns[taken]))
        numbers = [row * workload.registrars + rows.registrar for row in mine]
        operations += numbers
        if workload.keys or workload.keys_per_op > 1:
            keys += map(event_key, repeat(workload), mine, rows.keys[taken] if workload.keys else numbers)
    horizon = end_ns(workload, plans)
    order = [at for at in sorted(range(len(due)), key=due.__getitem__) if due[at] <= horizon]
    operation = array("I", map(operations.__getitem__, order))
    return Events(
        array("q", map(int, map(due.__getitem__, order))),
        operation,
        array("I", map(keys.__getitem__, order)) if keys else operation,
    )


def end_ns(workload: Workload, plans: Sequence[Rows]) -> int:
    """The last deadline plus the margin, in ns from the start of the run."""
    return max(rows.due_ns[-1] for rows in plans) + workload.timeout_ns + MARGIN_NS


def key_names(prefix: str, numbers: Sequence[int]) -> list[str]:
    """The key of each number: the run's prefix and the number in hexadecimal. Short, and quick to make."""
    upper = {high: f"{prefix}{high:x}" for high in {number >> _LOW_BITS for number in numbers}}
    return [upper[number >> _LOW_BITS] + _LOW[number & _LOW_MASK] for number in numbers]


def watched_keys(workload: Workload, first: int) -> list[int]:
    """Numbers of the keys that an operation watches.

    `first` is the operation's entry in `Rows.keys`, or the operation's number if operations share no keys.
    """
    per = workload.keys_per_op
    if workload.keys:
        return [(first + at) % workload.keys for at in range(per)]
    return list(range(first * per, first * per + per))


def event_key(workload: Workload, row: int, first: int) -> int:
    """Number of the key on which an operation's event is fired. The watched keys take turns, from row to row."""
    return watched_keys(workload, first)[row % workload.keys_per_op]


def expected_share(workload: Workload) -> float:
    """The share of operations that expire in a correct run, if operations share no keys."""
    sigma = math.log(workload.p75_ns / workload.p50_ns) / NormalDist().inv_cdf(0.75)
    return 1 - NormalDist().cdf(math.log(workload.timeout_ns / workload.p50_ns) / sigma)


def mean_wait_ns(workload: Workload) -> float:
    """How long an operation is pending on average, if operations share no keys.

    This time multiplied by the rate is the number of pending operations.
    """
    quantiles = delays(workload.p50_ns, workload.p75_ns)
    return sum(min(delay, workload.timeout_ns) for delay in quantiles) / QUANTILES


def spans(workload: Workload, plans: Sequence[Rows]) -> list[Spans]:
    """For each registrar, when its operations complete.

    Without shared keys, an operation completes by its own event. With shared keys, it completes by the first event on
    any of its keys after its arrival. If an event is due within MARGIN_NS of the arrival, the daemon may apply either
    of the two first.
    """
    if not workload.keys:
        return [Spans(rows.delay_ns, rows.delay_ns) for rows in plans]
    fired: dict[int, list[int]] = {}
    for rows in plans:
        for row, (due, delay, first) in enumerate(zip(rows.due_ns, rows.delay_ns, rows.keys, strict=True)):
            fired.setdefault(event_key(workload, row, first), []).append(due + delay)
    for times in fired.values():
        times.sort()

    def first_after(first: int, at_ns: int) -> int:
        """The time of the first event on the keys of an operation, at `at_ns` or later."""
        watched = [fired[key] for key in watched_keys(workload, first) if key in fired]
        found = [times[at] for times in watched if (at := bisect_left(times, at_ns)) < len(times)]
        return min(found, default=TIMEOUT_NS_MAX)

    return [
        Spans(
            array("q", (first_after(first, due - MARGIN_NS) - due for due, first in rows_and_keys)),
            array("q", (first_after(first, due + MARGIN_NS) - due for due, first in rows_and_keys)),
        )
        for rows_and_keys in (list(zip(rows.due_ns, rows.keys, strict=True)) for rows in plans)
    ]


def _draw(generator: random.Random, rows: int) -> array[int]:
    """Draw `rows` quantiles, each with the same probability."""
    drawn = array("H")
    drawn.frombytes(generator.randbytes(rows * drawn.itemsize))
    return drawn


@lru_cache(maxsize=4)
def _intervals(mean_ns: float) -> list[int]:
    """Quantiles of the exponential distribution."""
    return [round(-math.log1p(-(at + 0.5) / QUANTILES) * mean_ns) for at in range(QUANTILES)]


@lru_cache(maxsize=4)
def delays(p50_ns: int, p75_ns: int) -> list[int]:
    """Quantiles of the log-normal distribution."""
    normal = NormalDist().inv_cdf
    sigma = math.log(p75_ns / p50_ns) / normal(0.75)
    middle = math.log(p50_ns)
    return [max(MARGIN_NS, round(math.exp(middle + sigma * normal((at + 0.5) / QUANTILES)))) for at in range(QUANTILES)]
