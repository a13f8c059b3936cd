"""A member of a group, and the answers for which its requests wait."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from timerd_kafka.groups.messages import GroupProtocol, JoinAnswer, JoinRequest, SyncAnswer
from timerd_kafka.groups.sessions import Session


def topics_of(metadata: bytes) -> object:
    """The topics that a consumer's metadata names, in no order; the metadata if it is not that of a consumer."""
    try:
        subscription, _ = _read_subscription(metadata, VERSION.size)  # later versions only have further fields
    except Exception:  # kio raises many kinds of errors: its own, and those of struct
        return metadata
    return frozenset(subscription.topics)


def size_of(protocols: tuple[GroupProtocol, ...]) -> int:
    """Bytes of names and metadata."""
    return sum(len(one.name) + len(one.metadata) for one in protocols)


VERSION = struct.Struct(">h")  # at the beginning of a consumer's metadata
_read_subscription = entity_reader(ConsumerProtocolSubscription)


@dataclass(eq=False)
class Pending:
    """A client that got a member id, and has not joined with it."""

    id: str
    session: Session | None = None
    is_kept = False  # so its session may expire


@dataclass(eq=False)
class Member:
    """A member. Times are in seconds."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    is_new: bool = True  # it has been in no generation
    joining: asyncio.Future[JoinAnswer] | None = None  # the member's JoinGroup requests wait for this
    syncing: asyncio.Future[SyncAnswer] | None = None  # the member's SyncGroup requests wait for this
    session: Session | None = None

    def update(self, asked: JoinRequest) -> None:
        """Take the fields of a JoinRequest when the member joins again."""
        self.client_id, self.client_host = asked.client_id, asked.client_host
        self.session_timeout, self.rebalance_timeout = asked.session_timeout, asked.rebalance_timeout
        self.protocols = asked.protocols

    @property
    def size(self) -> int:
        """The bytes that the broker holds for the member: its protocols and its assignment."""
        return size_of(self.protocols) + len(self.assignment)

    @property
    def is_kept(self) -> bool:
        """Whether the member needs no heartbeats, as it waits for others. A new member is not kept: it may be gone."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    # protocols --------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The protocols that the member supports, in the order of its preference."""
        return [protocol.name for protocol in self.protocols]

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate that the member prefers. The member supports all candidates."""
        return next(name for name in self.names if name in candidates)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for this protocol."""
        return next((one.metadata for one in self.protocols if one.name == protocol), b"")

    # answers ----------------------------------------------------------------------------------------------------------

    def answer_join(self, answer: JoinAnswer) -> None:
        """Answer the member's waiting JoinGroup requests."""
        waiting, self.joining = self.joining, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def answer_sync(self, answer: SyncAnswer) -> None:
        """Answer the member's waiting SyncGroup requests."""
        waiting, self.syncing = self.syncing, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def refuse(self, error: ErrorCode, known_as: str) -> None:
        """Answer all waiting requests of the member with an error."""
        self.answer_join(JoinAnswer(error, known_as))
        self.answer_sync(SyncAnswer(error))

    # on the disk ------------------------------------------------------------------------------------------------------

    def record(self) -> list[Any]:
        """The record of the member for the disk."""
        protocols = [list(protocol) for protocol in self.protocols]
        times = [self.session_timeout, self.rebalance_timeout]
        return [self.id, self.instance, self.client_id, self.client_host, *times, protocols, self.assignment]

    @classmethod
    def of(cls, record: list[Any]) -> Member:
        """The member that `record()` described."""
        name, instance, client_id, host, session, rebalance, protocols, assignment = record
        kinds = tuple(GroupProtocol(*one) for one in protocols)
        return cls(name, instance, client_id, host, session, rebalance, kinds, assignment, is_new=False)
