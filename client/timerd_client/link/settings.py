"""The arguments that `client()` of both faces gives to connect(). `configure()` sets them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from timerd_client.arguments import group_of, label_of, orphans_of, patience_of, transport_of
from timerd_wire.transports import Transport

settings: dict[str, Any] = {}
guards: list[Callable[[Callable[[], None]], None]] = []  # each makes the change that it is given, or raises an error


def configure(
    instance: str | None = None,
    *,
    autostart: bool = False,
    timeout: float | None = None,
    group: str | None = None,
    orphans: str = "cancel",
    name: str = "",
    runtime_dir: str | None = None,
    transport: Transport | None = None,
) -> None:
    """Set what `client()`, also of timerd_client.aio, gives to connect(), here and in forked processes.

    It does not connect, so a module that gunicorn loads before it forks may call it. Raises what connect() raises for
    wrong arguments, and InvalidValueError if `client()` has been used in this process.
    """
    orphans_of(orphans, group_of(group))
    label_of(name)
    patience_of(timeout)
    if transport is not None:
        transport_of(transport)

    def change() -> None:
        settings.update(
            instance=instance,
            autostart=autostart,
            timeout=timeout,
            group=group,
            orphans=orphans,
            name=name,
            runtime_dir=runtime_dir,
            transport=transport,
        )

    applied: Callable[[], None] = change
    for guard in guards:
        applied = partial(guard, applied)
    applied()
