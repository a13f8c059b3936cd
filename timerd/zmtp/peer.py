"""The protocol of one peer: its greeting, its handshake, its messages. Nothing here reads or writes a socket.

    NULL    greeting, READY                       both ways; then messages
    PLAIN   greeting, HELLO, WELCOME, INITIATE, READY; the password of HELLO is given to the caller as the first
            message, and the handshake goes on when the caller admits the peer

    frame   flags, size in 1 byte, body           flags: 1 = more parts follow, 2 = the size has 8 bytes, 4 = a command

All sizes are checked before the bytes are there. Source: rfc.zeromq.org/spec/23 (ZMTP 3.0), spec/24 (PLAIN).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

MORE, LONG, COMMAND = 1, 2, 4
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
VERSION = bytes((3, 0))  # with 3.0 a subscription is a message, and libzmq sends no other commands than PING
GREETING_SIZE = 64
COMMAND_SIZE_MAX = 512  # the commands of libzmq's handshakes have 60 bytes at most
EASY_SIZE_MAX = 16_384  # a frame of this size may wait for its rest; for a larger frame the caller sets memory aside
READ_SIZE = 32_768  # bytes to read at once, where no large frame has begun
READ_SIZE_LARGE = 262_144  # the same within a large frame


class ProtocolError(Exception):
    """The peer has broken the protocol. Its connection has to be closed."""


class Side(NamedTuple):
    """This end of a connection: its type of socket, the peers' types that it accepts, how large a message may be."""

    socket_type: bytes
    peer_types: tuple[bytes, ...]
    message_size_max: int
    is_plain: bool = False  # whether this end is PLAIN's server; else NULL

    @property
    def mechanism(self) -> bytes:
        return b"PLAIN" if self.is_plain else b"NULL"

    def greeting(self) -> bytes:
        """The first bytes of this side."""
        return b"".join((SIGNATURE, VERSION, self.mechanism.ljust(20, b"\0"), bytes((self.is_plain,)), bytes(31)))


class Stage(Enum):
    """The next thing to come: a message of the peer, or in stage ANSWER the caller's answer to a password."""

    GREETING = "greeting"
    HELLO = "HELLO"
    ANSWER = "the caller's answer"
    INITIATE = "INITIATE"
    READY = "READY"
    MESSAGES = "messages"


class Peer:
    """The bytes of one peer go in by feed(), and come out as messages by next()."""

    __slots__ = ("_at", "_body", "_data", "_flags", "_had_more", "_side", "_size", "_stage", "is_starved", "out")

    def __init__(self, side: Side) -> None:
        self._side = side
        self._stage = Stage.GREETING
        self._data, self._at = b"", 0  # the bytes that were read, and how many of them are done
        self._body: bytearray | None = None  # of a large frame that is not complete
        self._size = self._flags = 0  # of that frame
        self._had_more = False  # whether more parts follow the last frame
        self.is_starved = True  # whether next() needs more bytes
        self.out = side.greeting()  # bytes to send to the peer; the caller takes them

    @property
    def is_ready(self) -> bool:
        """Whether messages may be sent to the peer."""
        return self._stage is Stage.MESSAGES

    @property
    def large(self) -> int:
        """The size of the large frame that is not complete; 0 = there is none. It is read when there is room for it."""
        return 0 if self._body is None else self._size

    @property
    def kept(self) -> int:
        """How many bytes were read and are no message yet."""
        return len(self._data) if self._body is None else len(self._body)

    @property
    def wanted(self) -> int:
        """How many bytes to read next, at most."""
        if self._stage is Stage.ANSWER:
            return 0
        return READ_SIZE if self._body is None else min(self._size - len(self._body), READ_SIZE_LARGE)

    def feed(self, data: bytes) -> None:
        """Take in bytes that were read, `wanted` at most. Call this only when next() has used up the earlier bytes."""
        self.is_starved = False
        if self._body is not None:
            self._body += data
        else:
            self._data = self._data + data if self._data else data

    def next(self) -> bytes | None:
        """The next message; b"" for a part of a message of several parts, which no client sends.

        The password after HELLO. None after the greeting and other commands, or if `is_starved`. Raises ProtocolError.
        """
        if self._stage is Stage.GREETING:
            self._take_greeting()
            return None
        if self._stage is Stage.ANSWER:
            self.is_starved = True
            return None
        body = self._frame()
        if body is None:
            return None
        flags = self._flags
        if flags & COMMAND:
            return self._take_command(body)
        if self._stage is not Stage.MESSAGES:
            raise ProtocolError(f"a message, where {self._stage.value} was expected")
        is_part = self._had_more or flags & MORE
        self._had_more = bool(flags & MORE)
        return b"" if is_part else body

    def admit(self) -> None:
        """Go on with the handshake of a peer whose password is right."""
        assert self._stage is Stage.ANSWER, self._stage
        self._stage = Stage.INITIATE
        self.out += _command(b"WELCOME")
        self.is_starved = False  # the peer may have sent more already

    # Frames -----------------------------------------------------------------------------------------------------------

    def _frame(self) -> bytes | None:
        """The body of the next complete frame, whose flags are then `_flags`; None if starved."""
        if self._body is not None:
            if len(self._body) < self._size:
                self.is_starved = True
                return None
            body, self._body = bytes(self._body), None
            return body
        data, at = self._data, self._at
        left = len(data) - at
        if left < 2 or (data[at] & LONG and left < 9):
            self._starve()
            return None
        self._flags = flags = data[at]
        if flags & LONG:
            size, begin = int.from_bytes(data[at + 1 : at + 9], "big"), at + 9
        else:
            size, begin = data[at + 1], at + 2
        self._check(flags, size)
        end = begin + size
        if end <= len(data):
            self._at = end
            if end == len(data):
                self._starve()
            return data[begin:end]
        if size > EASY_SIZE_MAX:
            self._body, self._size = bytearray(data[begin:]), size
            self._at = len(data)
        self._starve()
        return None

    def _starve(self) -> None:
        """More bytes are needed. Keep only the bytes that are not done."""
        self.is_starved = True
        if self._at:
            self._data, self._at = self._data[self._at :], 0

    def _check(self, flags: int, size: int) -> None:
        if flags & ~(MORE | LONG | COMMAND) or flags & (MORE | COMMAND) == MORE | COMMAND:
            raise ProtocolError(f"a frame with flags {flags:#04x}")
        most = COMMAND_SIZE_MAX
        if self._stage is Stage.MESSAGES and not flags & COMMAND:
            most = self._side.message_size_max
        if size > most:
            raise ProtocolError(f"a frame of {size:,} bytes; at most {most:,} are taken")

    # Handshake --------------------------------------------------------------------------------------------------------

    def _take_greeting(self) -> None:
        greeting = self._data
        if greeting[:1] not in (b"", b"\xff") or greeting[9:10] not in (b"", b"\x7f") or greeting[10:11] in OLD:
            raise ProtocolError("no greeting of ZMTP 3")
        if len(greeting) < GREETING_SIZE:
            self.is_starved = True
            return
        mechanism = greeting[12:32].rstrip(b"\0")
        if mechanism != self._side.mechanism:
            raise ProtocolError(f"mechanism {mechanism!r}; this socket has {self._side.mechanism!r}")
        self._at = GREETING_SIZE
        if len(greeting) == GREETING_SIZE:
            self._starve()
        self._stage = Stage.HELLO if self._side.is_plain else Stage.READY
        if not self._side.is_plain:
            self.out += self._ready()

    def _take_command(self, body: bytes) -> bytes | None:
        name, rest = _split(body)
        if self._stage is Stage.MESSAGES:
            if name != b"PING" or len(rest) < 2:
                raise ProtocolError(f"command {name!r}")
            self.out += _command(b"PONG", rest[2:18])
            return None
        if name != self._stage.value.encode():
            raise ProtocolError(f"command {name!r}, where {self._stage.value} was expected")
        if self._stage is Stage.HELLO:
            self._stage = Stage.ANSWER
            _, rest = _split(rest)
            password, _ = _split(rest)
            return password
        if _socket_type(rest) not in self._side.peer_types:
            raise ProtocolError(f"a socket of type {_socket_type(rest)!r}, which does not fit")
        if self._stage is Stage.INITIATE:
            self.out += self._ready()
        self._stage = Stage.MESSAGES
        return None

    def _ready(self) -> bytes:
        return _command(b"READY", _property(b"Socket-Type", self._side.socket_type) + _property(b"Identity", b""))


OLD = (b"\0", b"\1", b"\2")  # versions of ZMTP before 3


def head_of(message: bytes) -> bytes:
    """The head of a message of one part on the wire."""
    size = len(message)
    return bytes((0, size)) if size < 256 else b"\2" + size.to_bytes(8, "big")


def _command(name: bytes, rest: bytes = b"") -> bytes:
    body = bytes((len(name),)) + name + rest
    return bytes((COMMAND, len(body))) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def _split(data: bytes) -> tuple[bytes, bytes]:
    """A string with its size in a byte before it, and what follows. Raises ProtocolError."""
    if not data or len(data) <= data[0]:
        raise ProtocolError("a command ends where it should not")
    return data[1 : 1 + data[0]], data[1 + data[0] :]


def _socket_type(properties: bytes) -> bytes:
    """The property Socket-Type; b"" if there is none. Raises ProtocolError."""
    while properties:
        name, rest = _split(properties)
        size = int.from_bytes(rest[:4], "big")
        if len(rest) < 4 + size:
            raise ProtocolError("a property ends where it should not")
        if name.lower() == b"socket-type":
            return rest[4 : 4 + size]
        properties = rest[4 + size :]
    return b""
