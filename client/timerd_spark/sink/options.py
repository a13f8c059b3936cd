"""The options of a write, which registers operations or fires events. They are checked when save() is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from timerd_shm.declare.errors import InvalidConfigError, InvalidValueError
from timerd_shm.declare.limits import NAME_PATTERN, TIMEOUT_NS_MAX
from timerd_spark.durations import duration_ns
from timerd_spark.options import known_options, one_of
from timerd_spark.tasks.task import Sidecar

WRITE_OPTIONS = (
    "action",
    "opId",
    "key",
    "timeout",
    "timeoutColumn",
    "payload",
    "value",
    "purgatory",
    "orphans",
    "group",
    "instance",
    "runtimeDir",
    "autostart",
)
OF_SPARK = ("path", "checkpointLocation", "queryName", "outputMode")  # Spark passes these to every writer
AUTO = "auto"
REGISTER, FIRE = "register", "fire"


class WriteOptions(NamedTuple):
    """The options of a write, which registers an operation or fires an event for each row."""

    action: str
    op_id: str  # column, or AUTO
    key: str  # column
    timeout: float | None  # seconds; None if a column has the timeout, and for events
    timeout_column: str | None
    body: str | None  # column of the payload, or of the event's value
    purgatory: str
    group: str | None  # the group that owns the operations when the task has ended
    sidecar: Sidecar

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """The options that a user has given, checked. Raises InvalidConfigError."""
        given = known_options(options, (*WRITE_OPTIONS, *OF_SPARK))
        action = one_of(given, "action", (REGISTER, FIRE))
        if "opId" not in given:
            raise InvalidConfigError(
                'option opId is missing: name the column whose value makes a row idempotent, or "auto" where the '
                "plan is deterministic (docs/howto/spark-write.md)"
            )
        if "key" not in given:
            raise InvalidConfigError("option key is missing: name the column with the watch key")
        for name in {REGISTER: ("value",), FIRE: ("timeout", "timeoutColumn", "payload", "orphans", "group")}[action]:
            if name in given:
                raise InvalidConfigError(f"option {name} is not for action={action}")
        if action == REGISTER and ("timeout" in given) == ("timeoutColumn" in given):
            raise InvalidConfigError('give one of the options timeout ("30s") and timeoutColumn (a column of seconds)')
        orphans = one_of(given, "orphans", ("keep", "group"))
        if (orphans == "group") != ("group" in given):
            raise InvalidConfigError("orphans=group and group=NAME go together")
        return cls(
            action,
            given["opId"],
            given["key"],
            timeout_s(given["timeout"]) if "timeout" in given else None,
            given.get("timeoutColumn"),
            given.get("payload", given.get("value")),
            checked_name("purgatory", given.get("purgatory", "default")),
            checked_name("group", given["group"]) if "group" in given else None,
            Sidecar.of(
                checked_name("instance", given["instance"]) if "instance" in given else None,
                given.get("runtimeDir"),
                one_of(given, "autostart", ("false", "true")) == "true",
            ),
        )


def timeout_s(text: str) -> float:
    """The timeout in seconds, from "30s" or "1 minute". Raises InvalidConfigError."""
    try:
        ns = duration_ns("timeout", text)
    except InvalidValueError as error:
        raise InvalidConfigError(f"option {error}") from None
    if ns > TIMEOUT_NS_MAX:
        raise InvalidConfigError(f"option timeout={text!r} is longer than ten years")
    return ns / 1e9


def checked_name(what: str, name: str) -> str:
    if NAME_PATTERN.fullmatch(name) is None:
        raise InvalidConfigError(f"option {what}={name!r}: give 1 to 32 of a-z, 0-9, - and _")
    return name
