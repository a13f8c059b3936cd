"""The rebalances of groups: members join, the leader's assignment goes to all, and the group is stable.

    Empty, Stable, CompletingRebalance --prepare--> PreparingRebalance: a DelayedJoin waits for all known members
    PreparingRebalance --the DelayedJoin ends-----> CompletingRebalance: a DelayedSync waits for all members
    PreparingRebalance --it ends without members--> Empty
    CompletingRebalance --the leader syncs--------> Stable

The operations wait in the timer daemon. If the daemon is lost, waiting members get an error after which clients try
again. Then the next join continues the rebalance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_client.operations import DelayedJoin, DelayedSync, join_key, sync_key
from timerd_kafka.groups.group import Group, State
from timerd_kafka.groups.member import Member
from timerd_kafka.groups.messages import JoinAnswer, SyncAnswer
from timerd_kafka.groups.sessions import Sessions
from timerd_kafka.waits.waits import Wait, Waits

PURGATORY = "rebalance"
TIMEOUT_MIN_S = 0.1  # the shortest wait for joins or syncs: a group of absent static members waits again and again
MAY_REBALANCE = (State.EMPTY, State.STABLE, State.COMPLETING)

log = logging.getLogger("timerd_kafka.groups")


class GenerationSync(DelayedSync):
    """A DelayedSync that calls `ended` when it completes, expires or fails. Then `_sync_ended` runs in the loop."""

    def __init__(self, group: Group, ended: Callable[[], object]) -> None:
        super().__init__(
            group.name,
            group.generation,
            tuple(group.members),
            synced=lambda: self._generation_members - group.unsynced,
            current=lambda: group.generation,
            expired=lambda _: None,
        )
        self._generation_members, self._ended = frozenset(group.members), ended

    def on_complete(self) -> None:
        self._ended()


class Rebalances:
    """The rebalances of one broker's groups. Call the methods in the broker's loop."""

    def __init__(
        self, waits: Waits, sessions: Sessions, initial_delay: float, emptied: Callable[[Group], object]
    ) -> None:
        """`emptied` is called with a group whose last member was removed."""
        self._waits, self._sessions = waits, sessions
        self._initial_delay, self._emptied = initial_delay, emptied

    # joining ----------------------------------------------------------------------------------------------------------

    def changed(self, group: Group) -> None:
        """Members were added, removed or changed: begin a rebalance, or make the current DelayedJoin look."""
        if group.state in MAY_REBALANCE:
            self._prepare(group)
        elif group.state is State.PREPARING:
            self.look(group)

    def look(self, group: Group) -> None:
        """Make the DelayedJoin look. If it was lost, begin another."""
        group.publish()
        if group.join is None:
            self._begin_join(group, 0.0)
        else:
            self._waits.fire(PURGATORY, join_key(group.name))

    def _prepare(self, group: Group) -> None:
        if group.state is State.COMPLETING:
            self._refuse_syncs(group)
        self._end_sync(group)
        group.was_empty = group.state is State.EMPTY
        delay = self._initial_delay if group.was_empty else 0.0
        group.state = State.PREPARING
        group.publish()
        self._begin_join(group, delay)

    def _begin_join(self, group: Group, delay: float) -> None:
        def make(give: Callable[..., Any]) -> DelayedJoin:
            return DelayedJoin(group.name, lambda: group.known, lambda: group.joined, give, initial_delay=delay)

        timeout = max(TIMEOUT_MIN_S, group.rebalance_timeout)
        wait = group.join = self._waits.begin(PURGATORY, timeout, make)
        wait.future.add_done_callback(lambda future: self._join_ended(group, wait, future))

    def _join_ended(self, group: Group, wait: Wait, future: asyncio.Future[Any]) -> None:
        lost = future.cancelled() or future.exception() is not None
        if group.join is not wait:
            return
        group.join = None
        if lost:
            self._join_lost(group)
        else:
            self._begin_generation(group)

    def _join_lost(self, group: Group) -> None:
        """Make the members try again. The members keep their sessions."""
        log.warning("the rebalance of group %r is lost, as the timer daemon does not hold it", group.id)
        for member in group.members.values():
            if member.joining is not None:
                member.answer_join(JoinAnswer(ErrorCode.coordinator_load_in_progress, member.id))
                self._sessions.beat(group.id, member, member.session_timeout)
        group.publish()

    def _begin_generation(self, group: Group) -> None:
        """Begin a generation of the members that have joined, when all have joined or the rebalance timeout is over.

        Other members are removed. But a static member that has not joined stays until its session ends.
        """
        for member in [one for one in group.members.values() if one.joining is None and one.instance is None]:
            self._drop(group, member)
        if group.members and not group.elect():
            self._begin_join(group, 0.0)  # all members are static, and none has joined
            return
        group.begin_generation()
        if not group.members:
            group.publish()
            self.keep(group)
            self._emptied(group)
            return
        for member in group.members.values():
            member.answer_join(group.join_answer(member))
            member.is_new = False
            self._sessions.beat(group.id, member, member.session_timeout)
        group.publish()
        self._begin_sync(group)

    # syncing ----------------------------------------------------------------------------------------------------------

    def synced(self, group: Group, member: Member) -> None:
        """Note that a member has asked for its assignment in this generation."""
        if member.id in group.unsynced:
            group.unsynced -= {member.id}
            self._waits.fire(PURGATORY, sync_key(group.name))

    def assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        """Take the leader's assignments. Then the group is stable."""
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
        group.publish()
        group.state = State.STABLE
        self.keep(group)
        for member in group.members.values():
            if member.syncing is not None:
                member.answer_sync(group.sync_answer(member))
                self._sessions.beat(group.id, member, member.session_timeout)

    def _begin_sync(self, group: Group) -> None:
        timeout = max(TIMEOUT_MIN_S, group.rebalance_timeout)
        wait = group.sync = self._waits.begin(PURGATORY, timeout, lambda give: GenerationSync(group, give))
        wait.future.add_done_callback(lambda future: self._sync_ended(group, wait, future))

    def _end_sync(self, group: Group) -> None:
        """End the DelayedSync of a generation that is over."""
        group.unsynced = frozenset()
        if group.sync is not None:
            group.sync = None
            self._waits.fire(PURGATORY, sync_key(group.name))

    def _sync_ended(self, group: Group, wait: Wait, future: asyncio.Future[Any]) -> None:
        lost = future.cancelled() or future.exception() is not None
        if group.sync is not wait:
            return
        group.sync = None
        if lost:
            if group.state is State.COMPLETING:  # no other call would end the members' waits
                log.warning("the syncing of group %r is lost, as the timer daemon does not hold it", group.id)
                self._prepare(group)
        elif group.unsynced:
            for member in [group.members[one] for one in group.unsynced]:
                self._drop(group, member)
            self._prepare(group)

    def _refuse_syncs(self, group: Group) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.syncing is not None:
                member.answer_sync(SyncAnswer(ErrorCode.rebalance_in_progress))
                self._sessions.beat(group.id, member, member.session_timeout)

    # members ----------------------------------------------------------------------------------------------------------

    def remove(self, group: Group, member: Member) -> None:
        """Remove a member that leaves, or whose session has expired."""
        self._drop(group, member)
        self.changed(group)

    def _drop(self, group: Group, member: Member) -> None:
        member.refuse(ErrorCode.unknown_member_id, "")
        self._sessions.end(member)
        group.remove(member)

    def keep(self, group: Group) -> None:
        """Keep the generation on the disk. If that fails, its members join again after a restart."""
        try:
            group.remembered.keep(group.record())
        except OSError:
            log.warning("the generation of group %r is not kept", group.id, exc_info=True)
