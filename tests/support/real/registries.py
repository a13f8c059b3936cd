"""Registries of calls for tests. Each has one handler, which a client serves at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timerd as td


def serve(client: Any, name: str, handler: Callable[[td.Call], Any], **more: Any) -> None:
    """Have a client of either face serve a handler of `name`; with `seconds` or `cron`, on a schedule."""
    calls = td.Calls()
    scheduled = "seconds" in more or "cron" in more
    (calls.every if scheduled else calls.handler)(name, **more)(handler)
    client.serve(calls)
