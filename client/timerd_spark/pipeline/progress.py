"""The remaining time of a run, estimated from the work of each step and from the times of finished steps.

[2/9] play operations 100,000 to 199,999: some 17 s, some 1 min 20 s for all that is left
      60% of it, 7 s left; 1 min 10 s for all
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

SAY_S: Final = 5.0  # between two lines of a step
# The pace of finished steps is taken for the pace of a later step, within limits. OWN limits the pace of steps of the
# same kind. OTHERS limits the pace of steps of other kinds. It is narrower, because the first steps of a run may have
# been slow.
OWN, OTHERS = (0.1, 10.0), (0.5, 2.0)


class Step(NamedTuple):
    """A step of a run. `estimate_s` is for the machine on which the estimates were measured."""

    name: str  # in state.json. The part before "-" is the kind: "play" of "play-100000"
    what: str  # for people
    run: Callable[[], Mapping[str, Any] | None]
    estimate_s: float

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]


class Rest:
    """The estimates of all steps of a run. Finished steps show the speed of this machine."""

    def __init__(self, steps: Sequence[Step], took: Mapping[str, float]) -> None:
        """`took` has the seconds of the steps that are done, by name."""
        self._steps, self._took = steps, dict(took)

    def done(self, step: Step, seconds: float) -> None:
        """Note that a step is done."""
        self._took[step.name] = seconds

    def of(self, step: Step) -> float:
        """The estimated seconds of a step, by the pace of finished steps of its kind, or else of all but "play"."""
        same = [one for one in self._steps if one.name in self._took and one.kind == step.kind]
        known = same or [one for one in self._steps if one.name in self._took and one.kind != "play"]
        expected = sum(one.estimate_s for one in known)
        pace = sum(self._took[one.name] for one in known) / expected if expected > 0 else 1.0
        least, most = OWN if same else OTHERS
        return step.estimate_s * min(max(pace, least), most)

    def after(self, step: Step) -> float:
        """The seconds of all steps after this one."""
        at = self._steps.index(step)
        return sum(self.of(one) for one in self._steps[at + 1 :] if one.name not in self._took)

    def head(self, step: Step) -> str:
        """The line at the start of a step."""
        own = self.of(step)
        rest = own + self.after(step)
        more = f", some {short(rest)} for all that is left" if rest > own else ""
        return f"[{self._steps.index(step) + 1}/{len(self._steps)}] {step.what}: some {short(own)}{more}"

    def line(self, step: Step, elapsed: float, share: float | None = None) -> str:
        """The progress of a step after `elapsed` seconds. `share`: the finished share, if it is known."""
        own = self.of(step)
        if not share and elapsed > own:
            more = f"; then {short(self.after(step))} for the rest" if self.after(step) else ""
            return f"{short(elapsed)} so far, where {short(own)} were expected{more}"
        left = elapsed * (1 - share) / share if share else max(own - elapsed, 0.0)
        part = share if share else elapsed / own
        behind = self.after(step)
        return f"{min(part, 0.99):.0%} of it, {short(left)} left" + (
            f"; {short(left + behind)} for all" if behind else ""
        )


@contextmanager
def said(rest: Rest, step: Step, show: Callable[[str], None], share: Callable[[], float | None]) -> Iterator[None]:
    """Show the progress of a step every few seconds."""
    ended, begun = threading.Event(), time.monotonic()

    def say() -> None:
        while not ended.wait(SAY_S):
            show(f"      {rest.line(step, time.monotonic() - begun, share())}")

    teller = threading.Thread(target=say, name="timerd-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def short(seconds: float) -> str:
    """A time for people: "7 s", "1 min 20 s", "2 h 5 min"."""
    whole = max(round(seconds), 1)
    if whole >= 60:
        whole = round(whole, -1) if whole < 3_600 else whole
    minutes, rest = divmod(whole, 60)
    if minutes >= 60:
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest} s" if minutes and rest else f"{minutes} min" if minutes else f"{rest} s"
