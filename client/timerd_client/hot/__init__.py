"""The path of every request: encoding, numbering, pending operations, settling. It imports no link.

Five extension modules, whose .pyi say what each name does, and two modules in Python:

    ledger         pending operations, and unacknowledged commands
    promises       an operation, or the rows of a batch, until it settles
    calls          register and fire with the arguments of the fast path
    columns        register_many and fire_many, row by row
    outcomes       the outcomes of a report settle pending operations
    commands.py    commands as they are sent, in Python: one `struct` each
    ids.py         which pending operation has an id

The other .pxd files are plain C that these modules use: pending_table and pending_batches find the waiter of a command
number, kept has the record of a settled operation, command_buffer keeps the bytes of commands, fast_arguments checks
arguments, and watch checks the keys and the condition.

A model in Python makes the same frames and the same outcomes (tests/hot/hotmodel.py): random programs compare it with
these modules.
"""

from __future__ import annotations

try:
    from .calls import Caller, Line, takes_fire, takes_register
    from .columns import Watches, amounts_of, are_bodies, durations_of, issue_events, issue_registrations, plain_keys
    from .ledger import Ledger, Pending
    from .outcomes import is_held, settle_all
    from .promises import Handle, Promised, Rows, copy_records, without_collector
except ModuleNotFoundError as error:
    raise ImportError(f"{error}: it was not built; install a wheel, or run `make build` in the sources") from error

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
