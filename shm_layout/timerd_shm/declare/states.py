"""The states, kinds and flags that records of the arena hold, each declared once: what the number in a field means.

Most of them also stand in frames and in journal rows.
"""

from collections.abc import Callable
from enum import Enum, IntEnum, IntFlag
from functools import cache
from typing import NamedTuple


class OpState(IntEnum):
    """Life of an op record: FREE -> PENDING -> SETTLED -> FREE, or FREE -> SETTLED where registering settles it."""

    FREE = 0
    PENDING = 1
    SETTLED = 2


class Outcome(IntEnum):
    """How an operation settled; also on the wire. Only clients make UNAVAILABLE and KEPT: the arena never has them."""

    NONE = 0
    COMPLETED = 1
    EXPIRED = 2
    CANCELLED = 3
    FAILED = 4
    UNAVAILABLE = 5
    KEPT = 6


class Condition(IntEnum):
    """The condition that completes an operation over its keys. Only AT_LEAST uses `needed`."""

    AT_LEAST = 0  # at least `needed` keys are satisfied: ANY is 1, ALL is the number of keys
    ALL_SETTLED = 1  # each key is satisfied or failed
    TOTAL = 2  # the amounts fired on its keys add up to the total
    OBSERVE = 3  # the first event on any of the keys, whatever it is. All keys are of KeyKind.OBSERVE
    OWNER = 4  # its owner completes it (COMPLETE): an event makes the owner look. All keys are of KeyKind.OBSERVE


class Progress(Enum):
    """The meaning of an operation's `progress` and `failed` under a condition."""

    KEYS = "satisfied keys and failed keys, one bit each"
    AMOUNT = "the missing part of the amount, and the failed keys, one bit each"
    EVENT = "the amount and the EventKind of the event that completed the operation"
    LOOKS = "the newest event at which its owner is to look, and the newest at which it has looked"


class Tally(NamedTuple):
    """The numbers by which a condition over keys is decided."""

    satisfied: int  # keys
    failed: int  # keys
    keys: int
    needed: int
    missing: int = 0  # of the amount


class Rule(NamedTuple):
    """A condition, declared once: the core, the client, `timerctl`, the check and LAYOUT.md take it from here.

    The rules in plain Python (timerd_client.rules) take `takes_needed` and the like from here. But they state
    `completes` and `fails` again in their own words, so a test notices a core that follows a wrong rule.

    `completes` and `fails` are expressions that Python and C read alike: numbers of a Tally, + - < <= == >= >, and `&`
    between comparisons in parentheses. An operation fails if `fails` holds and `completes` does not.
    """

    names: tuple[str, ...]  # the words of a caller (timerd_client.conditions); empty if only the client itself uses it
    progress: Progress
    completes: str = ""  # "": an event, or the owner, completes an operation
    fails: str = ""
    takes_needed: bool = False  # `needed` is from 1 to the number of keys; else it is 0
    no_watermarks: str = ""  # why no key may be a watermark

    @property
    def observes(self) -> bool:
        """Whether all keys are of KeyKind.OBSERVE; else none is."""
        return self.progress in (Progress.EVENT, Progress.LOOKS)

    def verdict(self, tally: Tally) -> Outcome:
        """How an operation with these keys settles: COMPLETED, FAILED, or NONE if it stays pending."""
        if self.completes and _function_of(self.completes)(*tally):
            return Outcome.COMPLETED
        return Outcome.FAILED if self.fails and _function_of(self.fails)(*tally) else Outcome.NONE


@cache
def _function_of(expression: str) -> Callable[..., bool]:
    function: Callable[..., bool] = eval(f"lambda {', '.join(Tally._fields)}: {expression}")
    return function


RULES: dict[int, Rule] = {
    Condition.AT_LEAST: Rule(
        ("ANY", "ALL", "at_least(k)"),
        Progress.KEYS,
        completes="satisfied >= needed",
        fails="keys - failed < needed",
        takes_needed=True,
    ),
    Condition.ALL_SETTLED: Rule(
        ("ALL_SETTLED",),
        Progress.KEYS,
        completes="satisfied + failed == keys",
    ),
    Condition.TOTAL: Rule(
        ("total(n)",),
        Progress.AMOUNT,
        completes="missing == 0",
        fails="failed == keys",
        no_watermarks="total() counts events",
    ),
    Condition.OBSERVE: Rule((), Progress.EVENT, no_watermarks="a subscription has all events"),
    Condition.OWNER: Rule((), Progress.LOOKS, no_watermarks="the owner of a delayed operation evaluates its condition"),
}
# The words of callers: ANY, ALL and the like first, then the functions.
CONDITION_NAMES = sorted((name for rule in RULES.values() for name in rule.names), key=lambda name: "(" in name)


class KeyKind(IntEnum):
    """The event that satisfies one key of an operation."""

    EVENT = 0  # a fire on it
    WATERMARK = 1  # its watermark reaching the target
    OBSERVE = 2  # a fire, an advance or a fail, from which it takes nothing; only under Condition.OBSERVE and OWNER


class EventKind(IntEnum):
    """Kinds of events. An event acts by key, and enters the ring."""

    FIRE = 1
    ADVANCE = 2
    FAIL = 3
    CANCEL_FOR_KEY = 4
    FORGET = 5
    CHECK = 6  # check_and_complete(): owners that watch the key look


class Orphans(IntEnum):
    """The fate of an operation when its owner dies."""

    CANCEL = 0
    KEEP = 1
    GROUP = 2


class OpFlag(IntFlag):
    """Flags of an op record."""

    GRANTED = 1  # completed by a limited event: if the owner dies, the grant goes to the next watcher
    KEYS_KEPT = 2  # its watch nodes outlive the settling, because its keys may be sent to another client
    REDELIVERED = 4
    VALUE_DROPPED = 8
    CALL = 16  # a call of a group: its first key is a name, and a member that handles this name gets it
    OWNER = 32  # its condition is OWNER: so it is no plain operation (settle_batch.pxd)
    SCHEDULED = 64  # with CALL: a point of a schedule, which is kept longer while no member handles it
    ALONE = 128  # a call whose runs have ended processes: it goes to a member that holds no other call


class CallPhase(IntEnum):
    """The phase of a settled call: what a member runs for it, or has run last. A phase is never lowered."""

    DUE = 0  # nothing was run for it
    HANDLER = 1
    ON_FAILURE = 2  # the handler's on_failure
    FAILED = 3  # it was given up: when it is done, it is kept as a dead letter


class EventFlag(IntFlag):
    """Flags of a ring record."""

    LIMITED = 1
    WANTS_ANSWER = 2  # fire_wait(): its client gets an answer when the event has been delivered
    DELIVERED = 4
    REDELIVERED = 8  # requeued from an owner that did not acknowledge it
    VALUE_DROPPED = 16  # requeued, and its value had been dropped before


class Place(IntEnum):
    """Where a watch node stands."""

    NOWHERE = 0  # in no list and no heap
    BEHIND = 1
    FIRST = 2  # first in its key's list, or at the top of its key's heap: the key table leads to it


class ClientState(IntEnum):
    """Life of a client slot: FREE -> LIVE <-> SILENT -> DEAD -> TOMBSTONE -> LIVE again, or FREE.

    A client is DEAD while the orphans policy is applied to its operations. A tombstone keeps only the numbering,
    the incarnation and the session.
    """

    FREE = 0
    LIVE = 1
    SILENT = 2
    DEAD = 3
    TOMBSTONE = 4


class ClientFlag(IntFlag):
    """Flags of a client record."""

    LISTENS = 1  # it takes outcomes (not calls) of its group
    GOODBYE = 2  # it said goodbye: it will not come back, so it leaves no tombstone
    KEEPS = 4  # it is silent, and keeps what it holds of its group: its process runs, and its takeover is not over


class IdState(IntEnum):
    """Life of an id record."""

    FREE = 0
    LIVE = 1
    SETTLED = 2
