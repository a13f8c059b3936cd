"""The error of a refused command, with its message: the client makes it for the caller, the daemon for its log."""

from __future__ import annotations

from typing import NamedTuple

from timerd_shm.declare.errors import ErrorCode, OperationExistsError, TimerdError, error_for
from timerd_shm.declare.limits import MET_SHIFT
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import Met


class Subject(NamedTuple):
    """What a refused command was about, as far as its client knows."""

    id: str | bytes | None = None
    purgatory: str = ""
    payload_size: int = 0
    client: str = "this client"


NO_SUBJECT = Subject()
# What may be full in an arena, and the flag of timerd that makes it larger.
FULL = {
    Met.OPERATIONS: ("{0} of {0} operations are pending or unacknowledged", "--capacity"),
    Met.NODES: ("{0} of {0} watch nodes are in use, one for each key of each operation", "--nodes or --capacity"),
    Met.KEYS: ("{0} of {0} keys are watched or have a watermark", "--keys or --capacity"),
    Met.BLOCKS: (
        f"no room in {{0}} blocks of {BLOCK_DATA} bytes for its payload, value or long key",
        "--blocks or --capacity",
    ),
    Met.IDS: ("{0} of {0} ids belong to operations that are pending", "--ids or --capacity"),
}
QUOTAS = {
    Met.OPERATIONS: (
        "holds {0} operations, pending or unacknowledged, as many as one client may: let some settle, or start the "
        "daemon with a larger --quota-operations"
    ),
    Met.OUTCOMES: (
        "has {0} unacknowledged outcomes, as many as one client may: it acknowledges them too slowly; register fewer "
        "at once, or start the daemon with a larger --quota-outcomes"
    ),
    Met.NODES: (
        "would hold more than {0} watch nodes, one for each key of each operation, as many as one client may: let some "
        "settle, or start the daemon with a larger --quota-nodes"
    ),
    Met.KEYS: (
        "would have more than {0} keys watched or set as watermarks, as many as one client may while most keys are in "
        "use: let operations settle, forget() some, or start the daemon with a larger --quota-keys"
    ),
    Met.WATERMARKS: (
        "has set {0} watermarks, as many as one client may: forget() some, or start the daemon with a larger "
        "--quota-watermarks"
    ),
}


def refusal(code: int, value: int, about: Subject = NO_SUBJECT) -> TimerdError:
    """The error of a command that the daemon refused. `value` is the one of wire.WireAnswer, or 0."""
    met, limit = value >> MET_SHIFT, value & ((1 << MET_SHIFT) - 1)
    message = ""
    match code:
        case ErrorCode.ARENA_FULL if met in FULL:
            what, flag = FULL[Met(met)]
            message = f"the arena is full: {what.format(limit)}; retry later, or start the daemon with a larger {flag}"
        case ErrorCode.QUOTA_EXCEEDED if met == Met.BYTES:
            message = _beyond_bytes(limit, about.payload_size)
        case ErrorCode.QUOTA_EXCEEDED if met in QUOTAS:
            message = f"{about.client} {QUOTAS[Met(met)].format(limit)}"
        case ErrorCode.OPERATION_EXISTS if about.id is not None:
            settled = {int(outcome): outcome.name.lower() for outcome in Outcome}.get(value, f"outcome {value}")
            message = (
                f"id {about.id!r} exists in purgatory {about.purgatory!r} "
                f'({f"it has settled: {settled}" if value else "it is pending"}); if_exists="replace" takes it over'
            )
        case ErrorCode.UNKNOWN_OPERATION if about.id is not None:
            message = (
                f"no operation of id {about.id!r} is pending in purgatory {about.purgatory!r}: it has settled, "
                "or was never registered there"
            )
    error = error_for(code, message or _sentence(code) + _met(code, limit))
    if isinstance(error, OperationExistsError):
        error.settled = value
    return error


def _beyond_bytes(limit: int, size: int) -> str:
    """The message of a client that holds as many bytes as it may."""
    if size > limit:
        return (
            f"a payload of {size} bytes is too large: one client may hold {limit} bytes in all; pass a reference, or "
            "start the daemon with a larger --quota-bytes"
        )
    what = f"a payload of {size} bytes is too much now" if size else "its payload is too much now"
    return (
        f"{what}: the payloads and values of one client may have {limit} bytes in all; let operations settle, or "
        "start the daemon with a larger --quota-bytes"
    )


def _sentence(code: int) -> str:
    """The error's documentation, on one line."""
    named = type(error_for(code, ""))
    return f"error code {code}" if named is TimerdError else " ".join((named.__doc__ or "").split())


def _met(code: int, limit: int) -> str:
    """What the value of a refusal adds to its message."""
    match code:
        case ErrorCode.NOT_SUPPORTED:
            return f" (command {limit})"
        case ErrorCode.MARK_TOO_OLD | ErrorCode.TOO_OLD_TO_TELL | ErrorCode.OPERATION_EXISTS:
            return ""  # a sequence, a time or a state is no limit
    return f" (the limit is {limit})" if limit else ""
