"""The process that fires. It shares only the workload, the keys' prefix and the start time with the registrars.

The value of an event is the time (CLOCK_MONOTONIC, 8 bytes) at which fire() was called; up to STAMPED calls in a row
share one time. The latency of a completion counts from this time: the registrar reads it in the outcome.
"""

from __future__ import annotations

import time

from timerd_client.workload import Events, fire_plan, key_names
from timerd_shm.declare.errors import TimerdError

from .messages import Fired, Task
from .pace import Pace
from .part import STAMP, STAMPED, Meter, Part, Times


class Firer(Part):
    """Fires the events of its plan, each when it is due."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._events: Events = fire_plan(task.workload, task.index)
        self._sent_ns = Times(len(self._events.due_ns))
        self._names: list[str] = []  # key names, in the order of the events

    def prepare(self) -> None:
        self._names = key_names(self.task.prefix, self._events.keys)

    def play(self, start_ns: int) -> Fired:
        events, names = self._events, self._names
        pace = Pace(events.due_ns, start_ns, self.task.bulk)
        send = self._fire_many if self.task.bulk else self._fire_each
        row, count = 0, len(events.due_ns)
        failure = ""
        meter = Meter()
        try:
            while row < count and not self.stopped:
                upto = pace.begin(row)
                if upto > row:
                    send(names[row:upto])
                    pace.end()
                    row = upto
            if not self.stopped:
                self.client.flush()
        except TimerdError as error:
            failure = str(error)
        return Fired(events, self._sent_ns.column(), pace.own_lateness_ns, meter.read(), failure)

    def _fire_each(self, keys: list[str]) -> None:
        fire, sent = self.purgatory.fire, self._sent_ns.add
        for first in range(0, len(keys), STAMPED):
            together = keys[first : first + STAMPED]
            value = STAMP.pack(time.monotonic_ns())
            for key in together:
                fire(key, value=value)
            sent(value, len(together))

    def _fire_many(self, keys: list[str]) -> None:
        value = STAMP.pack(time.monotonic_ns())
        self.purgatory.fire_many(keys, values=value)
        self._sent_ns.add(value, len(keys))
