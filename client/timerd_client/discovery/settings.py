"""The arguments that `client()` of both faces gives to `Client()`. `configure()` sets them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from timerd_client.types import OrphanPolicy, Patience
from timerd_wire.transports import Transport

from .target import target_of

settings: dict[str, Any] = {}
guards: list[Callable[[Callable[[], None]], None]] = []  # each makes the given change, or raises an error


def configure(
    instance: str | None = None,
    *,
    group: str | None = None,
    orphans: OrphanPolicy = "cancel",
    name: str = "",
    takeover: Patience | None = None,
    transport: Transport | None = None,
    runtime_dir: str | None = None,
    autostart: bool = False,
) -> None:
    """Set the arguments that `client()`, also of td.aio, gives to `Client()`, here and in forked processes.

    Raises the errors of `Client()` for wrong arguments, and InvalidValueError if `client()` was called before.
    """
    target_of(instance, runtime_dir, autostart, group, orphans, name, transport, takeover)

    def change() -> None:
        settings.update(
            instance=instance,
            group=group,
            orphans=orphans,
            name=name,
            takeover=takeover,
            transport=transport,
            runtime_dir=runtime_dir,
            autostart=autostart,
        )

    applied: Callable[[], None] = change
    for guard in guards:
        applied = partial(guard, applied)
    applied()
