"""A generation that waits until all members of a group have taken their assignment."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Self

from timerd_client import Purgatory
from timerd_client.operations.keys import sync_key
from timerd_client.operations.named import Lock, NamedOperation


class DelayedSync(NamedOperation):
    """Complete when every member of a generation has synced, or when the group is in another generation.

    As Kafka's DelayedSync (GroupCoordinator.tryCompletePendingSync, onExpirePendingSync): members that have not synced
    within the rebalance timeout should be removed, and a rebalance should begin: `expired(missing)` is called for this.
    If the generation is over, the operation ends without effect. Call `check_and_complete` for the key when a member
    syncs or leaves, and when the generation changes.

    Key: sync_key(group).
    """

    def __init__(
        self,
        group: str,
        generation: int,
        members: Collection[str],
        synced: Callable[[], Collection[str]],
        current: Callable[[], int],
        expired: Callable[[list[str]], object],
        *,
        lock: Lock | None = None,
    ) -> None:
        """`synced()` returns the members that have their assignment, `current()` the group's present generation."""
        super().__init__(lock)
        self._group, self._generation, self._members = group, generation, list(members)
        self._synced, self._current, self._expired = synced, current, expired

    def watch(self, purgatory: Purgatory, *, timeout: float) -> Self:
        """Begin to wait, for `timeout` seconds (the rebalance timeout) at most. Returns at once."""
        self.once(purgatory)
        self.begin(purgatory, sync_key(self._group), timeout)
        return self

    @property
    def missing(self) -> list[str]:
        """Members that have not synced."""
        synced = set(self._synced())
        return [member for member in self._members if member not in synced]

    def try_complete(self) -> bool:
        return self._current() != self._generation or not self.missing

    def on_expiration(self) -> None:
        if self._current() == self._generation and (missing := self.missing):
            self._expired(missing)
