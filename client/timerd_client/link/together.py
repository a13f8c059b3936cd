"""Events of several purgatories that travel in one frame: they all arrive, or none does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timerd_client.arguments import column, each, shown
from timerd_client.hot.commands import in_purgatory
from timerd_client.types import Key, Patience, Payload
from timerd_shm.declare.errors import ArenaFullError, InvalidValueError
from timerd_shm.declare.wire import CommandFlag
from timerd_wire.refusals import Subject

from .flows import Flow, Settles
from .link import Link
from .promise import Reply
from .surface import Surface

Together = tuple[Surface[Any, Any], Key, Payload]


def fire_together(link: Link, events: Sequence[Together], timeout: Patience) -> Flow[list[int]]:
    """Fire (purgatory, key, value) in one frame; the positions of those for whose values the arena has no room.

    Raises TimerdUnavailableError after `timeout` s, and before anything is sent the error of a wrong event.
    """
    given: list[Together] = each("events", column("event", events), lambda event: _event_of(link, event))
    commands = each("events", given, _command_of)
    replies: dict[int, Reply] = {}
    indices = link.protocol.session.purgatories
    with link.lock:
        link.ready_locked()
        for position, ((purgatory, _, value), command) in enumerate(zip(given, commands, strict=True)):
            number = link.protocol.ledger.issue(in_purgatory(command, indices[purgatory._name]))
            if value:
                replies[position] = Reply(link, Subject(None, purgatory._name))
                link.protocol.incoming.replies[number] = replies[position]
        link.wake_if_due(link.protocol.ledger.issued)
    deadline = link.deadline(timeout)
    refused: list[int] = []
    for position, reply in replies.items():
        if not (yield Settles(reply, link.seconds_left(deadline))):
            raise link.unavailable(timeout)
        try:
            reply.get()
        except ArenaFullError:
            refused.append(position)
    return refused


def _event_of(link: Link, event: object) -> Together:
    if not isinstance(event, tuple) or len(event) != 3 or not isinstance(event[0], Surface):
        raise InvalidValueError(
            f"{shown(event)}: give (purgatory, key, value); the purgatory is what client.purgatory(NAME) gave, or the "
            "client itself"
        )
    if event[0]._live() is not link:
        raise InvalidValueError(f"{shown(event[0])} is another client's, and one frame is one client's: take its own")
    return event


def _command_of(event: Together) -> bytes:
    # Only a value needs room, so only an event with a value can be refused.
    purgatory, key, value = event
    command: bytes = purgatory._fire_command(key, value, 1, None, CommandFlag.WANTS_ANSWER if value else 0)
    return command
