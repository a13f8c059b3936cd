"""What stands in the path of every request: compiled (compiled.pyx) where that was built, else in Python (python.py).

    python.py      what each of these is; the measure of the compiled form
    compiled.pyx   the same, compiled; it has the four .pxd files to itself
    places.pxd     a table by command number: who waits for one operation
    spans.pxd      who waits for many: a batch is one span of command numbers
    stretch.pxd    the commands' bytes in one piece of memory, from which frames are cut
    usual.pxd      arguments of usual calls as C has them, and their commands
    commands.py    commands as they travel, in Python: one `struct` each

Both do the same, frame by frame and outcome by outcome:
tests/client/test_client_fast.py shows it. $TIMERD_CLIENT chooses (timerd_wire/choice.py).
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
        if CHOICE or error.name != f"{__name__}.compiled":
            raise
        from . import python as chosen

Caller = chosen.Caller
Handle = chosen.Handle
Ledger = chosen.Ledger
Line = chosen.Line
Promised = chosen.Promised
Rows = chosen.Rows
Waiting = chosen.Waiting
amounts_of = chosen.amounts_of
are_bodies = chosen.are_bodies
are_keys = chosen.are_keys
copy_records = chosen.copy_records
durations_of = chosen.durations_of
issue_events = chosen.issue_events
issue_registrations = chosen.issue_registrations
plain_keys = chosen.plain_keys
settle_all = chosen.settle_all
takes_fire = chosen.takes_fire
takes_register = chosen.takes_register

COMPILED: Final = chosen.__name__.endswith(".compiled")
