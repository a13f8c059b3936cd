"""The exceptions of core.pyx: each function makes one. Its text has the value, and any limit and remedy.

The core's rooms are C, and return a number. The room binding/ and core.pyx raise the exceptions.
"""

from __future__ import annotations

from timerd_shm.declare.errors import (
    ArenaFullError,
    ClosedError,
    InvalidKeyError,
    InvalidNameError,
    InvalidValueError,
    LayoutMismatchError,
    NotAMemberError,
    NotSupportedError,
    QuotaExceededError,
    SessionGoneError,
    TimerdError,
)
from timerd_shm.declare.layout import DAEMON_COUNTERS_MAX
from timerd_shm.declare.limits import (
    CALLS_HELD_MAX,
    HANDLED_NAMES_MAX,
    KEY_SIZE_MAX,
    NAME_SIZE_MAX,
    UID_UNKNOWN,
    USERS_MAX,
)


def attached_already() -> TimerdError:
    return ClosedError("this Core is attached already; make another Core")


def no_seed(length: int) -> TimerdError:
    return InvalidValueError(f"the seed has {length} bytes, and the core needs 16")


def released() -> TimerdError:
    return ClosedError("the arena was released")


def no_live_client(slot: int) -> TimerdError:
    return SessionGoneError(f"slot {slot} belongs to no live client")


def no_tombstone(slot: int) -> TimerdError:
    return SessionGoneError(f"slot {slot} is no tombstone")


def no_identity() -> TimerdError:
    return InvalidValueError("a client needs 16 bytes of incarnation and of session")


def not_sixteen_bytes(length: int) -> TimerdError:
    return InvalidValueError(f"{length} bytes, not 16")


def invalid_client() -> TimerdError:
    return InvalidValueError(f"a client has a name of {NAME_SIZE_MAX} bytes at most, and a known orphans policy")


def unknown_group(group: int) -> TimerdError:
    return InvalidValueError(f"there is no group {group}")


def needs_a_group() -> TimerdError:
    return NotAMemberError('orphans="group" and listening need a group')


def in_no_group(kind: str) -> TimerdError:
    """`kind`: "outcomes" or "calls"."""
    return NotAMemberError(f"the client is in no group whose {kind} it could take: connect with group=NAME")


def clients_are_full(count: int) -> TimerdError:
    return ArenaFullError(
        f"{count} of {count} clients are connected: close some, or start the daemon with a larger --clients"
    )


UNSEEN = "the processes that the daemon cannot see (they run in another pid namespace, or have ended)"


def too_many_clients(pid: int, share: int, count: int) -> TimerdError:
    who = f"process {pid}" if pid else UNSEEN
    return QuotaExceededError(
        f"{who} may have {share} of {count} client slots, and {'has' if pid else 'have'} them: "
        "use one client for many threads, close some, or start the daemon with a larger --quota-clients"
    )


def invalid_name(what: str, length: int) -> TimerdError:
    return InvalidNameError(f"a {what}'s name has {length} bytes, not 1 to {NAME_SIZE_MAX}")


def too_many_groups(pid: int, made: int, count: int) -> TimerdError:
    who, whose = f"process {pid} has", "one process may"
    if not pid:
        who, whose = UNSEEN + " have", "all of these may"
    return QuotaExceededError(
        f"{who} made {made} of {count} groups that have members or operations, as many as {whose}: "
        "use fewer names, or let the operations of old ones settle"
    )


def too_many_left_groups(uid: int, left: int, count: int) -> TimerdError:
    """`uid` UID_UNKNOWN: the user has no record."""
    who = f"user {uid}" if uid != UID_UNKNOWN else f"the users that share one record (all but {USERS_MAX - 1} users)"
    return QuotaExceededError(
        f"ended clients of {who} have left operations in {left} groups without a member, of {count} groups in all, and "
        "they may not do so in more: let members of these groups take them, or use fewer names"
    )


def groups_are_full(count: int) -> TimerdError:
    return ArenaFullError(
        f"{count} of {count} groups have members or operations: "
        "use an existing one, or let the operations of old ones settle"
    )


# A message ends with this text, because the log of errors keeps only the first 223 bytes of a message.
TO_FREE_A_PURGATORY = (
    "One is reclaimed when its clients have ended and it holds nothing: free its watermarks "
    "(`timerctl forget KEY --purgatory NAME`); its ids are forgotten after --settled-ids-kept, "
    "its events after --ring-events later ones"
)


def purgatories_are_full(count: int, pid: int, made: int) -> TimerdError:
    """`pid`: the process that has made the most of the purgatories; 0 = not known."""
    who = f"process {pid}" if pid else "processes not seen"
    return ArenaFullError(
        f"{count} of {count} purgatories are in use, {made} of them made by {who}: "
        f"use an existing one, with longer keys. {TO_FREE_A_PURGATORY}"
    )


def too_many_purgatories(pid: int, made: int, count: int) -> TimerdError:
    who = f"process {pid} has" if pid else UNSEEN + " have"
    return QuotaExceededError(
        f"{who} made {made} of {count} purgatories, the share of {'one process' if pid else 'all of these'}: "
        f"use an existing one, with longer keys. {TO_FREE_A_PURGATORY}"
    )


def too_many_calls(names: int, most: int) -> TimerdError:
    return InvalidValueError(
        f"{names} names ({HANDLED_NAMES_MAX} at most), {most} calls at a time ({CALLS_HELD_MAX} at most): name fewer"
    )


def unknown_purgatory(purgatory: int) -> TimerdError:
    return InvalidValueError(f"there is no purgatory {purgatory}")


def invalid_call_name(length: int) -> TimerdError:
    return InvalidKeyError(f"a name has {length} bytes, not 1 to {KEY_SIZE_MAX}")


def no_room_for_names(blocks: int, names: int) -> TimerdError:
    return ArenaFullError(f"no room in {blocks} blocks for {names} names: retry later, or enlarge --blocks")


def unknown_counter(counter: int) -> TimerdError:
    return InvalidValueError(f"counter {counter} is not below {DAEMON_COUNTERS_MAX}")


def invalid_level(level: int) -> TimerdError:
    return InvalidValueError(f"a core has one journal, of level 1 or 2, not {level}")


def no_buffer(length: int) -> TimerdError:
    return LayoutMismatchError(f"{length} bytes are no journal's buffer of this arena")


def buffer_ends_elsewhere(written: int, rows: int, capacity: int) -> TimerdError:
    return LayoutMismatchError(f"{written} rows are in files, and the buffer ends at row {rows}; it holds {capacity}")


def rows_not_in_buffer(written: int, tail: int, head: int, level: int) -> TimerdError:
    return InvalidValueError(f"rows up to {written} are written; the buffer of level {level} has rows {tail} to {head}")


def copied_already() -> TimerdError:
    return InvalidValueError("a copy of an arena is being made in this process: end it first")


def no_log(length: int, lines: int) -> TimerdError:
    return InvalidValueError(f"{length} bytes are no log for an arena of {lines} lines: give a Copier of that arena")


def not_built(what: str) -> TimerdError:
    return NotSupportedError(f"this build has no {what}: build with -DTIMERD_FAULTS=ON")
