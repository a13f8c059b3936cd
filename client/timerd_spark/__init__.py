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
    from .plans import workload
    from .playing import loadtest
    from .reports import hot_keys, report
    from .rollups import rollup
    from .session import JavaMissingError, local_session
    from .survival import what_if

# Each public name, and the module that has it.
_WHERE = {
    "JavaMissingError": "session",
    "audit": "auditing",
    "hot_keys": "reports",
    "loadtest": "playing",
    "local_session": "session",
    "report": "reports",
    "rollup": "rollups",
    "what_if": "survival",
    "workload": "plans",
}

__all__ = [
    "JavaMissingError",
    "audit",
    "hot_keys",
    "loadtest",
    "local_session",
    "report",
    "rollup",
    "what_if",
    "workload",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
