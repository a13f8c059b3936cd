"""The msgpack messages of clients, checked field by field: bytes from a socket are not trusted until they are checked.

A message that is not of the agreed form raises MalformedError. A message of that form which asks for something
impossible raises its own error: InvalidNameError for a name, NotSupportedError for an unknown orphans policy,
UnsupportedVersionError for another version of the protocol.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgpack
from timerd_shm.declare.errors import InvalidNameError, MalformedError, NotSupportedError, UnsupportedVersionError
from timerd_shm.declare.fields import offset_of, size_of, struct_of
from timerd_shm.declare.limits import (
    KEY_SIZE_MAX,
    NAME_FORM,
    NAME_PATTERN,
    NAME_SIZE_MAX,
    PURGATORIES_MAX,
    TAKEOVER_MS_MAX,
    TAKEOVER_MS_MIN,
    WAITS_MAX,
)
from timerd_shm.declare.states import Orphans
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, DownKind, ReportHeader
from timerd_wire.proof import PROOF_SIZE, incarnation_of

HEADER_SIZE = size_of(CommandHeader)
U32_MAX = 0xFFFF_FFFF
U64_MAX = 0xFFFF_FFFF_FFFF_FFFF
MAP_FIELDS_MAX = 32
TEXT_SIZE_MAX = 1_024

Value = TypeVar("Value")


class Hello(NamedTuple):
    """A client's description of itself, and the operations that it waits for."""

    incarnation: bytes
    name: bytes
    pid: int
    start_ticks: int
    pid_namespace: int
    time_namespace: int
    boot_id: bytes
    orphans: Orphans
    group: bytes  # empty: none
    listens: bool
    takeover_ms: int
    waits: list[int]
    purgatories: list[str]


class Query(NamedTuple):
    """A question, with the number that its answer carries. The other fields are checked when they are read."""

    number: int
    fields: dict[str, Any]

    @property
    def query(self) -> str:
        """The name of the query."""
        return self.text("query")

    def text(self, name: str) -> str:
        """A field that is a str."""
        return _field(self.fields, name, str)

    def flag(self, name: str) -> bool:
        """A field that is true or false."""
        return _field(self.fields, name, bool)

    def amount(self, name: str, most: int) -> int:
        """A field that is a number from 0 to `most`."""
        return _number(self.fields, name, most)

    def key(self, name: str) -> bytes:
        """A field that is a key."""
        key = _field(self.fields, name, bytes)
        if not 1 <= len(key) <= KEY_SIZE_MAX:
            raise MalformedError(f"query: {name!r} has {len(key)} bytes, and a key 1 to {KEY_SIZE_MAX}")
        return key

    def texts(self, name: str, most: int) -> list[str]:
        """A field that is a list of `most` str at most."""
        texts = _field(self.fields, name, list)
        if len(texts) > most or not all(type(text) is str for text in texts):
            raise MalformedError(f"query: {name!r} has {len(texts)} items ({most} at most), or an item that is no str")
        return texts

    def numbers(self, name: str, most: int) -> list[int]:
        """A field that is a list of `most` 64-bit numbers at most."""
        numbers = _numbers(self.fields, name)
        if len(numbers) > most:
            raise MalformedError(f"query: {name!r} has {len(numbers)} numbers; at most {most} are taken")
        return numbers


def read_hello(frame: bytes) -> Hello:
    """The hello in a frame."""
    found = _read_map(frame)
    protocol = _field(found, "protocol", int)
    if protocol != PROTOCOL_VERSION:
        raise UnsupportedVersionError(
            f"the client speaks protocol version {protocol}, and this daemon {PROTOCOL_VERSION}: upgrade the older one"
        )
    orphans = _number(found, "orphans", U32_MAX)
    if orphans not in list(Orphans):
        raise NotSupportedError(f"there is no orphans policy {orphans}: cancel (0), keep (1), group (2)")
    group, listens = found.get("group"), found.get("listens", False)
    if not isinstance(listens, bool):
        raise MalformedError("hello: 'listens' is not true or false")
    label = _field(found, "name", str)
    name = label.encode()
    if len(name) > NAME_SIZE_MAX or not label.isprintable():
        raise InvalidNameError(f"the client's name has {len(name)} bytes (at most {NAME_SIZE_MAX}), or is unprintable")
    purgatories = _field(found, "purgatories", list)
    if len(purgatories) > PURGATORIES_MAX:
        raise MalformedError(f"hello: it names {len(purgatories)} purgatories; at most {PURGATORIES_MAX} are taken")
    return Hello(
        incarnation=incarnation_of(_bytes(found, "proof", PROOF_SIZE)),
        name=name,
        pid=_number(found, "pid", U32_MAX),
        start_ticks=_number(found, "start_ticks", U64_MAX),
        pid_namespace=_number(found, "pid_namespace", U64_MAX),
        time_namespace=_number(found, "time_namespace", U64_MAX),
        boot_id=_bytes(found, "boot_id", 16),
        orphans=Orphans(orphans),
        group=b"" if group is None else _name("group", group).encode(),
        listens=listens,
        takeover_ms=_number(found, "takeover_ms", TAKEOVER_MS_MAX, TAKEOVER_MS_MIN),
        waits=_numbers(found, "waits"),
        purgatories=[purgatory_name(name) for name in purgatories],
    )


def read_query(frame: bytes) -> Query:
    """The query in a frame."""
    found = _read_map(frame)
    return Query(_number(found, "id", U64_MAX), found)


def purgatory_name(name: object) -> str:
    """A purgatory's name, checked. Raises InvalidNameError."""
    return _name("purgatory", name)


def message_frame(header: bytes, message: dict[str, Any]) -> bytes:
    """A frame to a client that carries a map."""
    return header + bytes(msgpack.packb(message, use_bin_type=True))


def bare_header(kind: DownKind, incarnation: int, newest: int, now_ns: int, topic: int = 0, applied: int = 0) -> bytes:
    """A ReportHeader that covers no outcomes or answers, for the frames that the core does not make."""
    return _REPORT.pack(
        *_NO_REPORT._replace(
            topic=topic,
            version=PROTOCOL_VERSION,
            kind=kind,
            incarnation=incarnation,
            applied=applied,
            outcome_first=1,
            newest=newest,
            now_ns=now_ns,
        )
    )


def _read_map(frame: bytes) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(
            memoryview(frame)[HEADER_SIZE:],
            strict_map_key=True,
            max_str_len=TEXT_SIZE_MAX,
            max_bin_len=TEXT_SIZE_MAX,
            max_array_len=min(WAITS_MAX, len(frame)),  # an element takes a byte at least
            max_map_len=MAP_FIELDS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedError(f"the frame holds no acceptable msgpack map ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise MalformedError(f"the frame holds a msgpack {type(found).__name__}, not a map")
    return found


def _field(found: dict[str, Any], name: str, kind: type[Value]) -> Value:
    value = found.get(name)
    if type(value) is not kind:
        raise MalformedError(f"field {name!r} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _number(found: dict[str, Any], name: str, most: int, least: int = 0) -> int:
    value = _field(found, name, int)
    if not least <= value <= most:
        raise MalformedError(f"field {name!r} is not in {least}..{most}")
    return value


def _numbers(found: dict[str, Any], name: str) -> list[int]:
    numbers = _field(found, name, list)
    if not all(type(number) is int and 0 <= number <= U64_MAX for number in numbers):
        raise MalformedError(f"an item of {name!r} is not in 0..{U64_MAX}")
    return numbers


def _name(what: str, name: object) -> str:
    if not isinstance(name, str):
        # The name is not shown: printing deeply nested lists would be a RecursionError.
        raise InvalidNameError(f"a {what}'s name is a {type(name).__name__}, not a str")
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidNameError(f"{what} {name[:NAME_SIZE_MAX]!r} {NAME_FORM}")
    return name


def _bytes(found: dict[str, Any], name: str, size: int) -> bytes:
    value = _field(found, name, bytes)
    if len(value) != size:
        raise MalformedError(f"field {name!r} has {len(value)} bytes, not {size}")
    return value


_REPORT = struct_of(ReportHeader)
_NO_REPORT = ReportHeader._make(_REPORT.unpack(bytes(_REPORT.size)))
assert offset_of(ReportHeader, "topic") == 0
