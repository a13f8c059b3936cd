"""Conditions over the keys of an operation, for `when=`: for example, `when=at_least(2)`."""

from __future__ import annotations

from typing import Final, NamedTuple

from timerd_shm.declare.errors import InvalidConditionError
from timerd_shm.declare.limits import KEYS_MAX
from timerd_shm.declare.states import Condition

__all__ = ["ALL", "ALL_SETTLED", "ANY", "When", "at_least", "total"]  # timerd exports all of these

TOTAL_MAX = (1 << 64) - 1


class When(NamedTuple):
    """A condition over keys, such as ANY. `needed` is k of at_least, and 0 of ALL; `total` is the amount to reach."""

    kind: Condition
    needed: int = 0
    total: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether this module could have made this condition: its kind and its numbers are valid."""
        numbers = ((self.needed, KEYS_MAX), (self.total, TOTAL_MAX))
        return isinstance(self.kind, Condition) and all(type(n) is int and 0 <= n <= most for n, most in numbers)


ANY: Final = When(Condition.AT_LEAST, 1)
"""One key is satisfied: the default."""

ALL: Final = When(Condition.AT_LEAST)
"""Every key is satisfied."""

ALL_SETTLED: Final = When(Condition.ALL_SETTLED)
"""Every key is satisfied or failed."""

OWNED: Final = When(Condition.OWNER)  # for delayed operations, whose owner evaluates the condition
OBSERVED: Final = When(Condition.OBSERVE)  # for subscriptions: the first event on one of the keys


def at_least(keys: int) -> When:
    """At least `keys` keys are satisfied. Raises InvalidConditionError outside 1..64."""
    if type(keys) is not int or not 1 <= keys <= KEYS_MAX:
        raise InvalidConditionError(f"at_least({keys!r}): a number of keys is an int from 1 to {KEYS_MAX}")
    return When(Condition.AT_LEAST, keys)


def total(amount: int) -> When:
    """Amounts fired on any of the keys add up to `amount`. Raises InvalidConditionError outside 1..2^64-1."""
    if type(amount) is not int or not 1 <= amount <= TOTAL_MAX:
        raise InvalidConditionError(f"total({amount!r}): an amount is an int from 1 to {TOTAL_MAX}")
    return When(Condition.TOTAL, 0, amount)
