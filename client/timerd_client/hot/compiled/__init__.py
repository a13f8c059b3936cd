"""The compiled form of hot/python.py, in five extension modules: the same names, and the same results.

    ledger     pending operations, and unacknowledged commands
    promises   an operation, or the rows of a batch, until it settles
    calls      register and fire with the arguments of the fast path
    columns    register_many and fire_many, row by row
    outcomes   the outcomes of a report settle what is pending

The other .pxd files are plain C under these: pending_table and pending_batches find who waits for a command number,
kept has how an operation has settled, command_buffer keeps the bytes of commands, fast_arguments checks arguments, and
watch the keys and the condition.
"""

from __future__ import annotations

from .calls import Caller, Line, takes_fire, takes_register
from .columns import Watches, amounts_of, are_bodies, durations_of, issue_events, issue_registrations, plain_keys
from .ledger import Ledger, Pending
from .outcomes import is_held, settle_all
from .promises import Handle, Promised, Rows, copy_records, without_collector

__all__ = (
    "Caller",
    "Handle",
    "Ledger",
    "Line",
    "Pending",
    "Promised",
    "Rows",
    "Watches",
    "amounts_of",
    "are_bodies",
    "copy_records",
    "durations_of",
    "is_held",
    "issue_events",
    "issue_registrations",
    "plain_keys",
    "settle_all",
    "takes_fire",
    "takes_register",
    "without_collector",
)
