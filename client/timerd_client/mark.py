"""A mark: a point in the history of events, from which a registration counts.

A mark is (arena incarnation, sequence of the newest event, last command that its maker had issued), read together.
Events of other clients count by sequence, and events of the maker by command number: an earlier `fire` of the maker may
still be on its way when the mark is read, and must not complete a later `register` of the maker. If another client uses
the mark, or the daemon made it (`outcome.mark`), all events count by sequence. Marks can be pickled.

As text, a mark has only the incarnation and the sequence: an HTTP client may keep it, and send it as Last-Event-ID.

    Mark.parse("00c0ffee00c0ffee-812") == Mark(0xC0FFEE00C0FFEE, 812)
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.wire import RegisterFlag

_TEXT: Final = re.compile(r"([0-9a-f]{16})-([0-9]{1,20})", re.ASCII)
_SEQUENCE_MAX: Final = (1 << 64) - 1
_SHOWN_MAX: Final = 60


class Mark(NamedTuple):
    """A point in the history of events. Take a mark, check your own state, then register with `since=mark`."""

    incarnation: int  # of the arena: sequences of two arenas do not compare; 0 = there was no arena
    sequence: int  # of the newest event at that time
    command: int = 0  # last command number that the maker had issued
    maker: bytes = b""  # the maker's client incarnation; empty = by sequence alone

    def on_wire(self, arena: int, client: bytes) -> tuple[int, int, int]:
        """The (flags, sequence, command) of a registration. `arena` and `client`: the incarnations of both sides."""
        flags = 0 if self.incarnation == arena else RegisterFlag.MARK_OF_OTHER_ARENA
        if self.maker == client and not self.incarnation:
            return 0, 0, self.command  # read before there was an arena: all events count
        if self.maker == client:
            return flags, self.sequence, self.command
        return flags | RegisterFlag.MARK_BY_SEQUENCE, self.sequence, 0

    def __str__(self) -> str:
        return f"{self.incarnation:016x}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """The mark of a text that `str(mark)` gave. All events count by sequence. Raises InvalidValueError."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) and len(text) <= _SHOWN_MAX else None
        if found is None or int(found[2]) > _SEQUENCE_MAX:
            shown = repr(text[:_SHOWN_MAX]) if isinstance(text, str) else type(text).__name__
            raise InvalidValueError(
                f"{shown} is not the text of a mark: give what str(mark) gave, 16 hexadecimal digits, a hyphen, and "
                "a sequence of at most 64 bits"
            )
        return cls(int(found[1], 16), int(found[2]))
