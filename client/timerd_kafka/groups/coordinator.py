"""The coordinator of the groups that belong to this broker. The APIs call it in the broker's loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterator
from typing import Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.cluster.placement import coordinator_of
from timerd_kafka.cluster.settings import Settings
from timerd_kafka.groups.group import Group, State
from timerd_kafka.groups.member import Member, Pending, size_of, topics_of
from timerd_kafka.groups.messages import (
    DescribedGroup,
    Identity,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from timerd_kafka.groups.offsets import Committed, Offsets, Place
from timerd_kafka.groups.rebalances import Rebalances
from timerd_kafka.groups.remembered import Remembered
from timerd_kafka.groups.sessions import Holder, Sessions
from timerd_kafka.waits.waits import Waits

GROUP_ID_MAX = 1_000  # bytes
INSTANCE_ID_MAX = 249  # characters, as of a topic's name
MEMBERS_MAX = 1_000  # of a group, clients with a new member id included
PENDING_MAX = 1_000  # clients of a broker that have not joined with their new member id: their sessions take room
GROUPS_MAX = 10_000  # of a broker
PROTOCOL_NAMES_MAX = 100  # of a member
PROTOCOLS_MAX = 1 << 20  # bytes of a member's protocols
ASSIGNMENTS_MAX = 16 << 20  # bytes that a leader assigns
HELD_MAX = 256 << 20  # bytes of all members of a broker: their protocols and their assignments
NEW_MEMBER_S = 300.0  # the longest wait of a new member in its first join (Kafka's NewMemberJoinTimeoutMs)
NOTED_MAX = 1_000
SHOWN = 100  # characters of a client id, and of a group's id

log = logging.getLogger("timerd_kafka.groups")


class Surroundings(Protocol):
    """The parts of a broker that its coordinator uses."""

    id: int
    settings: Settings
    waits: Waits

    def topic(self, name: str | None, topic_id: UUID | None = None) -> Topic | None:
        """A topic by its name or its id."""


class Coordinator:
    """The groups of one broker. It begins with the groups on the disk."""

    def __init__(self, broker: Surroundings) -> None:
        self._broker, self._settings = broker, broker.settings
        self._directory = broker.settings.data / "groups"
        self._sessions = Sessions(broker.waits, self._expired)
        delay = broker.settings.initial_rebalance_delay
        self._pending = 0  # clients that got a new member id, and have not joined with it
        self._rebalances = Rebalances(broker.waits, self._sessions, delay, self._forget_if_unused)
        self._noted: set[tuple[str, str]] = set()  # client ids and groups of KIP-848 that were logged
        self.groups: dict[str, Group] = {}
        for remembered in Remembered.all_of(self._directory, self._is_own):
            self._load(remembered)

    def _load(self, remembered: Remembered) -> None:
        """Load a group from the disk. Its members stay members. Their sessions begin now."""
        remembered.drop_topics(self._is_topic)
        group = self.groups[remembered.group] = Group(remembered.group, remembered)
        for member in group.members.values():
            self._sessions.beat(group.id, member, member.session_timeout)
        self._forget_if_unused(group)
        if group.state is not State.DEAD:
            remembered.rewrite()

    def _is_own(self, group: str) -> bool:
        return coordinator_of(group, self._settings.workers) == self._broker.id

    def _is_topic(self, topic: UUID) -> bool:
        return self._broker.topic(None, topic) is not None

    def refusal(self, group: str, *, may_be_empty: bool = False) -> ErrorCode:
        """The error with which this broker refuses a group; `none` if it coordinates the group."""
        if not (group or may_be_empty) or len(group.encode()) > GROUP_ID_MAX:
            return ErrorCode.invalid_group_id
        return ErrorCode.none if self._is_own(group) else ErrorCode.not_coordinator

    def look(self) -> None:
        """Try again the sessions that the timer daemon has refused. The broker calls this periodically."""
        self._sessions.look()

    # groups -----------------------------------------------------------------------------------------------------------

    def _add(self, group: str) -> Group | None:
        """A new group; None if there are too many."""
        if len(self.groups) >= GROUPS_MAX:
            return None
        made = self.groups[group] = Group(group, Remembered(self._directory, group))
        return made

    def _forget_if_unused(self, group: Group) -> None:
        if group.state is State.EMPTY and not group.size and not group.remembered.offsets:
            group.state = State.DEAD
            group.remembered.remove()
            del self.groups[group.id]

    def _expired(self, group_id: str, holder: Holder) -> None:
        """Handle a session that has expired."""
        group = self.groups.get(group_id)
        if group is None:
            return
        if isinstance(holder, Member):
            if group.members.get(holder.id) is holder:
                self._rebalances.remove(group, holder)
        elif holder.id in group.pending:
            self._end_pending(group, holder.id)
            self._pending_gone(group)

    def _end_pending(self, group: Group, member_id: str) -> None:
        """Forget a new member id: its client has joined, or left, or not come back in time."""
        self._pending -= 1
        self._sessions.end(group.pending.pop(member_id))

    def _pending_gone(self, group: Group) -> None:
        if group.state is State.PREPARING:
            self._rebalances.look(group)
        self._forget_if_unused(group)

    # joining ----------------------------------------------------------------------------------------------------------

    async def join(self, asked: JoinRequest) -> JoinAnswer:
        """Join a group. The answer waits for the next generation. A client that disconnects stays a member."""
        answer = self._join(asked)
        return answer if isinstance(answer, JoinAnswer) else await asyncio.shield(answer)

    def _join(self, asked: JoinRequest) -> JoinAnswer | asyncio.Future[JoinAnswer]:
        error = self.refusal(asked.group) or self._unbearable(asked)
        group = self.groups.get(asked.group)
        if not error and group is None:
            if asked.member:
                error = ErrorCode.unknown_member_id
            else:
                group = self._add(asked.group)
                error = ErrorCode.group_max_size_reached if group is None else ErrorCode.none
        if error or group is None:
            return JoinAnswer(error, asked.member)
        is_known = asked.member in group.members or asked.member in group.pending
        if not is_known and (asked.instance or "") not in group.instances and group.size >= MEMBERS_MAX:
            return JoinAnswer(ErrorCode.group_max_size_reached, asked.member)
        if not group.supports(asked.protocol_type, asked.protocols):
            self._forget_if_unused(group)
            return JoinAnswer(ErrorCode.inconsistent_group_protocol, asked.member)
        return self._join_again(group, asked) if asked.member else self._join_new(group, asked)

    def _unbearable(self, asked: JoinRequest) -> ErrorCode:
        """The error if the request is out of its bounds, or the broker has no room for it; otherwise `none`."""
        if not self._settings.session_timeout_min <= asked.session_timeout <= self._settings.session_timeout_max:
            return ErrorCode.invalid_session_timeout
        if asked.instance is not None and not 0 < len(asked.instance) <= INSTANCE_ID_MAX:
            return ErrorCode.invalid_request
        if len(asked.protocols) > PROTOCOL_NAMES_MAX:
            return ErrorCode.invalid_request
        size = size_of(asked.protocols)
        if size > PROTOCOLS_MAX:
            return ErrorCode.invalid_request
        group = self.groups.get(asked.group)
        known = None if group is None else group.members.get(asked.member)
        if not self._has_room(size - (0 if known is None else known.size)):
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _has_room(self, more: int) -> bool:
        """Whether the broker may hold `more` further bytes for members."""
        return more <= 0 or more + sum(group.bytes for group in self.groups.values()) <= HELD_MAX

    def _join_new(self, group: Group, asked: JoinRequest) -> JoinAnswer | asyncio.Future[JoinAnswer]:
        """Handle the request of a client without a member id."""
        member_id = group.new_id(asked)
        if asked.instance is not None and asked.instance in group.instances:
            return self._replace(group, group.members[group.instances[asked.instance]], member_id, asked)
        if asked.instance is None and asked.needs_known_id:
            if self._pending >= PENDING_MAX:
                self._forget_if_unused(group)
                return JoinAnswer(ErrorCode.coordinator_load_in_progress, "")  # clients try again
            self._pending += 1
            pending = group.pending[member_id] = Pending(member_id)
            group.publish()
            self._sessions.beat(group.id, pending, asked.session_timeout)
            return JoinAnswer(ErrorCode.member_id_required, member_id)
        return self._add_member(group, member_id, asked)

    def _join_again(self, group: Group, asked: JoinRequest) -> JoinAnswer | asyncio.Future[JoinAnswer]:
        """Handle the request of a client with a member id."""
        if asked.member in group.pending and asked.instance is None:
            self._end_pending(group, asked.member)
            return self._add_member(group, asked.member, asked)
        if error := group.check(asked.member, asked.instance):
            return JoinAnswer(error, asked.member)
        member = group.members[asked.member]
        is_same = member.protocols == asked.protocols
        if group.state is State.COMPLETING and is_same:
            return group.join_answer(member)  # the member has not received the answer to its first request
        if group.state is State.STABLE and is_same and member.id != group.leader:
            return group.join_answer(member)
        return self._rejoin(group, member, asked)

    def _add_member(self, group: Group, member_id: str, asked: JoinRequest) -> asyncio.Future[JoinAnswer]:
        given = asked.client_id, asked.client_host, asked.session_timeout, asked.rebalance_timeout, asked.protocols
        member = Member(member_id, asked.instance, *given)
        member.joining = self._broker.waits.loop.create_future()
        group.add(member, asked.protocol_type)
        self._sessions.beat(group.id, member, NEW_MEMBER_S)
        self._rebalances.changed(group)
        return member.joining

    def _rejoin(self, group: Group, member: Member, asked: JoinRequest) -> asyncio.Future[JoinAnswer]:
        """Let a member join the next generation."""
        member.update(asked)
        if member.joining is None:
            member.joining = self._broker.waits.loop.create_future()
        joining = member.joining
        if member.is_new:  # any other member is kept while it waits, without heartbeats (Member.is_kept)
            self._sessions.beat(group.id, member, NEW_MEMBER_S)
        group.publish()
        self._rebalances.changed(group)
        return joining

    def _replace(
        self, group: Group, old: Member, member_id: str, asked: JoinRequest
    ) -> JoinAnswer | asyncio.Future[JoinAnswer]:
        """Give a restarted static member a new id, and fence the old id. A stable group goes on without a rebalance.

        But the group rebalances if the member wants other topics than before, because the leader has to assign them
        (KAFKA-12759), or if the members prefer another protocol now.
        """
        leader, before = group.leader, topics_of(old.metadata(group.protocol))
        old.refuse(ErrorCode.fenced_instance_id, old.id)
        self._sessions.end(old)
        member = group.replace(old, member_id)
        member.update(asked)
        self._sessions.beat(group.id, member, member.session_timeout)
        is_same = group.select_protocol() == group.protocol and topics_of(member.metadata(group.protocol)) == before
        if group.state is not State.STABLE or not is_same:
            return self._rejoin(group, member, asked)
        self._rebalances.keep(group)
        answer = group.join_answer(member)
        if asked.may_skip_assignment:
            return answer._replace(skip_assignment=member.id == group.leader)
        # A client of an older version that was the leader gets its old id as the leader's id. So it does not take
        # itself for the leader, and does not assign the work again.
        return answer._replace(leader=leader or "", members=())

    # syncing ----------------------------------------------------------------------------------------------------------

    async def sync(self, asked: SyncRequest) -> SyncAnswer:
        """Get an assignment. The answer waits for the leader's assignments."""
        answer = self._sync(asked)
        return answer if isinstance(answer, SyncAnswer) else await asyncio.shield(answer)

    def _sync(self, asked: SyncRequest) -> SyncAnswer | asyncio.Future[SyncAnswer]:
        group, error = self._member_of(asked.who)
        if group is None or error:
            return SyncAnswer(error)
        for given, own in ((asked.protocol_type, group.protocol_type), (asked.protocol, group.protocol)):
            if given is not None and given != own:
                return SyncAnswer(ErrorCode.inconsistent_group_protocol)
        size = sum(map(len, asked.assignments.values()))
        if size > ASSIGNMENTS_MAX or not self._has_room(size):
            return SyncAnswer(ErrorCode.invalid_request)
        member = group.members[asked.who.member]
        if group.state is State.PREPARING:
            return SyncAnswer(ErrorCode.rebalance_in_progress)
        if group.state is State.STABLE:
            self._sessions.beat(group.id, member, member.session_timeout)
            self._rebalances.synced(group, member)
            return group.sync_answer(member)
        if member.syncing is None:
            member.syncing = self._broker.waits.loop.create_future()
        syncing = member.syncing
        self._rebalances.synced(group, member)
        if member.id == group.leader:
            self._rebalances.assign(group, asked.assignments)
        return syncing

    def _member_of(self, who: Identity) -> tuple[Group | None, ErrorCode]:
        """The group of a client; and an error, or `none` if the client is a member of this generation."""
        group = self.groups.get(who.group)
        if error := self.refusal(who.group):
            return group, error
        if group is None:
            return None, ErrorCode.unknown_member_id
        if error := group.check(who.member, who.instance):
            return group, error
        return group, ErrorCode.none if who.generation == group.generation else ErrorCode.illegal_generation

    # living and leaving -----------------------------------------------------------------------------------------------

    def heartbeat(self, who: Identity) -> ErrorCode:
        """Handle a heartbeat: the member lives."""
        group, error = self._member_of(who)
        if group is None or error:
            return error
        member = group.members[who.member]
        self._sessions.beat(group.id, member, self._timeout_of(member))
        return ErrorCode.rebalance_in_progress if group.state is State.PREPARING else ErrorCode.none

    @staticmethod
    def _timeout_of(member: Member) -> float:
        is_first_join = member.is_new and member.joining is not None
        return NEW_MEMBER_S if is_first_join else member.session_timeout

    def leave(self, who: Identity) -> ErrorCode:
        """Remove a member that leaves. With an empty member id, remove the static member with the instance id."""
        if error := self.refusal(who.group):
            return error
        group = self.groups.get(who.group)
        if group is None:
            return ErrorCode.unknown_member_id
        if who.member in group.pending:
            self._end_pending(group, who.member)
            self._pending_gone(group)
            return ErrorCode.none
        member_id = who.member or group.instances.get(who.instance or "", "")
        if error := group.check(member_id, who.instance):
            return error
        self._rebalances.remove(group, group.members[member_id])
        return ErrorCode.none

    def end_waits(self, who: Identity) -> None:
        """End the waits of a member whose LeaveGroup has arrived. It stays a member until this is handled."""
        group = self.groups.get(who.group)
        if group is None or group.check(who.member, who.instance):
            return
        member = group.members[who.member]
        member.refuse(ErrorCode.unknown_member_id, "")
        self._sessions.beat(group.id, member, member.session_timeout)  # perhaps the LeaveGroup is lost
        group.publish()

    # offsets ----------------------------------------------------------------------------------------------------------

    def may_commit(self, who: Identity) -> ErrorCode:
        """The error if a client may not commit offsets now, or `none`. A member's commit counts as a heartbeat, too."""
        if error := self.refusal(who.group, may_be_empty=True):
            return error
        group = self.groups.get(who.group)
        if who.generation < 0 and (group is None or group.state is State.EMPTY):
            return ErrorCode.none  # a client that only keeps offsets here, without being a member
        if group is None:
            return ErrorCode.illegal_generation
        group, error = self._member_of(who)
        if group is None or error:
            return error
        if group.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        member = group.members[who.member]
        self._sessions.beat(group.id, member, self._timeout_of(member))
        return ErrorCode.none

    def commit(self, group_id: str, offsets: Offsets) -> ErrorCode:
        """Keep offsets, after may_commit(). Those of topics that were deleted meanwhile are not kept."""
        offsets = {place: one for place, one in offsets.items() if self._is_topic(place.topic)}
        if not offsets:
            return ErrorCode.none
        group = self.groups.get(group_id) or self._add(group_id)
        if group is None:
            return ErrorCode.group_max_size_reached
        try:
            group.remembered.commit(offsets)
        except OSError:
            self._forget_if_unused(group)
            return ErrorCode.coordinator_not_available  # clients try again
        return ErrorCode.none

    def committed(self, group_id: str, place: Place) -> Committed | None:
        """The offset that a group has committed for a partition."""
        group = self.groups.get(group_id)
        return None if group is None else group.remembered.offsets.get(place)

    def all_committed(self, group_id: str) -> Iterator[tuple[Topic, int, Committed]]:
        """All offsets that a group has committed."""
        group = self.groups.get(group_id)
        if group is None:
            return
        offsets = group.remembered.offsets
        for place in sorted(offsets, key=lambda place: (place.topic.int, place.partition)):  # ids compare slowly
            topic = self._broker.topic(None, place.topic)
            if topic is not None:
                yield topic, place.partition, offsets[place]

    def topics_deleted(self, topics: Container[UUID]) -> None:
        """Forget the offsets of deleted topics, and groups without members that have no other offsets."""
        for group in list(self.groups.values()):
            group.remembered.drop_topics(lambda topic: topic not in topics)
            self._forget_if_unused(group)

    def note_other_protocol(self, client_id: str, group: str) -> None:
        """Log a client that asks for a group of KIP-848, which is refused. The log names each client and group once."""
        shown = client_id[:SHOWN], group[:SHOWN]
        if shown not in self._noted and len(self._noted) < NOTED_MAX:
            self._noted.add(shown)
            log.warning(
                "client %r asks for group %r by the protocol of KIP-848, and is refused: give it "
                "group.protocol=classic", *shown
            )  # fmt: skip

    # administration ---------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup | None:
        """A description of a group; None if it is unknown."""
        group = self.groups.get(group_id)
        return None if group is None else group.describe()

    def delete(self, group_id: str) -> ErrorCode:
        """Forget a group and its offsets. A group with members is refused."""
        if error := self.refusal(group_id):
            return error
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        if group.state is not State.EMPTY or group.size:
            return ErrorCode.non_empty_group
        group.remembered.offsets = {}
        self._forget_if_unused(group)
        return ErrorCode.none
