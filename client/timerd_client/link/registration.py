"""The arguments of a registration, checked and encoded: for `register`, and for single rows of `register_many`."""

from __future__ import annotations

from typing import NamedTuple

from timerd_client.arguments import (
    EVENT_PREFIX,
    id_hash,
    if_exists_of,
    key_bytes,
    mark_of,
    orphans_of,
    payload_bytes,
    watch,
)
from timerd_client.arguments import timeout_ns as nanoseconds
from timerd_client.conditions import ANY
from timerd_client.declared import RegistrationArguments
from timerd_client.hot.commands import IF_EXISTS, REGISTER_SIZE, pack_register
from timerd_client.scope import goes_on_from
from timerd_client.types import Key, Keys
from timerd_shm.declare.wire import CommandKind, RegisterFlag

_REGISTER = int(CommandKind.REGISTER)
_ANY_KIND = int(ANY.kind)
_HAS_ID = int(RegisterFlag.HAS_ID)
_ORPHANS_GIVEN = int(RegisterFlag.ORPHANS_GIVEN)


class Registration(NamedTuple):
    """A REGISTER command without its purgatory, its mark and its time."""

    names: Key | tuple[Key, ...]  # as the caller gave them
    tail: bytes  # hash of the id, keys, payload
    condition: int
    needed: int
    key_count: int
    total: int
    timeout_ns: int
    payload: bytes
    flags: int
    orphans: int
    id_hash: bytes  # empty = no id

    def command(self, purgatory: int, flags: int, registered_ns: int, sequence: int, command: int) -> bytes:
        """The complete command; `flags` are added to the registration's flags."""
        packed: bytes = pack_register(
            _REGISTER,
            purgatory,
            self.flags | flags,
            REGISTER_SIZE + len(self.tail),
            self.condition,
            self.needed,
            self.key_count,
            self.orphans,
            len(self.payload),
            registered_ns,
            self.timeout_ns,
            sequence,
            command,
            self.total,
        )
        return packed + self.tail


def registration(keys: Keys, given: RegistrationArguments, group: str | None) -> Registration:
    """Check and encode all arguments. `group` is the client's group. A wrong argument raises an error of its kind."""
    when, id, if_exists = given["when"], given["id"], given["if_exists"]
    orphans, since = given["orphans"], given["since"]
    names: Key | tuple[Key, ...]
    single = keys if isinstance(keys, (str, bytes)) else None
    if when is ANY and single is not None:
        key = key_bytes(single)
        condition, needed, count, total = _ANY_KIND, 1, 1, 0
        tail, names = EVENT_PREFIX[len(key)] + key, single
    else:
        names, tail, condition, needed, total = watch(keys, when)
        count = len(names)
        if single is not None:
            names = single
    duration_ns, body = nanoseconds(given["timeout"]), payload_bytes(given["payload"])
    flags = policy = 0
    hashed = b""
    if id is not None or if_exists != "error":
        if_exists_of(if_exists, id)
        hashed = id_hash(id)
        flags = _HAS_ID | IF_EXISTS[if_exists]
    if orphans is not None:
        flags |= _ORPHANS_GIVEN
        policy = orphans_of(orphans, group)
    if since is not None:
        goes_on_from(mark_of(since))
    tail = hashed + tail + body
    return Registration(names, tail, condition, needed, count, total, duration_ns, body, flags, policy, hashed)
