"""The arguments of the calls that register, and of `Client()`: their names, types and defaults, declared once.

A call takes them as `**arguments: Unpack[...]`, so editors and type checkers show each of them. Inside, the call
passes them on as one dictionary, together with the call's name, which error messages show. `Declared.of` adds the
defaults, and refuses names that are not declared. `Declared.shown` makes help() show each argument. The docstring of an
argument ends with the errors that a wrong value raises.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Required, TypedDict, TypeVar

from timerd_wire.transports import Transport

from .conditions import ANY, When
from .mark import Mark
from .types import IfExists, Key, OrphanPolicy, Patience, Payload, Timeout

ArgumentsT = TypeVar("ArgumentsT")
Function = TypeVar("Function", bound=Callable[..., object])
_NO_DEFAULT: Final = inspect.Parameter.empty
_BY_NAME: Final = inspect.Parameter.KEYWORD_ONLY


class OperationArguments(TypedDict, total=False):
    """The arguments of a call that registers one operation."""

    timeout: Required[Timeout]
    """Seconds to the deadline, or a timedelta; up to 10 years. None = no deadline. TimeoutOutOfRangeError."""
    payload: Payload
    """Bytes that stay with the operation (default: none). InvalidValueError, PayloadTooLargeError."""
    id: Key | None
    """1 to 255 bytes that name the operation in its purgatory (default: no name). InvalidKeyError, KeyTooLongError."""


class ConditionArguments(TypedDict, total=False):
    """The arguments of a call with a condition that the daemon evaluates."""

    when: When
    """The condition over the keys (default: ANY). InvalidConditionError."""
    since: Mark | None
    """The mark from which events count (default: this call). InvalidValueError, MarkTooOldError."""


class ExistsArguments(TypedDict, total=False):
    """The arguments of every call that registers."""

    if_exists: IfExists
    """If the id is in use: "error" (the default), "keep", "replace" or "replace_cancelled". InvalidValueError."""


class OwnerArguments(TypedDict, total=False):
    """The arguments of a call whose operations have an owner."""

    orphans: OrphanPolicy | None
    """The policy when this process dies: "cancel", "keep" or "group" (default: the client's). NotAMemberError."""


class GroupArguments(OperationArguments, ConditionArguments, ExistsArguments):
    """The arguments of `register(group=True)`."""


class RegistrationArguments(GroupArguments, OwnerArguments):
    """The arguments of `register` and `register_wait`."""


class DelayedArguments(OperationArguments, ExistsArguments, OwnerArguments):
    """The arguments of `try_complete_else_watch`."""


class BatchArguments(ConditionArguments, ExistsArguments, OwnerArguments, total=False):
    """The arguments of `register_many` and `register_many_wait`."""

    timeout: Required[Timeout | Sequence[Timeout]]
    """As for `register`: one timeout for all operations, or one for each."""
    payloads: Sequence[Payload] | Payload
    """One payload for all operations, or one for each (default: none)."""
    ids: Sequence[Key | None] | None
    """One id for each operation (default: no ids)."""


class ClientArguments(TypedDict, total=False):
    """The arguments of `Client`, `connect` and `configure`, after the instance."""

    group: str | None
    """The group of which the client is a member (default: none). InvalidNameError."""
    orphans: OrphanPolicy
    """The policy for the client's operations when its process dies (default: "cancel"). NotAMemberError."""
    name: str
    """The label of the client in `timerctl clients`, printable text of at most 32 bytes. InvalidNameError."""
    takeover: Patience
    """How long a client may be silent until others get its calls: 2 to 3600 s (default 300). TimeoutOutOfRangeError."""
    transport: Transport | None
    """One of "zeromq" and "unix" (default: $TIMERD_TRANSPORT, else "zeromq"). InvalidValueError."""
    runtime_dir: str | None
    """The directory of the instance (default: $TIMERD_RUNTIME_DIR, else the places of the user)."""
    daemon_user: str | int | None
    """A user whose directory and daemon are trusted (default: $TIMERD_DAEMON_USER, else none). InvalidNameError."""
    autostart: bool
    """Whether to start a daemon if none runs (default: False)."""


class Declared(Generic[ArgumentsT]):
    """The arguments of a call, with their defaults."""

    def __init__(self, kind: type[Any], defaults: Mapping[str, Any]) -> None:
        """`kind` is the typed dictionary. At most one argument has no default, and each call must give it."""
        self.types: Final[dict[str, str]] = {
            name: re.sub(r"^Required\[(.*)\]$", r"\1", declared.__forward_arg__)
            for name, declared in kind.__annotations__.items()
        }
        self.defaults: Final[dict[str, Any]] = {name: defaults.get(name, _NO_DEFAULT) for name in self.types}
        self._needed = next((name for name in self.types if name not in defaults), next(iter(self.types)))

    def of(self, call: str, given: ArgumentsT) -> ArgumentsT:
        """All arguments of a call, with defaults. Raises TypeError for an unknown argument, or if one is missing."""
        merged: Any = self.defaults | given  # type: ignore[operator]
        if len(merged) != len(self.defaults):
            self._refuse(call, merged)
        if merged[self._needed] is _NO_DEFAULT:
            raise TypeError(f"{call}() needs the argument {self._needed!r}: {self._needed}=...")
        found: ArgumentsT = merged
        return found

    def shown(self, function: Function) -> Function:
        """Decorate a function of `**arguments`: help() shows each argument. Type checkers know them without this."""
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        for name, kind in self.types.items():
            own.append(inspect.Parameter(name, _BY_NAME, default=self.defaults[name], annotation=kind))
        function.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return function

    def _refuse(self, call: str, merged: dict[str, Any]) -> None:
        import difflib

        wrong = next(name for name in merged if name not in self.defaults)
        near = difflib.get_close_matches(wrong, self.defaults, 1, cutoff=0)[0]
        raise TypeError(
            f"{call}() has no argument {wrong!r}; did you mean {near!r}? It has {', '.join(map(repr, self.defaults))}"
        )


_DEFAULTS: Final = dict(
    payload=b"", payloads=b"", id=None, ids=None, when=ANY, since=None, if_exists="error", orphans=None
)
REGISTRATION: Final = Declared[RegistrationArguments](RegistrationArguments, _DEFAULTS)
DELAYED: Final = Declared[DelayedArguments](DelayedArguments, _DEFAULTS)
BATCH: Final = Declared[BatchArguments](BatchArguments, _DEFAULTS)
CLIENT: Final = Declared[ClientArguments](
    ClientArguments,
    dict(
        group=None,
        orphans="cancel",
        name="",
        takeover=None,
        transport=None,
        runtime_dir=None,
        daemon_user=None,
        autostart=False,
    ),
)
