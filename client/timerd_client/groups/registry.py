"""A registry of handlers: `Calls`. It has no connection and no thread; a client serves it.

calls = td.Calls(group="workers")

@calls.handler("remind", retries=3)
def remind(call): ...

@calls.every("cleanup", seconds=60)
def cleanup(call): ...

client.serve(calls)                # or at a shell: timerctl worker module:calls
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from timerd_client.arguments import group_of, is_coroutine_function, key_bytes, seconds_of, shown, unsigned
from timerd_shm.declare.errors import InvalidKeyError, InvalidValueError
from timerd_shm.declare.limits import CALLS_HELD_MAX, TIMEOUT_NS_MAX

from .schedule import Schedule, schedule_of
from .steps import Call

Handler = TypeVar("Handler", bound=Callable[[Call], object])
OnFailure = Callable[[Call, BaseException], object]
RETRIES_MAX: Final = 1_000
DELIVERIES_MAX: Final = 255
BACKOFF_S_MAX: Final = 86_400.0  # a pause doubles up to a day

_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of decorated functions: a caller may give the function


class Job(NamedTuple):
    """A handler, and the settings of its calls."""

    handler: Callable[[Call], Any]
    schedule: Schedule | None = None
    retries: int = 0
    backoff_s: float = 1.0
    concurrency: int = 1
    on_failure: OnFailure | None = None
    deliveries: int = 5
    time_limit_s: float | None = None
    grace_ns: int | None = None  # a schedule's points that are late by more are skipped; None = any lateness

    @property
    def is_async(self) -> bool:
        """Whether only an asyncio client can run this job."""
        return is_coroutine_function(self.handler) or (
            self.on_failure is not None and is_coroutine_function(self.on_failure)
        )

    def pause_s(self, failures: int) -> float | None:
        """The pause after another failure, before the next attempt; None = there is no next attempt."""
        if failures >= self.retries:
            return None
        return min(self.backoff_s * 2.0 ** min(failures, 64), max(BACKOFF_S_MAX, self.backoff_s))


class Calls:
    """Handlers by name. Any number of clients and processes may serve a registry, before and after a fork.

    `group` is the group of these calls. Without it, they belong to the group of the client that serves them.
    """

    def __init__(self, group: str | None = None) -> None:
        """Raises InvalidNameError."""
        self.group = group_of(group)
        self._jobs: dict[str, Job] = {}

    def handler(
        self,
        name: str,
        *,
        retries: int = 0,
        backoff: float | timedelta = 1.0,
        concurrency: int = 1,
        on_failure: OnFailure | None = None,
        deliveries: int = 5,
        time_limit: float | timedelta | None = None,
    ) -> Callable[[Handler], Handler]:
        """Decorate the handler of a name. The handler gets a `Call`; when it returns, the call is done.

        A handler that raises has failed, and its error is logged. With `retries=3` the handler then runs again after
        `backoff` s, after twice that time, and after four times that time; `call.attempt` counts the attempts. After
        the last attempt `on_failure(call, error)` runs, and the call is over: it is kept as a dead letter.
        `concurrency` is how many calls of this name one process runs at once. The handler may be a coroutine function
        if an asyncio client serves it.

        If the process ends while the handler runs, another member runs the call again, with `call.deliveries` above 1:
        this is not a new attempt. After the second such end the call runs alone in its process, after a pause of 1, 2,
        4 ... s, a minute at most. When `deliveries` processes (1 to 255) have ended in the handler, the call has
        failed: `on_failure` gets a CallGivenUpError. If as many processes end in `on_failure`, it is not run again.

        A handler that runs for longer than `time_limit` s (None: any time) is late. With asyncio it is cancelled, and
        has failed with CallTimeLimitError. A thread cannot be cancelled: `timerctl calls` shows the call as late, and
        `client.stats()` counts it. Raises InvalidKeyError, KeyTooLongError, InvalidValueError.
        """
        _refuse_function(name, '@calls.handler("remind")')
        return self._decorator(name, None, retries, backoff, concurrency, on_failure, deliveries, time_limit)

    def every(
        self,
        name: str,
        *,
        seconds: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        grace: float | timedelta | None = None,
        retries: int = 0,
        backoff: float | timedelta = 1.0,
        on_failure: OnFailure | None = None,
        deliveries: int = 5,
        time_limit: float | timedelta | None = None,
    ) -> Callable[[Handler], Handler]:
        """Decorate a handler that is called by a schedule, each time in one process of the group.

        `seconds`: a period, on the daemon's monotonic clock: nobody can set this clock, and a reboot begins it anew.
        `cron`: "0 3 * * *", in `timezone` (needs `timerd[cron]`); if there are six fields, the first has the seconds.

        One call is for all missed points: points that passed while the last handler ran or while there was no worker,
        and points that were skipped because somebody set the wall clock forward. `call.due` is the first of these
        points, and `call.missed` counts the others, up to 1,000. The call comes as soon as the last handler has
        returned, so calls do not overlap, and a handler that is slower than its period runs without a pause. After the
        wall clock was set back, no point runs a second time.

        `grace`: how late a point's call may begin, in seconds; later points are skipped (`calls_skipped` of `stats()`).
        None: any lateness. 0: missed points are skipped. A call that is late by less than a tenth of its period, 1 s at
        most, is in time.

        While a failed call is retried, points pass. The next attempt is for these points as well. After the last
        attempt the schedule goes on. A changed schedule replaces the point that is still to come; a call that is due,
        or that pauses for its next attempt, is carried out first. If no process serves a schedule, its call waits for a
        week. Then the schedule ends. Raises the errors of `handler`, and NotSupportedError.
        """
        _refuse_function(name, '@calls.every("cleanup", seconds=60)')
        schedule, grace_ns = schedule_of(seconds, cron, timezone), _grace_ns(grace)
        return self._decorator(name, schedule, retries, backoff, 1, on_failure, deliveries, time_limit, grace_ns)

    def _decorator(
        self,
        name: str,
        schedule: Schedule | None,
        retries: int,
        backoff: float | timedelta,
        concurrency: int,
        on_failure: OnFailure | None,
        deliveries: int,
        time_limit: float | timedelta | None,
        grace_ns: int | None = None,
    ) -> Callable[[Handler], Handler]:
        checked = name_of_call(name)
        unsigned("retries", retries, RETRIES_MAX)
        unsigned("concurrency", concurrency, CALLS_HELD_MAX, 1)
        unsigned("deliveries", deliveries, DELIVERIES_MAX, 1)
        backoff_s = _seconds("backoff", backoff, "give the seconds before the first retry, from 0")
        limit_s = None
        if time_limit is not None:
            limit_s = _seconds("time_limit", time_limit, "give the seconds that the handler may run, or None", above=0)
        if on_failure is not None:
            _takes("on_failure", checked, on_failure, 2, "the call and the error")

        def decorate(handler: Handler) -> Handler:
            _takes("the handler", checked, handler, 1, "the call")
            if checked in self._jobs:
                raise InvalidValueError(f"{shown(checked)} has a handler in these calls; give the new one another name")
            self._jobs[checked] = Job(
                handler, schedule, retries, backoff_s, concurrency, on_failure, deliveries, limit_s, grace_ns
            )
            with suppress(TypeError):  # this callable takes no weak reference: callers have to give the name
                _names[handler] = checked
            return handler

        return decorate

    def __iter__(self) -> Iterator[tuple[str, Job]]:
        """The names and their jobs."""
        return iter(list(self._jobs.items()))

    def __len__(self) -> int:
        return len(self._jobs)

    def __repr__(self) -> str:
        return f"<Calls of {self.group or 'any group'}: {', '.join(self._jobs) or 'no handler'}>"


def name_of_call(handler: object) -> str:
    """The name of a call: the str itself, or a decorated function's name. Raises InvalidKeyError, KeyTooLongError."""
    if callable(handler):
        name = None
        with suppress(TypeError):
            name = _names.get(handler)
        if name is None:
            raise InvalidKeyError(f"{shown(handler)} is no handler of any Calls in this process; give its name")
        return name
    if not isinstance(handler, str):
        raise InvalidKeyError(f"the name of a call is str, not {type(handler).__name__}: {shown(handler)}")
    key_bytes(handler)
    return handler


def _refuse_function(name: object, written: str) -> None:
    if callable(name):
        raise InvalidKeyError(f"{shown(name)} in place of the name of a call: write {written}")


def _grace_ns(grace: object) -> int | None:
    if grace is None:
        return None
    return round(
        _seconds("grace", grace, "give the seconds from 0 that a point may be late, or None for any lateness") * 1e9
    )


def _seconds(what: str, given: object, remedy: str, above: float = -1.0) -> float:
    seconds = seconds_of(given)
    if seconds is None or not 0 <= seconds <= TIMEOUT_NS_MAX / 1e9 or seconds <= above:
        raise InvalidValueError(f"{what}={shown(given)}: {remedy}")
    return float(seconds)


def _takes(what: str, name: str, function: object, count: int, arguments: str) -> None:
    """Check a function by its signature. Raises InvalidValueError."""
    if not callable(function):
        raise InvalidValueError(f"{what} of {shown(name)} is {type(function).__name__}: {shown(function)}")
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        raise InvalidValueError(f"{what} of {shown(name)} takes {arguments}: {shown(function)}") from None
    except ValueError:
        pass  # a function of C that has no signature
