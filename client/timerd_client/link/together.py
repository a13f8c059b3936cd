"""Events of several purgatories that travel in one frame: they all arrive, or none does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timerd_client.hot.commands import in_purgatory
from timerd_client.types import Key, Patience, Payload
from timerd_shm.declare.errors import ArenaFullError
from timerd_shm.declare.wire import CommandFlag
from timerd_wire.refusals import Subject

from .flows import Flow, Settles
from .link import Link
from .promise import Reply
from .surface import Surface


def fire_together(
    link: Link, events: Sequence[tuple[Surface[Any, Any], Key, Payload]], timeout: Patience
) -> Flow[list[int]]:
    """Fire (purgatory, key, value) in one frame; the positions of those for whose values the arena has no room.

    Raises TimerdUnavailableError after `timeout` s.
    """
    # Only a value needs room, so only an event with a value can be refused.
    commands = [
        purgatory._fire_command(key, value, 1, None, CommandFlag.WANTS_ANSWER if value else 0)
        for purgatory, key, value in events
    ]
    replies: dict[int, Reply] = {}
    indices = link.protocol.session.purgatories
    with link.lock:
        link.ready_locked()
        for position, ((purgatory, _, value), command) in enumerate(zip(events, commands, strict=True)):
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
