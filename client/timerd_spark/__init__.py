"""timerd on Spark: the journal as a source, registrations and events as a sink, and what stands on them.

    spark.read.format("timerd").load("/var/lib/timerd/journal")       # a row for each operation that has settled

Nothing here is imported before it is used: executors' Python workers, and every first look-up of a data source, import
this package. SPARK.md beside this file has the options, the guarantees and the limits.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .auditing import audit
    from .awaiting import await_events
    from .delivering import deliver
    from .plans import workload
    from .playing import loadtest
    from .reading import read_journal
    from .reports import hot_keys, report
    from .rollups import rollup
    from .session import JavaMissingError, local_session
    from .survival import what_if
    from .task import task_client

# Each public name, and the module that has it.
_WHERE = {
    "JavaMissingError": "session",
    "audit": "auditing",
    "await_events": "awaiting",
    "deliver": "delivering",
    "hot_keys": "reports",
    "loadtest": "playing",
    "local_session": "session",
    "read_journal": "reading",
    "report": "reports",
    "rollup": "rollups",
    "task_client": "task",
    "what_if": "survival",
    "workload": "plans",
}

__all__ = [
    "JavaMissingError",
    "audit",
    "await_events",
    "deliver",
    "hot_keys",
    "loadtest",
    "local_session",
    "read_journal",
    "report",
    "rollup",
    "task_client",
    "what_if",
    "workload",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
