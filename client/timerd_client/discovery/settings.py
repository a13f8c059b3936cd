"""The arguments that `td.client()` and `td.aio.client()` give to `Client()`. `configure()` sets them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from timerd_client.declared import CLIENT, ClientArguments

from .target import target_of

settings: dict[str, Any] = {}
guards: list[Callable[[Callable[[], None]], None]] = []  # each makes the given change, or raises an error


@CLIENT.shown
def configure(instance: str | None = None, **arguments: Unpack[ClientArguments]) -> None:
    """Set the arguments that `client()`, also of td.aio, gives to `Client()`, here and in forked processes.

    Raises the errors of `Client()` for wrong arguments, and InvalidValueError while a client of `client()` is open.
    """
    target_of("configure", instance, arguments)

    def change() -> None:
        settings.clear()
        settings.update(instance=instance, **arguments)

    applied: Callable[[], None] = change
    for guard in guards:
        applied = partial(guard, applied)
    applied()
