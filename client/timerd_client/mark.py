"""A mark: a point in the history of events, from which a registration counts.

It is (arena incarnation, sequence of the newest event, last command that its maker had issued), read together. Events
of other clients count by sequence, and those of the maker by command number: an earlier `fire` of the maker may still
be on its way when the mark is read, and must not complete a later `register` of the maker. If another client uses the
mark, or the daemon made it (`outcome.mark`), all events count by sequence. Marks can be pickled.
"""

from __future__ import annotations

from typing import NamedTuple

from timerd_shm.declare.wire import RegisterFlag


class Mark(NamedTuple):
    """Take a mark, check, then register with `since=` the mark, in this order."""

    incarnation: int  # of the arena; sequences compare only within one; 0 = there was none when the mark was read
    sequence: int  # of the newest event at that time
    command: int = 0  # last command number that the maker had issued
    maker: bytes = b""  # the maker's client incarnation; empty = by sequence alone

    def on_wire(self, arena: int, client: bytes) -> tuple[int, int, int]:
        """(flags, sequence, command) in a registration by this client (incarnation), at the daemon of this arena."""
        flags = 0 if self.incarnation == arena else RegisterFlag.MARK_OF_OTHER_ARENA
        if self.maker == client and not self.incarnation:
            return 0, 0, self.command  # read where there was no arena yet: from the first event on
        if self.maker == client:
            return flags, self.sequence, self.command
        return flags | RegisterFlag.MARK_BY_SEQUENCE, self.sequence, 0
