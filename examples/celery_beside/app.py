"""Periodic work beside Celery: one of N workers sends the task each time. There is no beat process that could die.

    celery -A app worker --pool=solo -n one@%h       # as many of these as you like

timerd's daemon keeps the schedule. A worker that dies during a call has not acknowledged it, so another worker gets the
call. The broker of this example is a folder. It loses the task of a worker that dies; a broker with acknowledgements
may run a task twice. So the sender waits until the task reports that it is done, and sends the task again if no report
comes. The table has each report once, even if its task runs twice.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

import timerd as td

FOLDER = Path(os.environ.get("BESIDE_FOLDER", "."))
EVERY = timedelta(seconds=float(os.environ.get("BESIDE_EVERY_S", "60")))
PATIENCE = timedelta(seconds=float(os.environ.get("BESIDE_PATIENCE_S", "30")))  # for a task, before it is sent again

app = Celery("beside", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(FOLDER / "queue"),
        "data_folder_out": str(FOLDER / "queue"),
        "control_folder": str(FOLDER / "control"),
    },
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)
client = td.Client(group="celery", name="celery")  # each process connects at its first use
calls = td.Calls(group="celery")


def database() -> closing[sqlite3.Connection]:
    """A connection for a few statements, each of which is a transaction."""
    return closing(sqlite3.connect(FOLDER / "reports.sqlite", timeout=30, isolation_level=None))


with database() as at_start:
    at_start.execute("CREATE TABLE IF NOT EXISTS reports (due TEXT PRIMARY KEY, worker INTEGER NOT NULL)")


def write_report(due: str) -> None:
    """The task. It may run twice for one report."""
    with database() as connection:
        connection.execute("INSERT OR IGNORE INTO reports (due, worker) VALUES (?, ?)", (due, os.getpid()))
    client.fire(f"report/{due}")


report: Any = app.task(write_report, name="report")


def is_written(due: str) -> bool:
    """Whether the report that was due then is in the table."""
    with database() as connection:
        return connection.execute("SELECT 1 FROM reports WHERE due = ?", (due,)).fetchone() is not None


@calls.every("report", seconds=EVERY)
def send_report(call: td.Call) -> None:
    """Handle a call of the schedule. One worker does this at a time; if it dies, another worker gets the call again."""
    assert call.due is not None, "a schedule says when its call was due"
    due = call.due.isoformat()
    while not is_written(due):
        report.delay(due)
        client.wait_for(lambda: is_written(due), f"report/{due}", timeout=PATIENCE, unavailable="poll")


@worker_ready.connect  # type: ignore[untyped-decorator]  # Celery has no types
def serve(**_: object) -> None:
    """Serve calls in each Celery worker. Handlers run in a thread of the client."""
    client.serve(calls)
