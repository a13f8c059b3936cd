"""The error of a refused command, with its message: the client makes it for the caller, the daemon for its log."""

from __future__ import annotations

import os
from typing import NamedTuple

from timerd_shm.declare.errors import ErrorCode, OperationExistsError, TimerdError, error_for
from timerd_shm.declare.limits import LEFT_SHIFT, LEFT_UNIT, MET_SHIFT
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import Met


class Subject(NamedTuple):
    """The subject of a refused command, as far as its client knows. In the daemon's log: the holder of the quota."""

    id: str | bytes | None = None
    purgatory: str = ""
    payload_size: int = 0  # of its payload or value; 0 = it has none, or that is not known
    holder: str = "this client"
    kind: str = "client"  # of the holder; a group has as large a share as a client
    bytes_held: int | None = None  # by the holder; None = not known
    keeps: bool = False  # a registration with if_exists="keep"
    is_call: bool = False  # a named call


NO_SUBJECT = Subject()
OF_GROUP = Subject(holder="this client's group", kind="group")
# For each resource of an arena: the message when it is full, the remedy, and the flag of timerd that makes it larger.
FULL = {
    Met.OPERATIONS: ("{0} of {0} operations are pending or unacknowledged", "retry later", "--capacity"),
    Met.NODES: (
        "{0} of {0} watch nodes are in use, one for each key of an operation after its first",
        "retry later",
        "--nodes or --capacity",
    ),
    Met.WATERMARKS: (
        "{0} of {0} watermarks are set, and a watermark stays when its client has ended",
        "free some with `timerctl forget KEY`",
        "--watermarks or --capacity",
    ),
    Met.BLOCKS: (
        f"no room in {{0}} blocks of {BLOCK_DATA} bytes for its payload, value or long key",
        "retry later",
        "--blocks or --capacity",
    ),
    Met.CHECKS: ("{0} of {0} checks wait for owners to look", "retry later", ""),
    Met.IDS: ("{0} of {0} ids belong to operations that are pending", "retry later", "--ids or --capacity"),
}
# Messages about the holder {0} (a client, or a group: {1}) and the limit {2}. The error log has room for 223 bytes.
QUOTAS = {
    Met.OPERATIONS: (
        "{0} holds {2} operations, pending or unacknowledged, as many as one {1} may: "
        "let some settle, or use a larger --quota-operations"
    ),
    Met.OUTCOMES: (
        "{0} has {2} unacknowledged outcomes, as many as one {1} may: "
        "register fewer at once, or use a larger --quota-outcomes"
    ),
    Met.NODES: (
        "{0} would hold more than {2} watch nodes (keys after the first), as many as one {1} may: "
        "let some settle, or use a larger --quota-nodes"
    ),
    Met.WATERMARKS: (
        "{0} has set {2} watermarks, as many as one {1} may: forget() some, or use a larger --quota-watermarks"
    ),
    Met.IDS: (
        "{0} has {2} pending operations with ids, as many as one {1} may: "
        "let some settle, register without ids, or use a larger --quota-ids"
    ),
    Met.CHECKS: "{0} has {2} checks that wait for owners to look, as many as one {1} may: wait for some of them",
    Met.VALUES: (
        "{0} gets outcomes without their values: one {1} may hold {2} bytes of payloads and values: "
        "take outcomes faster, or use a larger --quota-bytes"
    ),
} | {
    met: (
        f"outcomes of {{0}} were dropped to make room: ended clients of its user hold over {{2}} {what}, "
        f"their share: take them, or raise --quota-{knob}"
    )
    for met, what, knob in (
        (Met.EVICTED_OPERATIONS, "operations", "operations"),
        (Met.EVICTED_NODES, "watch nodes", "nodes"),
        (Met.EVICTED_BYTES, "bytes", "bytes"),
    )
}
# Refusals because ended clients of a user keep too much of something: its name, its unit, and the knob for its size.
LEFT = {
    Met.LEFT_OPERATIONS: ("operations", 1, "capacity"),
    Met.LEFT_NODES: ("watch nodes", 1, "nodes"),
    Met.LEFT_BYTES: ("bytes", LEFT_UNIT, "blocks"),
    Met.LEFT_IDS: ("ids", 1, "ids"),
}


def refusal(code: int, value: int, about: Subject = NO_SUBJECT) -> TimerdError:
    """The error of a command that the daemon refused. `value`: as in wire.WireAnswer, or 0."""
    met, limit = value >> MET_SHIFT, value & ((1 << MET_SHIFT) - 1)
    message = ""
    match code:
        case ErrorCode.ARENA_FULL if met in FULL:
            what, remedy, flag = FULL[Met(met)]
            larger = f", or start the daemon with a larger {flag}" if flag else ""
            message = f"the arena is full: {what.format(limit)}; {remedy}{larger}"
        case ErrorCode.PAYLOAD_TOO_LARGE if met == Met.BLOCKS:
            message = (
                f"payload, value and long keys need more than the {limit * BLOCK_DATA} bytes that this arena has for "
                "those of all clients; pass a reference, or start the daemon with a larger --blocks or --capacity"
            )
        case ErrorCode.QUOTA_EXCEEDED if met in LEFT:
            message = _beyond_what_is_left(Met(met), limit, about)
        case ErrorCode.QUOTA_EXCEEDED if met == Met.BYTES:
            message = _beyond_bytes(limit, about)
        case ErrorCode.QUOTA_EXCEEDED if met in QUOTAS:
            message = QUOTAS[Met(met)].format(about.holder, about.kind, limit)
        case ErrorCode.OPERATION_EXISTS if about.id is not None and about.is_call:
            message = (
                f"a call of id {_shown(about.id)} exists: it {'is due, or runs' if value else 'is pending'}; "
                'if_exists="again" makes a call that follows it, "replace" makes a call in its place'
            )
        case ErrorCode.OPERATION_EXISTS if about.id is not None:
            settled = {int(outcome): outcome.name.lower() for outcome in Outcome}.get(value, f"outcome {value}")
            message = (
                f"id {_shown(about.id)} exists in purgatory {about.purgatory!r} "
                f"({f'it has settled: {settled}' if value else 'it is pending'}); "
                + ("it was kept for its owner" if about.keeps else 'if_exists="replace" takes it over')
            )
        case ErrorCode.UNKNOWN_OPERATION if about.id is not None:
            message = (
                f"no operation of id {_shown(about.id)} is pending in purgatory {about.purgatory!r}: it has settled, "
                "or was never registered there"
            )
    error = error_for(code, message or _sentence(code) + _met(code, limit))
    if isinstance(error, OperationExistsError):
        error.settled, error.kept = value, about.keeps
    return error


def _shown(id: str | bytes) -> str:
    """An id for people: the same for "s1" and b"s1", which are one id."""
    return repr(id if isinstance(id, str) else id.decode(errors="backslashreplace"))


def _beyond_bytes(limit: int, about: Subject) -> str:
    """The message for a client or group that holds as many bytes as it may."""
    size, flag = about.payload_size, "use a larger --quota-bytes"
    if size > limit:
        return (
            f"a payload of {size} bytes is too large: one {about.kind} may hold {limit} bytes in all; "
            f"pass a reference, or {flag}"
        )
    needs = f"a payload of {size} needs more than is left" if size else "this needs more than is left"
    held = "nearly all" if about.bytes_held is None else f"{about.bytes_held}"  # a client does not know what it held
    holds = f"{about.holder} holds {held} of {limit} bytes of payloads, values and long keys"
    return f"{holds}, and {needs}: let some settle, or {flag}"


def _beyond_what_is_left(met: Met, limit: int, about: Subject) -> str:
    """The message for an operation that would outlive its client, when its user keeps all that it may of the arena."""
    what, unit, knob = LEFT[met]
    held, most = (limit >> LEFT_SHIFT) * unit, (limit & ((1 << LEFT_SHIFT) - 1)) * unit
    if about.holder not in (NO_SUBJECT.holder, OF_GROUP.holder):  # the log counts equal messages; `held` changes
        return (
            f"{about.holder} and ended clients of its user keep {most} {what}, all that they may: `timerctl cancel` "
            "some, or give the groups a worker"
        )
    return (
        f"ended clients of user {os.geteuid()}, and this client, keep {held} {what}, and may keep {most}: the rest is "
        "for others. So nothing more that may outlive its client is accepted from this user: `timerctl cancel` what "
        "they have left (`timerctl clients` lists it), give its groups a worker, start an instance of your own, or "
        f'use a larger --{knob}. Operations with orphans="cancel" are accepted'
    )


def _sentence(code: int) -> str:
    """The error's documentation, on one line."""
    named = type(error_for(code, ""))
    return f"error code {code}" if named is TimerdError else " ".join((named.__doc__ or "").split())


def _met(code: int, limit: int) -> str:
    """The end of a refusal's message: the limit from the refusal's value."""
    match code:
        case ErrorCode.NOT_SUPPORTED:
            return f" (command {limit})"
        case ErrorCode.MARK_TOO_OLD | ErrorCode.TOO_OLD_TO_TELL | ErrorCode.OPERATION_EXISTS:
            return ""  # a sequence, a time or a state is no limit
    return f" (the limit is {limit})" if limit else ""
