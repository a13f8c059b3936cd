"""Rules: which requests a fault meets, and what happens to them.

    Rule.of({"fault": "fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": "t", "after": 2},
            number=1, workers=3)

A rule counts requests over the whole cluster. The count is the length of a file, to which each broker appends a byte:
the length up to this byte is the request's number. So two brokers never have the same number, and no lock is needed.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from kio.schema.errors import ErrorCode

from timerd_kafka.faults.shapes import SHAPES, Where

FAULTS = "faults"  # the directory of the counts
OWN_CLIENT = "timerd_kafka.testing"  # requests of the fixture itself meet no fault
KINDS = {"fail": "error", "delay": "seconds", "cut": None}  # the kinds of faults, and the value that each needs
ERRORS = {error.name.upper(): error for error in ErrorCode if error is not ErrorCode.none}
SECONDS_MAX = 3_600.0
WHOLE_MAX = 2**31 - 1
COUNT_MAX = 10_000_000  # of `after`, and of `times`
LENGTH_MAX = 2 * COUNT_MAX  # of a file of counts: so a rule without an end, in use for days, fills no disk
RULES_MAX = 1_000
TEXT_MAX = 1_000  # characters: no name of a topic and no id of a group is longer
SHOWN = 100  # characters of a text that is too long
CLOSE_MAX = 5  # names that an error proposes


class RuleError(ValueError):
    """A rule that makes no sense. The text has the value, and the choices."""


class Rule(NamedTuple):
    """One fault. None in a field that selects requests stands for any."""

    number: int
    fault: str
    api: str
    error: str | None = None
    seconds: float | None = None
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    client_id: str | None = None
    broker: int | None = None
    after: int = 0
    times: int | None = 1

    @classmethod
    def of(cls, given: Mapping[str, Any], number: int, workers: int) -> Self:
        """The rule that a command describes. Raises RuleError."""
        if unknown := set(given) - set(cls._fields[1:]):
            raise RuleError(f"{sorted(unknown)[0]}: a fault has {', '.join(cls._fields[1:])}")
        try:
            rule = cls(number, **given)
        except TypeError:
            raise RuleError("a fault has at least 'fault' (fail, delay or cut) and 'api'") from None
        rule._check_fault()
        rule._check_selection(workers)
        return rule

    def _check_fault(self) -> None:
        if not isinstance(self.fault, str) or self.fault not in KINDS:
            raise RuleError(f"fault={self.fault!r}: {', '.join(KINDS)}")
        if not isinstance(self.api, str) or self.api not in SHAPES:
            raise RuleError(f"api={self.api!r}: this broker has {', '.join(SHAPES)}")
        for name in ("error", "seconds"):
            if getattr(self, name) is not None and KINDS[self.fault] != name:
                raise RuleError(f"{name}={getattr(self, name)!r}: a fault of the kind {self.fault!r} has no {name}")
        if self.fault == "fail" and (not isinstance(self.error, str) or self.error not in ERRORS):
            close = difflib.get_close_matches(str(self.error).upper(), ERRORS, CLOSE_MAX)
            raise RuleError(f"error={self.error!r}: Kafka's errors are {', '.join(close or ERRORS)}")
        if self.fault == "delay" and not is_number(self.seconds, above=0, most=SECONDS_MAX):
            raise RuleError(f"seconds={self.seconds!r}: above 0, and {SECONDS_MAX:g} s at most")

    def _check_selection(self, workers: int) -> None:
        names = SHAPES[self.api].names
        for name in ("topic", "partition", "group"):
            if getattr(self, name) is not None and name not in names:
                others = ", ".join(api for api, shape in SHAPES.items() if name in shape.names)
                choices = ", ".join((*names, "client_id", "broker"))
                raise RuleError(
                    f"{name}={getattr(self, name)!r}: a request of {self.api} has no {name}; it is selected by "
                    f"{choices}. APIs with a {name}: {others}"
                )
        for name in ("topic", "group", "client_id"):
            if not isinstance(getattr(self, name), str | None):
                raise RuleError(f"{name}={getattr(self, name)!r}: a text")
            if len(getattr(self, name) or "") > TEXT_MAX:
                raise RuleError(f"{name}={getattr(self, name)[:SHOWN]!r}...: {TEXT_MAX:,} characters at most")
        for name, least, most in (("partition", 0, WHOLE_MAX), ("broker", 0, workers - 1), ("after", 0, COUNT_MAX)):
            value = getattr(self, name)
            if (value is not None or name == "after") and not is_whole(value, least, most):
                raise RuleError(f"{name}={value!r}: {least} to {most}")
        if self.times is not None and not is_whole(self.times, 1, COUNT_MAX):
            choices = f"1 to {COUNT_MAX}; None for every request until the faults are cleared"
            raise RuleError(f"times={self.times!r}: {choices}")

    def meets(self, where: Where) -> bool:
        """Whether a part of a request has the topic, the partition and the group that the rule names, if any."""
        return all(
            wanted is None or where.get(name) == wanted
            for name, wanted in (("topic", self.topic), ("partition", self.partition), ("group", self.group))
        )

    @property
    def last(self) -> float:
        """The number of the last request that gets the fault; infinity if there is no last one."""
        return math.inf if self.times is None else self.after + self.times


class Counted(NamedTuple):
    """A rule, and its counts: the requests that it met, up to its last one, and those of them that got the fault."""

    rule: Rule
    met: int
    applied: int

    @classmethod
    def read(cls, data: Path, rule: Rule) -> Self:
        """The counts of a rule up to now."""
        met = int(min(count_file(data, rule).stat().st_size, rule.last))
        return cls(rule, met, max(0, met - rule.after))


def count_file(data: Path, rule: Rule) -> Path:
    """The file whose length counts the requests that met a rule."""
    return data / FAULTS / str(rule.number)


def count(path: Path) -> int:
    """Count one request. Returns its number, from 1 on. Raises OSError.

    A file that is longer than LENGTH_MAX grows no further: then all requests get the same number.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        if (length := os.fstat(descriptor).st_size) > LENGTH_MAX:
            return length
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)


def is_whole(value: object, least: int, most: int = WHOLE_MAX) -> bool:
    """Whether a value is an integer in these bounds. True and False do not count as integers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, above: float, most: float) -> bool:
    """Whether a value is a number in these bounds. True and False do not count as numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and above < value <= most
