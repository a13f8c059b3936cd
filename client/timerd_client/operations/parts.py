"""The base of produce, delete-records and topics: an answer in parts. A part is pending until it is done or has failed.

A part that is still pending at the deadline is answered with REQUEST_TIMED_OUT; the other parts keep their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Self

from timerd_client import Purgatory
from timerd_client.operations.codes import Errors
from timerd_client.operations.named import Lock, NamedOperation


class Part(NamedTuple):
    """The answer for one partition or topic: a code, and an offset (-1: no offset)."""

    error: int
    offset: int = -1


Respond = Callable[[dict[str, Part]], object]
PENDING = Part(Errors.REQUEST_TIMED_OUT)


class PartsOperation(NamedOperation):
    """A delayed operation over parts. `respond` is called once with all parts, in the order of `parts`."""

    def __init__(self, parts: Mapping[str, Part | None], respond: Respond, lock: Lock | None) -> None:
        """A part that is None is pending."""
        super().__init__(lock)
        self._parts: dict[str, Part | None] = dict(parts)
        self._respond = respond

    def look_at(self, name: str) -> Part | None:
        """The answer for a pending part; None if it is still pending."""
        raise NotImplementedError

    @property
    def pending(self) -> list[str]:
        """The parts that are pending."""
        return [name for name, part in self._parts.items() if part is None]

    def watch_keys(self) -> Iterable[str]:
        """The keys whose events make this operation look."""
        return self.pending

    def is_required(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self.pending)

    def watch(self, purgatory: Purgatory, *, timeout: float) -> Self:
        """Answer at once if nothing is pending, else begin to wait, `timeout` seconds at most. Returns at once."""
        self.once(purgatory)
        if self.is_required():
            self.begin(purgatory, self.watch_keys(), timeout)
        else:
            self.force_complete()
        return self

    def try_complete(self) -> bool:
        for name in self.pending:
            self._parts[name] = self.look_at(name)
        return not self.pending

    def on_complete(self) -> None:
        self._respond({name: PENDING if part is None else part for name, part in self._parts.items()})
