"""What every request goes through: encoding, numbering, pending operations, settling. A leaf: it knows no link.

    python.py      what each of these is, in Python
    compiled/      the same, compiled
    commands.py    commands as they travel, in Python: one `struct` each
    ids.py         which pending operation has an id; both forms use it

Both forms give the same frames and the same outcomes (tests/client/test_client_fast.py). The compiled form is taken
where it was built; $TIMERD_CLIENT chooses (timerd_wire/choice.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timerd_wire.choice import CHOICE, PURE

if TYPE_CHECKING or PURE:
    from . import python as chosen
else:
    try:
        from . import compiled as chosen
    except ModuleNotFoundError as error:
        if CHOICE or not (error.name or "").startswith(f"{__name__}.compiled"):
            raise
        from . import python as chosen

Caller = chosen.Caller
Handle = chosen.Handle
Ledger = chosen.Ledger
Line = chosen.Line
Pending = chosen.Pending
Promised = chosen.Promised
Rows = chosen.Rows
Watches = chosen.Watches
amounts_of = chosen.amounts_of
are_bodies = chosen.are_bodies
copy_records = chosen.copy_records
durations_of = chosen.durations_of
is_held = chosen.is_held
issue_events = chosen.issue_events
issue_registrations = chosen.issue_registrations
plain_keys = chosen.plain_keys
settle_all = chosen.settle_all
takes_fire = chosen.takes_fire
takes_register = chosen.takes_register
without_collector = chosen.without_collector

COMPILED: Final = chosen.__name__.endswith(".compiled")
