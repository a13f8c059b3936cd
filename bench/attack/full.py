"""A daemon whose arena is full."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import timerd as td
from timerctl.load.report import percentiles

from .senders import PATIENCE_S
from .serving import daemon

SMALL = 4_096  # operations in the arena


def fill(seconds: float) -> dict[str, Any]:
    """Fill an arena by two clients. Operations of a third client still settle, and its new operations are refused."""
    wrong: list[str] = []
    refused_ns: list[int] = []
    with daemon(f"--capacity={SMALL}") as (paths, _), contextlib.ExitStack() as stack:
        customer, *fillers = [stack.enter_context(td.connect(paths.instance, timeout=PATIENCE_S)) for _ in range(3)]
        many = SMALL // 8
        # The customer's operations are due in the second half of the time, so that no record is freed in the first.
        due = [seconds * (0.5 + 0.5 * n / many) for n in range(many)]
        pending, kept = customer.register_many([b"due"] * many, timeout=due), customer.register("kept", timeout=None)
        customer.flush()
        end = time.monotonic() + seconds / 2
        filled = [filler.register_many([b"full"] * SMALL, timeout=seconds) for filler in fillers]
        for filler in fillers:
            filler.flush()
        while time.monotonic() < end - 0.1:
            before_ns = time.monotonic_ns()
            try:
                customer.register_wait("one more", timeout=60)
                wrong.append("there was room in a full arena")
            except td.ArenaFullError as error:
                refused_ns.append(time.monotonic_ns() - before_ns)
                if f"{SMALL} of {SMALL}" not in str(error) or "--capacity" not in str(error):
                    wrong.append(f"a refusal without its limit and its remedy: {error}")
            time.sleep(0.005)
        if not kept.cancel_wait():
            wrong.append("a cancel was refused in a full arena")
        late = [outcome.lateness_ns for outcome in pending.outcomes(PATIENCE_S) if outcome.state is td.State.EXPIRED]
        if len(late) != many:
            wrong.append(f"{len(late)} of {many} pending operations expired")
        ends = [outcome for batch in filled for outcome in batch.outcomes(PATIENCE_S)]
        names = {type(outcome.error).__name__ for outcome in ends if outcome.error is not None}
        if not refused_ns or not {"ArenaFullError"} <= names <= {"ArenaFullError", "QuotaExceededError"}:
            wrong.append(f"the arena was not full: refusals were {names or 'none'}")
        if any(outcome.state is not td.State.EXPIRED and outcome.error is None for outcome in ends):
            wrong.append("an operation that was registered did not expire")
        again = customer.register("after", timeout=60)
        customer.fire("after")
        if not again.result(PATIENCE_S):
            wrong.append("no service after the arena was full")
    return {"refusal_us": percentiles(refused_ns), "lateness_us": percentiles(late), "refusals": names, "wrong": wrong}
