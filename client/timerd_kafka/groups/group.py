"""The state of one group: its members, its generation, and the progress of its rebalance."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any
from uuid import uuid4

from kio.schema.errors import ErrorCode

from timerd_kafka.groups.member import Member, Pending
from timerd_kafka.groups.messages import (
    DescribedGroup,
    DescribedMember,
    GroupProtocol,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    SyncAnswer,
)
from timerd_kafka.groups.remembered import Remembered
from timerd_kafka.groups.sessions import key_name
from timerd_kafka.waits.waits import Wait

PREFIX_MAX = 100  # characters of a client id in a member id


class State(StrEnum):
    """The states of a group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"  # members join
    COMPLETING = "CompletingRebalance"  # members wait for the leader's assignment
    STABLE = "Stable"
    DEAD = "Dead"


class Group:
    """A group. Code that changes it calls publish() before an operation looks."""

    def __init__(self, group: str, remembered: Remembered) -> None:
        self.id, self.name = group, key_name(group)
        self.remembered = remembered
        self.state, self.generation = State.EMPTY, 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}  # the member id of each static member
        self.pending: dict[str, Pending] = {}
        self.was_empty = False  # the present rebalance is the first one of an empty group
        self.bytes = 0  # the bytes that the broker holds for the members
        self.join: Wait | None = None  # a DelayedJoin
        self.sync: Wait | None = None  # a DelayedSync
        # Operations read these in another thread. They are replaced, never changed.
        self.known: tuple[str, ...] = ()
        self.joined: tuple[str, ...] = ()
        self.unsynced: frozenset[str] = frozenset()  # members that have not synced in this generation
        if remembered.generation is not None:
            self._restore(remembered.generation)

    def publish(self) -> None:
        """Show the known members and the joined members to the operations.

        The first rebalance of an empty group does not wait for clients that have an id and have not joined with it, as
        in Kafka (InitialDelayedJoin): a client may have got an id, lost it, and asked for another one.
        """
        self.known = (*self.members, *(() if self.was_empty else self.pending))
        self.joined = tuple(member.id for member in self.members.values() if member.joining is not None)
        self.bytes = sum(member.size for member in self.members.values())

    # members ----------------------------------------------------------------------------------------------------------

    def new_id(self, asked: JoinRequest) -> str:
        """An id for a new member."""
        return f"{(asked.instance or asked.client_id)[:PREFIX_MAX]}-{uuid4()}"

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a new member. The first member becomes the leader."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.id] = member
        if member.instance is not None:
            self.instances[member.instance] = member.id
        if self.leader is None:
            self.leader = member.id
        self.publish()

    def remove(self, member: Member) -> None:
        """Remove a member. If it was the leader, the oldest member becomes the leader."""
        del self.members[member.id]
        if member.instance is not None and self.instances.get(member.instance) == member.id:
            del self.instances[member.instance]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)
        self.unsynced -= {member.id}
        self.publish()

    def replace(self, old: Member, new_id: str) -> Member:
        """Give a static member a new id. The member keeps its assignment, and stays the leader if it was."""
        new = Member(
            new_id,
            old.instance,
            old.client_id,
            old.client_host,
            old.session_timeout,
            old.rebalance_timeout,
            old.protocols,
            old.assignment,
            old.is_new,
        )
        self.members = {one.id: one for one in (new if one is old else one for one in self.members.values())}
        if old.instance is not None:
            self.instances[old.instance] = new_id
        if self.leader == old.id:
            self.leader = new_id
        self.unsynced -= {old.id}  # the DelayedSync does not know the new id: only the session watches the new member
        self.publish()
        return new

    def check(self, member: str, instance: str | None) -> ErrorCode:
        """`none` if this is a member, and the newest member with its instance id; otherwise the error."""
        if instance is not None:
            current = self.instances.get(instance)
            if current is not None and current != member:
                return ErrorCode.fenced_instance_id
            if current is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member in self.members else ErrorCode.unknown_member_id

    @property
    def size(self) -> int:
        """The number of members, pending ones included."""
        return len(self.members) + len(self.pending)

    @property
    def rebalance_timeout(self) -> float:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    # protocols --------------------------------------------------------------------------------------------------------

    def candidates(self) -> set[str]:
        """The protocols that all members support."""
        counted = Counter(name for member in self.members.values() for name in set(member.names))
        return {name for name, count in counted.items() if count == len(self.members)}

    def supports(self, protocol_type: str, protocols: tuple[GroupProtocol, ...]) -> bool:
        """Whether a client with these protocols may join."""
        if self.state is State.EMPTY or not self.members:
            return bool(protocol_type and protocols)
        candidates = self.candidates()
        return protocol_type == self.protocol_type and any(one.name in candidates for one in protocols)

    def select_protocol(self) -> str:
        """The protocol that most members prefer, of the protocols that all members support."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    # generations ------------------------------------------------------------------------------------------------------

    def elect(self) -> bool:
        """Make a member that has joined the leader, unless the leader has. Returns False if no member has joined."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.joining is None:
            joined = next((member for member in self.members.values() if member.joining is not None), None)
            if joined is None:
                return False
            self.leader = joined.id
        return True

    def begin_generation(self) -> None:
        """Begin the next generation, with the present members."""
        self.generation += 1
        self.was_empty = False
        self.protocol = self.select_protocol() if self.members else None
        self.state = State.COMPLETING if self.members else State.EMPTY
        self.unsynced = frozenset(self.members)

    def join_answer(self, member: Member) -> JoinAnswer:
        """The answer that gives the generation to a member. Only the leader gets the list of members."""
        is_leader = member.id == self.leader
        members = tuple(
            JoinedMember(one.id, one.instance, one.metadata(self.protocol))
            for one in (self.members.values() if is_leader else ())
        )
        kind = self.protocol_type, self.protocol
        return JoinAnswer(ErrorCode.none, member.id, self.generation, *kind, self.leader or "", members)

    def sync_answer(self, member: Member) -> SyncAnswer:
        """A member's assignment."""
        return SyncAnswer(ErrorCode.none, member.assignment, self.protocol_type, self.protocol)

    def describe(self) -> DescribedGroup:
        """The group, as an administrator sees it."""
        is_stable = self.state is State.STABLE
        members = tuple(
            DescribedMember(
                one.id,
                one.instance,
                one.client_id,
                one.client_host,
                one.metadata(self.protocol) if is_stable else b"",
                one.assignment if is_stable else b"",
            )
            for one in self.members.values()
        )
        protocol = self.protocol if is_stable else None
        return DescribedGroup(self.id, self.state.value, self.protocol_type or "", protocol or "", members)

    # on the disk ------------------------------------------------------------------------------------------------------

    def record(self) -> list[Any]:
        """The record of the generation for the disk, once its members have their assignments."""
        members = [member.record() for member in self.members.values()]
        return [self.generation, self.protocol_type, self.protocol, self.leader, members]

    def _restore(self, record: list[Any]) -> None:
        self.generation, self.protocol_type, self.protocol, self.leader, members = record
        self.members = {member.id: member for member in map(Member.of, members)}
        self.instances = {one.instance: one.id for one in self.members.values() if one.instance is not None}
        self.state = State.STABLE if self.members else State.EMPTY
        self.publish()
