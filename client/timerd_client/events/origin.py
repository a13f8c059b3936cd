"""The origin of an event: the arena, the client and the command that have fired it.

    Origin(arena=0xC0FFEE00C0FFEE, client=b"...", command=812)

The process that fires knows the origin when its call returns. The process that waits finds the origin of the event that
has settled its operation in the ring, by the sequence in the outcome's mark. So nothing has to be sent for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from timerd_client.link.link import Link
from timerd_client.outcome import Outcome, State
from timerd_client.types import Key
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.records import ArenaHeader, ClientRecord, EventRecord
from timerd_shm.declare.states import EventKind
from timerd_shm.read.reader import ArenaReader

_TAIL_WORD: Final = offset_of(ArenaHeader, "tail") // 8
_LOW_WORD: Final = offset_of(ClientRecord, "incarnation_low") // 8
_HIGH_WORD: Final = offset_of(ClientRecord, "incarnation_high") // 8
assert offset_of(ClientRecord, "generation") == 4, "client_of()"


class Origin(NamedTuple):
    """Where an event comes from. No two events have the same origin."""

    arena: int  # its incarnation: a client that lives on with a new arena counts its commands from 1 again
    client: bytes  # the client's incarnation
    command: int  # the command's number


def origin_of(outcome: Outcome, link: Link, purgatory: str, watermarks: Collection[Key]) -> Origin | None:
    """The origin of the event that has completed or failed an operation of this link; None if it is not known.

    `watermarks` are those keys of the operation that wait for a watermark. Raises nothing. The origin is not known if
    the event has left the ring, if the record of the firing client is another client's by now, or if this process has
    not mapped the arena. A limited event that was requeued has no origin, because the daemon has fired it.
    """
    reader, connection = link.connection.reader, link.connection
    arena, sequence = outcome.mark.incarnation, outcome.mark.sequence
    if outcome.state not in (State.COMPLETED, State.FAILED) or outcome.key is None:
        return None
    if reader is None or connection.mapped != arena:
        return None
    try:
        event = reader.event(sequence)
        if outcome.key in watermarks and not _is_about(event, reader, outcome, purgatory):
            return None
        client = client_of(reader, event)
        # An event leaves the ring before it is overwritten. So this event was whole while it was read.
        if event.sequence != sequence or reader.words[_TAIL_WORD] > sequence:
            return None
    except (TimerdError, ValueError):  # the event was overwritten meanwhile; another thread has closed the reader
        return None
    return None if client is None else Origin(arena, client, event.command)


def _is_about(event: EventRecord, reader: ArenaReader, outcome: Outcome, purgatory: str) -> bool:
    """Whether the event has settled the operation through a watermark key.

    A late registration may find the watermark reached. Then its mark names the newest event of all, which may be one on
    another key. The mark of every other operation that has a key names the event on this key exactly.
    """
    key = outcome.key
    kind = EventKind.FAIL if key in outcome.failed else EventKind.ADVANCE
    name = key.encode() if isinstance(key, str) else key
    return (
        event.kind == kind and reader.event_key(event) == name and reader.purgatory_name(event.purgatory) == purgatory
    )


def client_of(reader: ArenaReader, event: EventRecord) -> bytes | None:
    """The incarnation of the client that has fired the event; None if its slot is another client's by now."""
    if event.client >= reader.clients.count:
        return None
    words, at = reader.words, reader.clients.offset_of(event.client) // 8
    before, low, high = words[at], words[at + _LOW_WORD], words[at + _HIGH_WORD]
    # A new client of the slot raises the generation first. A requeued event is of no client: its generation is 0.
    if not before >> 32 == words[at] >> 32 == event.client_generation > 0:
        return None
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")
