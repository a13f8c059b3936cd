"""Knobs: a knob has a unit, limits and a sentence. A text becomes its value, and its value is shown as text.

For example, Knob("duration", "how late a timer may be", 100_000, 60_000_000_000) reads "1ms" as 1,000,000 nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from timerd_shm.declare.limits import NAME_PATTERN
from timerd_shm.host.quantity import DURATIONS, SIZES, byte_count, duration_ns


class Formula(NamedTuple):
    """Computes a number that is not given. `of` takes a Config that has the knobs before it."""

    text: str
    of: Callable[[Any], int]


class Knob(NamedTuple):
    """A knob: its unit (which says how a text is read), its limits (inclusive) and a sentence."""

    unit: Literal["count", "duration", "bytes", "flag", "group", "name", "path", "level"]
    about: str
    low: int = 0
    high: int = 0
    derived: str = ""  # the default in words, if it is None and has no formula
    choices: tuple[str, ...] = ()
    formula: Formula | None = None  # gives the number, if the value is None
    word: str = ""  # the word of the arena's header that holds the value, if the names differ

    def read(self, text: str) -> int | str | bool:
        """The value of a flag's or variable's text; raises ValueError with what is wrong and what to write instead."""
        match self.unit:
            case "flag":
                if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
                    raise ValueError("write true or false")
                return text.lower() in ("1", "true", "yes", "on")
            case "count":
                try:
                    return int(text.replace("_", ""))
                except ValueError:
                    raise ValueError("write a whole number") from None
            case "duration":
                return duration_ns(text)
            case "bytes":
                return byte_count(text)
        return text

    def accept(self, given: object) -> int | str | bool:
        """The checked value of what a file, variable or flag gives; raises ValueError as `read` does."""
        if self.unit == "flag" and isinstance(given, bool):
            return given
        if self.unit in ("count", "bytes") and type(given) is int:
            value: int | str | bool = given
        elif self.unit == "group" and type(given) is int:
            value = str(given)
        elif isinstance(given, str) or (self.unit == "duration" and type(given) in (int, float)):
            value = self.read(str(given))
        else:
            raise ValueError(f"{type(given).__name__} is not a {self.unit}")
        if type(value) is int and not self.low <= value <= self.high:
            bare = self.unit == "duration" and not str(given).strip()[-1:].isalpha()
            remedy = f'; a number without a unit is seconds: write "{str(given).strip()}ms" for milliseconds'
            raise ValueError(f"the limits are {self.limits()}" + (remedy if bare else ""))
        if self.unit == "name" and not NAME_PATTERN.fullmatch(str(value)):
            raise ValueError(f"a name has the form {NAME_PATTERN.pattern}")
        if self.choices and value not in self.choices:
            raise ValueError(f"write one of {', '.join(self.choices)}")
        if self.unit in ("path", "group") and (not value or "\0" in str(value)):
            raise ValueError("it is empty, or holds a zero byte")
        return value

    def limits(self) -> str:
        """The smallest and the largest value."""
        return f"{self.show(self.low)} to {self.show(self.high)}"

    def show(self, value: object) -> str:
        """A value as `read` takes it."""
        if value is None:
            return f"({self.formula.text if self.formula else self.derived})"
        if self.unit == "flag":
            return str(value).lower()
        if self.unit not in ("duration", "bytes") or not isinstance(value, int):
            return str(value)
        units = DURATIONS if self.unit == "duration" else SIZES
        if value == 0:
            return "0s" if self.unit == "duration" else "0"
        name, size = next(item for item in reversed(units.items()) if value % item[1] == 0)
        return f"{value // size}{name}" if name != "B" else str(value)
