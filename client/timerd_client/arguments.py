"""Checks of the arguments that callers pass. A wrong argument raises an error with the value and its limit."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Set, Sized
from datetime import timedelta
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar, get_args

from timerd_shm.declare.errors import (
    InvalidConditionError,
    InvalidKeyError,
    InvalidNameError,
    InvalidValueError,
    KeyTooLongError,
    NotAMemberError,
    PayloadTooLargeError,
    TimeoutOutOfRangeError,
    TimerdError,
    TooManyKeysError,
)
from timerd_shm.declare.limits import (
    ID_SIZE_MAX,
    KEY_SIZE_MAX,
    KEYS_MAX,
    NAME_FORM,
    NAME_PATTERN,
    NAME_SIZE_MAX,
    NO_DEADLINE,
    PAYLOAD_SIZE_MAX,
    TAKEOVER_MS,
    TAKEOVER_MS_MAX,
    TAKEOVER_MS_MIN,
    TIMEOUT_NS_MAX,
)
from timerd_shm.declare.states import CONDITION_NAMES, RULES, KeyKind, Orphans
from timerd_wire.transports import TRANSPORT_VARIABLE, TRANSPORTS, Transport

from .conditions import When
from .mark import Mark
from .types import IfExists, Key, Keys, Patience, Timeout

Value = TypeVar("Value")
Result = TypeVar("Result")

IF_EXISTS_CHOICES: tuple[str, ...] = get_args(IfExists)
SHOWN_MAX = 40  # characters of a key that a message quotes
U64_MAX = (1 << 64) - 1
U32_MAX = (1 << 32) - 1
TIMEOUT_S_MAX = TIMEOUT_NS_MAX // 1_000_000_000
_TARGET = struct.Struct("<Q")

# the two bytes before a key in a REGISTER: its length and its KeyKind
EVENT_PREFIX = tuple(bytes((size, KeyKind.EVENT)) for size in range(KEY_SIZE_MAX + 1))
OBSERVED_PREFIX = tuple(bytes((size, KeyKind.OBSERVE)) for size in range(KEY_SIZE_MAX + 1))
WATERMARK_PREFIX = tuple(bytes((size, KeyKind.WATERMARK)) for size in range(KEY_SIZE_MAX + 1))


class Watch(NamedTuple):
    """The keys and condition of a registration, checked and encoded."""

    names: tuple[Key, ...]  # as the caller gave them
    encoded: bytes
    condition: int
    needed: int
    total: int


def shown(value: object) -> str:
    """A value as messages quote it. A long one is cut, and marked as cut."""
    if isinstance(value, (str, bytes)) and len(value) > SHOWN_MAX:
        return f"{value[:SHOWN_MAX]!r}..."
    text = repr(value)
    return text if len(text) <= 2 * SHOWN_MAX else f"{text[: 2 * SHOWN_MAX]}..."


def each(what: str, values: Iterable[Value], read: Callable[[Value], Result]) -> list[Result]:
    """Returns `read(value)` for each value. The error of a wrong value names the value's position."""
    results: list[Result] = []
    try:
        for value in values:
            results.append(read(value))
    except TimerdError as error:
        raise type(error)(f"{what}[{len(results)}]: {error}") from None
    return results


def key_bytes(key: object) -> bytes:
    """A key as it is sent. Raises InvalidKeyError, KeyTooLongError."""
    if isinstance(key, str):
        try:
            encoded = key.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(f"key {shown(key)} cannot be encoded as UTF-8: {error.reason}") from None
    elif isinstance(key, bytes):
        encoded = bytes(key)
    else:
        raise InvalidKeyError(f"a key is str or bytes, not {type(key).__name__}: {shown(key)}")
    if not encoded:
        raise InvalidKeyError(f"a key is empty; give 1 to {KEY_SIZE_MAX} bytes")
    if len(encoded) > KEY_SIZE_MAX:
        raise KeyTooLongError(
            f"key {shown(key)} has {len(encoded)} bytes of at most {KEY_SIZE_MAX}; hash or shorten it"
        )
    return encoded


def kept(keys: Keys) -> Keys:
    """A copy of the keys, for several registrations: an iterator yields only once, and a list may change meanwhile."""
    if isinstance(keys, (str, bytes, Mapping)) or not isinstance(keys, Iterable):
        return keys
    return list(keys if isinstance(keys, Sized) else islice(keys, KEYS_MAX + 1))


def watch(keys: Keys, when: When) -> Watch:
    """Keys and condition of a registration; raises InvalidKeyError, TooManyKeysError, InvalidConditionError, ..."""
    if not isinstance(when, When) or not when.is_sound:
        *others, last = CONDITION_NAMES
        raise InvalidConditionError(f"when={when!r}: give {', '.join(others)} or {last}")
    rule = RULES[when.kind]
    targets: Iterable[tuple[Key, int | None]]
    if isinstance(keys, (str, bytes)):
        targets = ((keys, None),)
    elif not isinstance(keys, (list, tuple)) and isinstance(keys, Mapping):
        targets = keys.items()
    elif isinstance(keys, (list, tuple, Iterable)):  # list and tuple first: their check is quick
        targets = ((key, None) for key in keys)
    else:
        raise InvalidKeyError(
            f"keys={shown(keys)} is {type(keys).__name__}: give str, bytes, an iterable of them, or a dict"
        )
    names: list[Key] = []
    seen: set[bytes] = set()
    parts: list[bytes] = []
    prefix = OBSERVED_PREFIX if rule.observes else EVENT_PREFIX
    for name, target in targets:
        key = key_bytes(name)
        if key in seen:
            raise InvalidKeyError(f"key {shown(name)} is given twice")
        if len(names) == KEYS_MAX:
            count = f"{len(keys)} keys" if isinstance(keys, Sized) else "more keys"
            raise TooManyKeysError(
                f"{count}, and an operation watches {KEYS_MAX} at most; split it, or let one key stand for many"
            )
        seen.add(key)
        names.append(name)
        if target is None:
            parts += (prefix[len(key)], key)
        elif rule.no_watermarks:
            raise InvalidConditionError(f"key {shown(name)} has the watermark {target!r}, but {rule.no_watermarks}")
        else:
            parts += (WATERMARK_PREFIX[len(key)], _TARGET.pack(unsigned("watermark", target, U64_MAX)), key)
    if not names:
        raise InvalidKeyError(f"no keys; give 1 to {KEYS_MAX}")
    if when.needed > len(names):
        raise InvalidConditionError(
            f"at_least({when.needed}) of {len(names)} keys can never hold; give {when.needed} keys or more, "
            f"or at_least({len(names)}), which is ALL"
        )
    needed = when.needed or (len(names) if rule.takes_needed else 0)
    return Watch(tuple(names), b"".join(parts), when.kind, needed, when.total)


def timeout_ns(timeout: Timeout, what: str = "timeout", none: str = "; None means no deadline") -> int:
    """A timeout in ns, NO_DEADLINE for None. Raises TimeoutOutOfRangeError, whose message calls the timeout `what`."""
    if timeout is None:
        return NO_DEADLINE
    if isinstance(timeout, timedelta):
        ns = (timeout.days * 86_400 + timeout.seconds) * 1_000_000_000 + timeout.microseconds * 1_000
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        if not 0 <= timeout <= TIMEOUT_S_MAX:  # also refuses NaN
            raise TimeoutOutOfRangeError(f"{what}={timeout!r} s is not within 0 to {TIMEOUT_S_MAX} s (10 years){none}")
        ns = timeout * 1_000_000_000 if isinstance(timeout, int) else round(timeout * 1e9)
    else:
        raise TimeoutOutOfRangeError(
            f"{what}={shown(timeout)} is {type(timeout).__name__}; give seconds as int or float, or a timedelta{none}"
        )
    if not 0 <= ns <= TIMEOUT_NS_MAX:
        raise TimeoutOutOfRangeError(f"{what}={timeout!r} is not within 0 to {TIMEOUT_S_MAX} s (10 years){none}")
    return ns


def payload_bytes(payload: object, what: str = "payload") -> bytes:
    """A payload or value as bytes; raises InvalidValueError, PayloadTooLargeError."""
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise InvalidValueError(f"a {what} is bytes, not {type(payload).__name__}; encode it first")
    encoded = bytes(payload)
    if len(encoded) > PAYLOAD_SIZE_MAX:
        raise PayloadTooLargeError(
            f"a {what} of {len(encoded)} bytes; at most {PAYLOAD_SIZE_MAX}, pass a reference instead"
        )
    return encoded


def unsigned(what: str, value: object, largest: int, smallest: int = 0) -> int:
    """An unsigned integer within its limits; raises InvalidValueError."""
    if type(value) is not int or not smallest <= value <= largest:
        raise InvalidValueError(f"{what}={value!r}: an int from {smallest} to {largest}")
    return value


def id_hash(identifier: object) -> bytes:
    """The hash of an id, 16 bytes: the daemon knows only the hash. Raises InvalidKeyError, KeyTooLongError."""
    if isinstance(identifier, str):
        try:
            encoded = identifier.encode()
        except UnicodeEncodeError as error:
            raise InvalidKeyError(f"id {shown(identifier)} cannot be encoded as UTF-8: {error.reason}") from None
    elif isinstance(identifier, bytes):
        encoded = identifier
    else:
        raise InvalidKeyError(f"id={shown(identifier)} is {type(identifier).__name__}: give str or bytes")
    if not encoded:
        raise InvalidKeyError(f"an id is empty; give 1 to {ID_SIZE_MAX} bytes")
    if len(encoded) > ID_SIZE_MAX:
        raise KeyTooLongError(
            f"id {shown(identifier)} has {len(encoded)} bytes of at most {ID_SIZE_MAX}; hash or shorten it"
        )
    return blake2b(encoded, digest_size=16).digest()


def mark_of(since: object) -> Mark:
    """A mark. Raises InvalidValueError for another object."""
    if not isinstance(since, Mark):
        raise InvalidValueError(
            f"since={shown(since)} is {type(since).__name__}: give a Mark, from client.mark(), outcome.mark or "
            "Mark.parse(text)"
        )
    unsigned("since.sequence", since.sequence, U64_MAX)
    unsigned("since.command", since.command, U64_MAX)
    return since


def column(what: str, given: object, rows: int | None = None) -> list[Any]:
    """A copy of a column: one value for each of many operations. With `rows` there must be that many values.

    Raises InvalidValueError (for keys InvalidKeyError) for a single value and for a collection without an order, and
    InvalidValueError for a wrong number of values.
    """
    if not isinstance(given, (list, tuple)) and (
        isinstance(given, (str, bytes, Mapping, Set)) or not isinstance(given, Iterable)
    ):
        wrong = InvalidKeyError if what == "key" else InvalidValueError
        raise wrong(f"a column of {what}s is a list of them, not {type(given).__name__}: {shown(given)}")
    values = list(given)
    if rows is not None and len(values) != rows:
        remedy = "give one for each" if what == "id" else "give one for each, or one for all"
        raise InvalidValueError(f"{len(values)} {what}s for {rows} keys: {remedy}")
    return values


def seconds_of(given: object) -> float | None:
    """The seconds of a time that is given as int, float or timedelta. None for another type, and for NaN."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, bool) or not isinstance(given, (int, float)) or given != given:
        return None
    return given


def patience_s(timeout: Patience) -> float | None:
    """How many seconds a caller waits; None = without end. The one rule for all waits.

    None, inf and anything above 10 years wait without end. A negative time counts as 0. Raises TimeoutOutOfRangeError
    for NaN, and for anything else that is no time.
    """
    if timeout is None:
        return None
    seconds = seconds_of(timeout)
    if seconds is None:
        raise TimeoutOutOfRangeError(
            f"timeout={shown(timeout)}: give the time to wait, as seconds or a timedelta, or None to wait without end"
        )
    return None if seconds > TIMEOUT_S_MAX else max(seconds, 0.0)


def callback_of(given: Callable[..., object], name: str = "callback") -> None:
    """Check a callback. Raises InvalidValueError for a coroutine function: nobody would await the coroutine."""
    if not callable(given):
        raise InvalidValueError(f"{name}={shown(given)} is {type(given).__name__}: give a function of one argument")
    if is_coroutine_function(given):
        raise InvalidValueError(
            f"{name}={shown(given)} is a coroutine function, and nobody would await it: give a plain function, "
            "which may create a task"
        )


def is_coroutine_function(given: object) -> bool:
    """Whether a call of this object makes a coroutine. Also for a partial, or an object with a `__call__` method."""
    import functools
    import inspect

    while isinstance(given, functools.partial):
        given = given.func
    return inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None))  # noqa: B004


def until_of(until: object) -> str:
    """Check `until`, which says when `wait` returns. Raises InvalidValueError."""
    if until not in ("first", "all"):
        raise InvalidValueError(f"until={shown(until)}: give 'first' or 'all'")
    return str(until)


def if_exists_of(if_exists: object, id: object) -> str:
    """Check `if_exists`: what a registration does if its id is in use. Raises InvalidValueError."""
    if not isinstance(if_exists, str) or if_exists not in IF_EXISTS_CHOICES:
        raise InvalidValueError(f"if_exists={shown(if_exists)}: give {', '.join(map(repr, IF_EXISTS_CHOICES))}")
    if id is None and if_exists != "error":
        raise InvalidValueError(f"if_exists={if_exists!r} needs an id")
    return if_exists


def function_of(what: str, given: Callable[..., Value], which: str) -> Callable[..., Value]:
    """Check a function. Raises InvalidValueError, whose message ends with `which`, the kind of function to give."""
    if not callable(given):
        raise InvalidValueError(f"{what}={shown(given)} is {type(given).__name__}: give a function {which}")
    return given


def within(timeout: Patience) -> str:
    """For messages: how long a caller has waited, rounded to ms (the rest of a deadline has more digits)."""
    seconds = patience_s(timeout)
    return "so far" if seconds is None else f"within {round(seconds, 3) or seconds:g} s"


def takeover_ms_of(takeover: object) -> int:
    """The takeover of a client in ms; None = the default. Raises TimeoutOutOfRangeError."""
    if takeover is None:
        return TAKEOVER_MS
    low, high = TAKEOVER_MS_MIN // 1_000, TAKEOVER_MS_MAX // 1_000
    seconds = seconds_of(takeover)
    if seconds is None or not low <= seconds <= high:
        raise TimeoutOutOfRangeError(
            f"takeover={shown(takeover)}: give {low} to {high} s, as seconds or a timedelta, or leave it out for "
            f"{TAKEOVER_MS // 1_000} s"
        )
    return math.ceil(seconds * 1_000)


def transport_of(transport: object) -> Transport:
    """The transport of a client; None = $TIMERD_TRANSPORT, else ZeroMQ. Raises InvalidValueError."""
    given = os.environ.get(TRANSPORT_VARIABLE) or TRANSPORTS[0] if transport is None else transport
    for known in TRANSPORTS:
        if given == known:
            return known
    where = f" (${TRANSPORT_VARIABLE})" if transport is None else ""
    raise InvalidValueError(f"transport={shown(given)}{where}: {' or '.join(map(repr, TRANSPORTS))}")


def label_of(name: object) -> str:
    """The label of a client in `timerctl clients`. Raises InvalidNameError."""
    if not isinstance(name, str) or not name.isprintable():
        raise InvalidNameError(f"client name {shown(name)} is not printable text")
    size = len(name.encode())  # printable text has no lone surrogate
    if size > NAME_SIZE_MAX:
        raise InvalidNameError(f"client name {shown(name)} has {size} bytes of at most {NAME_SIZE_MAX}; shorten it")
    return name


def name_of(what: str, name: object) -> str:
    """The name of a purgatory or group; raises InvalidNameError."""
    if not isinstance(name, str) or NAME_PATTERN.fullmatch(name) is None:
        raise InvalidNameError(f"{what} {shown(name)} {NAME_FORM}")
    return name


def group_of(group: object) -> str | None:
    """The name of a group, or None; raises InvalidNameError."""
    return None if group is None else name_of("group", group)


def orphans_of(policy: object, group: str | None) -> Orphans:
    """The orphans policy with this name, for a client of this group; raises NotAMemberError, InvalidValueError."""
    if policy == "cancel":
        return Orphans.CANCEL
    if policy == "keep":
        return Orphans.KEEP
    if policy == "group":
        if group is None:
            raise NotAMemberError('orphans="group" needs a group that adopts them: Client(group=NAME)')
        return Orphans.GROUP
    raise InvalidValueError(f'orphans={shown(policy)}: "cancel", "keep" or "group"')
