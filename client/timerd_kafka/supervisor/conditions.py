"""The conditions that a command may await: the state of a group, and the records of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

from timerd_kafka.cluster.placement import coordinator_of
from timerd_kafka.faults.rules import is_number, is_whole
from timerd_kafka.groups.group import State

TIMEOUT_MAX = 3_600.0
STATES = tuple(state.value for state in State)


class ConditionError(ValueError):
    """A condition that makes no sense. The text has the value, and the choices."""


class Condition(Protocol):
    """A condition that a command awaits. The brokers' answers to its question show whether it holds."""

    @property
    def timeout(self) -> float:
        """The seconds after which nobody waits any more."""

    @property
    def question(self) -> dict[str, Any]:
        """The command for the brokers."""

    @property
    def broker(self) -> int | None:
        """The broker that is asked; None for all brokers."""

    def look(self, answers: dict[str, Any]) -> tuple[bool, Any]:
        """Whether the condition holds, and what the brokers have. Some of them may not have answered."""

    def missed(self, found: Any) -> str:
        """The error when the time is over."""


@dataclass(frozen=True)
class GroupCondition:
    """A group is in a state. If `members` is given, the group also has this number of members."""

    group: str
    state: str
    members: int | None
    timeout: float
    workers: int  # of the cluster

    @classmethod
    def of(cls, given: dict[str, Any], workers: int) -> Self:
        """The condition of a command. Raises ConditionError."""
        made = cls(**taken(given, group=None, state="Stable", members=None, timeout=10.0), workers=workers)
        if not isinstance(made.group, str) or not made.group:
            raise ConditionError(f"group={made.group!r}: the id of a group")
        if made.state not in STATES:
            raise ConditionError(f"state={made.state!r}: {', '.join(STATES)} (no such group)")
        if made.members is not None and not is_whole(made.members, 0):
            raise ConditionError(f"members={made.members!r}: 0 or more; None for any number")
        return made

    @property
    def question(self) -> dict[str, Any]:
        """The command for the group's coordinator."""
        return {"do": "group", "group": self.group}

    @property
    def broker(self) -> int:
        """The group's coordinator, which alone knows the group."""
        return coordinator_of(self.group, self.workers)

    def look(self, answers: dict[str, Any]) -> tuple[bool, Any]:
        """Whether the group is as it should be, and how it is; None if its coordinator has not answered."""
        found = answers.get(str(self.broker), {})
        if "state" not in found:
            return False, None
        return found["state"] == self.state and self.members in (None, found["members"]), found

    def missed(self, found: Any) -> str:
        """The error when the time is over."""
        if found is None:
            return (
                f"after {self.timeout:g} s the state of the group {self.group!r} is unknown: its coordinator, broker "
                f"{self.broker}, has not answered"
            )
        wanted = self.state if self.members is None else f"{self.state} with members={self.members}"
        return (
            f"after {self.timeout:g} s the group {self.group!r} is {found['state']} with members={found['members']}, "
            f"and not {wanted}"
        )


@dataclass(frozen=True)
class RecordsCondition:
    """Consumers can read a number of records of a topic."""

    topic: str
    count: int
    partition: int | None
    timeout: float

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """The condition of a command. Raises ConditionError."""
        made = cls(**taken(given, topic=None, count=None, partition=None, timeout=10.0))
        if not isinstance(made.topic, str) or not made.topic:
            raise ConditionError(f"topic={made.topic!r}: the name of a topic")
        if not is_whole(made.count, 0):
            raise ConditionError(f"count={made.count!r}: 0 or more")
        if made.partition is not None and not is_whole(made.partition, 0):
            raise ConditionError(f"partition={made.partition!r}: 0 or more; None for all partitions")
        return made

    @property
    def question(self) -> dict[str, Any]:
        """The command for the brokers: each answers for the partitions that it leads."""
        return {"do": "records", "topic": self.topic}

    @property
    def broker(self) -> None:
        """All brokers are asked."""
        return None

    def look(self, answers: dict[str, Any]) -> tuple[bool, Any]:
        """Whether the records are there, and the number of them in each partition whose leader has answered."""
        records = [one.get("records", {}) for one in answers.values() if isinstance(one, dict)]
        found = {int(index): number for one in records for index, number in one.items()}
        return bool(found) and self._number(found) >= self.count, found

    def _number(self, found: dict[int, int]) -> int:
        return sum(found.values()) if self.partition is None else found.get(self.partition, -1)

    def missed(self, found: Any) -> str:
        """The error when the time is over."""
        where = f"the topic {self.topic!r}" if self.partition is None else f"{self.topic}-{self.partition}"
        what = ", ".join(f"partition {index}: {number}" for index, number in sorted(found.items()))
        what = what or "no such topic at the brokers that have answered"
        return f"after {self.timeout:g} s {where} has fewer than {self.count} records that can be read ({what})"


def taken(given: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """The arguments of a condition: the given ones, and defaults for the others. Raises ConditionError."""
    if unknown := set(given) - set(defaults):
        raise ConditionError(f"{sorted(unknown)[0]}: give {', '.join(defaults)}")
    made = defaults | given
    if not is_number(made["timeout"], above=0, most=TIMEOUT_MAX):
        raise ConditionError(f"timeout={made['timeout']!r}: above 0, and {TIMEOUT_MAX:g} s at most")
    return made
