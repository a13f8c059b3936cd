"""The keys with the most events in the last seconds, from the event ring.

    hot = HotKeys()
    hot.look(reader, now_ns)      # several times a second
    hot.rates()                   # {("default", b"orders/7"): 120.0}

A look reads at most LOOKED of the events that have come since the last one, the newest ones. Where more have come,
each of them stands for several.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, NamedTuple

from timerctl.instance import NS
from timerd_shm.read.reader import ArenaReader, DamageError

LOOKED: Final = 1_000  # events in one look: some 5 ms
SPAN_NS: Final = 5 * NS  # of which rates are the mean
Key = tuple[str, bytes]  # purgatory and name


class _Looked(NamedTuple):
    at_ns: int
    counts: dict[Key, float]


class HotKeys:
    """Counts events by key."""

    def __init__(self) -> None:
        self._looks: deque[_Looked] = deque()
        self._newest: int | None = None
        self._incarnation = 0
        self._began_ns = 0

    def look(self, reader: ArenaReader, now_ns: int) -> None:
        """Count the events that have come since the last look."""
        header = reader.header()
        if header.incarnation != self._incarnation or self._newest is None or header.newest < self._newest:
            self._incarnation, self._newest, self._began_ns = header.incarnation, header.newest, now_ns
            self._looks.clear()
            return
        come, first = header.newest - self._newest, max(self._newest + 1, header.tail)
        counts: Counter[Key] = Counter()
        looked = 0
        for sequence in range(header.newest, max(first, header.newest - LOOKED + 1) - 1, -1):
            event = reader.event(sequence)
            if event.sequence != sequence:
                break  # this one and the older ones were overwritten
            looked += 1
            try:
                counts[reader.purgatory_name(event.purgatory), reader.event_key(event)] += 1
            except DamageError:
                continue  # the event left the ring while it was read
        scale = come / looked if looked else 0.0
        self._looks.append(_Looked(now_ns, {key: count * scale for key, count in counts.items()}))
        self._newest = header.newest
        while self._looks and self._looks[0].at_ns <= now_ns - SPAN_NS:
            self._began_ns = self._looks.popleft().at_ns

    def rates(self) -> dict[Key, float]:
        """Events a second, by key; the most first."""
        if not self._looks:
            return {}
        seconds = (self._looks[-1].at_ns - self._began_ns) / NS
        sums: dict[Key, float] = {}
        for look in self._looks:
            for key, count in look.counts.items():
                sums[key] = sums.get(key, 0.0) + count
        order = sorted(sums, key=lambda key: -sums[key])
        return {key: sums[key] / seconds for key in order} if seconds > 0 else {}
