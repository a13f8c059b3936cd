"""A rebalance that waits until all members of a group have joined again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Self

from timerd_client import DelayedOperation, Purgatory
from timerd_client.errors import ClosedError
from timerd_client.operations.keys import join_key
from timerd_client.operations.named import Lock, NamedOperation


class Joined(NamedTuple):
    """The end of a join phase: the members of the next generation, and the absent members, which are removed."""

    members: list[str]
    removed: list[str]

    @property
    def leader(self) -> str | None:
        """The first member, which assigns the work; None if the group is empty."""
        return self.members[0] if self.members else None


class DelayedJoin(NamedOperation):
    """Complete when every known member has joined again.

    As Kafka's DelayedJoin (GroupCoordinator.tryCompleteJoin, onCompleteJoin): members that have not joined when the
    rebalance timeout is over are removed, and the next generation begins with the others. If none has joined, the group
    is empty. The members that have joined wait for their answers: give them in `respond`. A member that comes later
    begins another rebalance.

    With `initial_delay` the first rebalance of an empty group waits for that time, even if all members have joined. If
    new members have joined meanwhile, it waits again for the same time, up to the timeout in all
    (group.initial.rebalance.delay.ms, InitialDelayedJoin). Otherwise many workers that start together would each cause
    a rebalance.

    Key: join_key(group).
    """

    def __init__(
        self,
        group: str,
        known: Callable[[], Collection[str]],
        joined: Callable[[], Collection[str]],
        respond: Callable[[Joined], object],
        *,
        initial_delay: float = 0.0,
        lock: Lock | None = None,
    ) -> None:
        """`known()` returns the group's members, `joined()` the members that have joined this generation, in order."""
        super().__init__(lock)
        self._group, self._known, self._joined, self._respond = group, known, joined, respond
        self._delay = initial_delay
        self._pause: DelayedOperation | None = None  # waits for the initial delay

    def watch(self, purgatory: Purgatory, *, timeout: float) -> Self:
        """Begin to wait, for `timeout` seconds (the rebalance timeout) at most. Returns at once."""
        self.once(purgatory)
        self.begin(purgatory, join_key(self._group), timeout)
        if self._delay > 0:
            self._wait_for_more(purgatory, timeout)
        return self

    def _wait_for_more(self, purgatory: Purgatory, left: float) -> None:
        """Wait for the initial delay, and again while new members join, for `left` seconds at most."""
        wait, before = min(self._delay, left), len(self._joined())

        def over() -> None:
            if self.done():
                return
            if left > wait and len(self._joined()) > before:
                self._wait_for_more(purgatory, left - wait)
            else:
                self.force_complete()

        def lost() -> None:
            if not isinstance(pause.error, ClosedError):
                over()

        # Without the group's lock, because the client's thread must not wait for it.
        pause = self._pause = DelayedOperation(lambda: False, on_expiration=over, on_error=lost)
        purgatory.try_complete_else_watch(pause, join_key(self._group), timeout=wait)

    def cancel(self) -> None:
        """Cancel the operation, also in the initial delay. `respond` is not called."""
        if self._pause is not None:
            self._pause.cancel()
        super().cancel()

    def try_complete(self) -> bool:
        return self._delay <= 0 and set(self._known()) <= set(self._joined())

    def on_complete(self) -> None:
        joined = list(self._joined())
        removed = [member for member in self._known() if member not in set(joined)]
        self._respond(Joined(joined, removed))
