"""The samples for all open pages, one every EVERY_S, and the history of an hour. Without a page, nothing is read."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from timerctl.instance import NS, open_arena
from timerctl.listing import Row
from timerctl.live.frame import document
from timerctl.live.hot import HotKeys
from timerctl.live.samples import Sample, Samples
from timerctl.live.verdict import Finding, Level, verdict
from timerctl.live.views import VIEWS, Reading, Source
from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain

EVERY_S: Final = 2.0
HISTORY: Final = round(3_600 / EVERY_S)
HOT: Final = 10  # keys
SILENT_S: Final = 15.0  # a stream that had nothing for this time gets a comment, so that a closed page is noticed
# The columns of a point of the history.
COLUMNS: Final = (
    "at",
    "registered",
    "completed",
    "expired",
    "events",
    "pending",
    "wait_p50",
    "wait_p99",
    "late_p99",
    "turns",
)
Message = dict[str, Any]


class Feed:
    """Reads an instance while somebody listens. Any thread may use it."""

    def __init__(self, paths: InstancePaths) -> None:
        self._paths = paths
        self._samples, self._hot = Samples(paths), HotKeys()
        self._readings = {view.name: Reading(view) for view in VIEWS}
        self._history: deque[list[float | None]] = deque(maxlen=HISTORY)
        self._changed = threading.Condition()
        self._listeners = 0
        self._runs = False  # whether a thread takes samples
        self._number = 0
        self._newest: Message = {}
        self._reading = threading.Lock()  # one thread at a time reads tables

    def listen(self) -> Iterator[Message | None]:
        """The history first, then each sample; None when there was nothing for SILENT_S."""
        with self._changed:
            self._listeners += 1
            seen, history = self._number, list(self._history)  # an older sample may be hours old
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="timerctl-web", daemon=True).start()
        try:
            yield {"columns": COLUMNS, "history": history, "every_s": EVERY_S}
            while True:
                with self._changed:
                    came = self._changed.wait_for(lambda seen=seen: self._number > seen, SILENT_S)  # type: ignore[misc]
                    seen, message = self._number, self._newest
                yield message if came else None
        finally:
            with self._changed:
                self._listeners -= 1
                self._changed.notify_all()

    def rows(self, name: str) -> list[Row]:
        """The rows of a table, which are read again as often as their cost allows."""
        with self._reading, open_arena(self._paths) as reader:
            if not self._samples.kept:
                self._take(reader)
            self._readings[name].refresh(Source(reader, self._samples.newest, self._hot))
            return self._readings[name].rows

    def _run(self) -> None:
        """Take samples while somebody listens."""
        while True:
            message = self._message()
            with self._changed:
                self._number, self._newest = self._number + 1, message
                if "point" in message:
                    self._history.append(message["point"])
                self._changed.notify_all()
                if self._changed.wait_for(lambda: not self._listeners, EVERY_S):
                    self._runs = False
                    return

    def _take(self, reader: ArenaReader) -> Sample:
        sample = self._samples.read(reader)
        self._hot.look(reader, sample.at_ns)
        return sample

    def _message(self) -> Message:
        try:
            with self._reading, open_arena(self._paths) as reader:
                sample = self._take(reader)
        except (OSError, TimerdError) as error:
            found = Finding(Level.ERROR, f"The arena cannot be read: {error}")
            return {"alive": False, "findings": [found._asdict() | {"level": "error"}]}
        point = point_of(sample)
        hottest = islice(self._hot.rates().items(), HOT)
        keys = [{"purgatory": purgatory, "key": plain(key), "rate": rate} for (purgatory, key), rate in hottest]
        stats = sample.stats
        return document(sample, verdict(sample, self._samples.kept[0]), []) | {
            "point": point,
            "hot": keys,
            "uptime_s": stats["uptime_s"],
            "pid": stats["pid"],
            "pending": stats["counters"]["pending"],
            "clients": stats["counters"]["clients"],
            "arena_bytes": stats["arena_bytes"],
        }


def point_of(sample: Sample) -> list[float | None]:
    """A sample as a point of the history. Latencies are in seconds; None where nothing was counted."""
    wait, late = sample.wait, sample.lateness
    return [
        round(time.time(), 1),
        *(round(sample.rates[name], 1) for name in ("registered", "completed", "expired", "events")),
        sample.stats["counters"]["pending"],
        wait.p50 / NS if wait.count else None,
        wait.p99 / NS if wait.count else None,
        late.p99 / NS if late.count else None,
        round(sample.turn_share, 4),
    ]
