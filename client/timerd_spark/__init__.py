"""timerd on Spark: the journal as a source, registrations and events as a sink, and reports and tasks on top of them.

    spark.read.format("timerd").load("/var/lib/timerd/journal")       # a row for each operation that has settled

A module of this package is imported when one of its names is first used. So the import of the package is quick: each
Python worker imports it, and so does Spark when it first looks for a data source. SPARK.md in this directory lists the
pages with options, guarantees and limits.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timerd_spark.pipeline.loadtest import loadtest
    from timerd_spark.pipeline.plans import workload
    from timerd_spark.purgatory.audited import audit_outcomes
    from timerd_spark.purgatory.purgatory import purgatory
    from timerd_spark.purgatory.queries import late, pending, repartition, start
    from timerd_spark.reports.audit import audit
    from timerd_spark.reports.report import hot_keys, report
    from timerd_spark.reports.rollups import rollup
    from timerd_spark.reports.survival import what_if
    from timerd_spark.source.frame import read_journal
    from timerd_spark.source.ids import id_hash
    from timerd_spark.source.progress import progress
    from timerd_spark.tasks.deliveries import deliver
    from timerd_spark.tasks.task import task_client
    from timerd_spark.tasks.waiter import await_events

    from .session import JavaMissingError, local_session

# Each public name, and the module that has it.
_MODULE_OF = {
    "JavaMissingError": "session",
    "audit": "reports.audit",
    "audit_outcomes": "purgatory.audited",
    "await_events": "tasks.waiter",
    "deliver": "tasks.deliveries",
    "hot_keys": "reports.report",
    "id_hash": "source.ids",
    "late": "purgatory.queries",
    "loadtest": "pipeline.loadtest",
    "local_session": "session",
    "pending": "purgatory.queries",
    "progress": "source.progress",
    "purgatory": "purgatory.purgatory",
    "read_journal": "source.frame",
    "repartition": "purgatory.queries",
    "report": "reports.report",
    "rollup": "reports.rollups",
    "start": "purgatory.queries",
    "task_client": "tasks.task",
    "what_if": "reports.survival",
    "workload": "pipeline.plans",
}

__all__ = [
    "JavaMissingError",
    "audit",
    "audit_outcomes",
    "await_events",
    "deliver",
    "hot_keys",
    "id_hash",
    "late",
    "loadtest",
    "local_session",
    "pending",
    "progress",
    "purgatory",
    "read_journal",
    "repartition",
    "report",
    "rollup",
    "start",
    "task_client",
    "what_if",
    "workload",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
