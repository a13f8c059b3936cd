"""The items of a subscription: an event on one of its keys, or a gap in the order of events."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from timerd_client.mark import Mark
from timerd_client.outcome import Outcome
from timerd_client.types import Key
from timerd_shm.declare.states import EventKind

EventName: TypeAlias = Literal["fire", "advance", "fail"]
GapReason: TypeAlias = Literal["overwritten", "arena", "buffer"]

_NAMES: dict[int, EventName] = {EventKind.FIRE: "fire", EventKind.ADVANCE: "advance", EventKind.FAIL: "fail"}


class Event(NamedTuple):
    """An event on a key. It can be pickled."""

    key: Key  # as it was given to subscribe()
    kind: EventName
    value: bytes
    mark: Mark  # subscribe(since=mark) goes on after this event
    number: int  # the amount of a fire, the watermark of an advance, the code of a fail
    value_dropped: bool = False  # this client had used up its quota of bytes: see Outcome.value_dropped

    @property
    def amount(self) -> int | None:
        """The amount of a fire; None for another kind."""
        return self.number if self.kind == "fire" else None

    @property
    def watermark(self) -> int | None:
        """The watermark of an advance; None for another kind."""
        return self.number if self.kind == "advance" else None

    @property
    def code(self) -> int | None:
        """The code of a fail; None for another kind."""
        return self.number if self.kind == "fail" else None


class Gap(NamedTuple):
    """Events between the last item and this mark may have been missed. A Gap can be pickled.

    "overwritten": newer events have taken the place of these events in the daemon's ring, or the mark that was asked
    for is ahead of all events. "arena": the daemon has a new arena, and the events of the old arena are not known; all
    events of the new arena follow. "buffer": this subscriber's buffer was full.
    """

    mark: Mark  # the subscription goes on after this mark
    reason: GapReason


Item: TypeAlias = Event | Gap


def event_of(outcome: Outcome) -> Event:
    """The event that completed an observing operation."""
    record, key = outcome._record, outcome.key
    assert record is not None and key is not None, f"no event completed {outcome!r}"
    return Event(key, _NAMES[record.failed], outcome.value, outcome.mark, record.satisfied, outcome.value_dropped)
