"""The requests to a coordinator, and its answers, the same for all versions of the protocol. Times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

NO_GENERATION = -1


class GroupProtocol(NamedTuple):
    """A protocol that a member supports, such as "range", and the member's metadata for the leader."""

    name: str
    metadata: bytes


class Identity(NamedTuple):
    """The identity that a client claims: a member of a group, in a generation."""

    group: str
    member: str = ""
    instance: str | None = None  # of a static member
    generation: int = NO_GENERATION


class JoinRequest(NamedTuple):
    """A client joins, for the first time or again."""

    group: str
    member: str  # empty if the client has no id
    instance: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    needs_known_id: bool = True  # the client has to join again with the id that it gets (KIP-394)
    may_skip_assignment: bool = True  # the client understands the answer's field skip_assignment (KIP-814)


class JoinedMember(NamedTuple):
    """A member, as the answer to the leader lists it."""

    id: str
    instance: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The generation that a client has joined, or an error."""

    error: ErrorCode
    member: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()  # for the leader
    skip_assignment: bool = False


class SyncRequest(NamedTuple):
    """A member asks for its assignment. The leader's request has the assignments of all members."""

    who: Identity
    assignments: Mapping[str, bytes]
    protocol_type: str | None = None
    protocol: str | None = None


class SyncAnswer(NamedTuple):
    """A member's assignment, or an error."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class DescribedMember(NamedTuple):
    """A member, as an administrator sees it."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group, as an administrator sees it."""

    id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]
