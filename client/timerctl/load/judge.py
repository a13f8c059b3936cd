"""Judges, column by column, whether each operation of a run settled as it should have.

*Violations* are faults that no load excuses:

    lost         the operation has no outcome
    duplicated   its outcome came more than once, or its owner received more outcome numbers than operations settled
    early        it expired, but settled before its deadline (by the daemon's settled_ns), or was delivered before its
                 deadline, or its deadline is earlier than the time of the register() call plus the timeout
    overruled    it expired, although an event on its key counted before its deadline: the event's effective_ns in the
                 daemon's ring is earlier than the deadline in the outcome, and not earlier than the time when the
                 operation's mark was read
    mistaken     it completed with the value of another operation's event (not judged where keys are shared, or where
                 the value was not looked at)

The time of an event, and of an operation's settling, is the time of the turn in which it happened.

*Misjudged* is measured by the plan. An operation whose event is due more than MARGIN_NS before the timeout should have
completed. If the event is due more than MARGIN_NS after the timeout, the operation should have expired. In between
(`undecided`) either outcome is right. If an operation settled otherwise, something was late, in the daemon or on the
way. Many such operations mean that the rate was not sustained. A late registration loses no event: its mark was read
before the registration was due, so an event that has overtaken the registration completes the operation (`overtaken`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from timerctl.load.harness.messages import Fired, Registered
from timerd_client.outcome import State
from timerd_client.workload import MARGIN_NS, Workload, spans, watched_keys

EXAMPLES_MAX = 10
COMPLETED, EXPIRED, CANCELLED = (int(state.value) for state in (State.COMPLETED, State.EXPIRED, State.CANCELLED))
NAMES = {int(state.value): state.name.lower() for state in State}


class Judgement(NamedTuple):
    """The verdict on the operations of a run, and their times in ns."""

    registered: int
    completed: int
    expired: int
    cancelled: int
    failed: int
    expected_expired: int
    lost: int
    duplicated: int
    early: int
    overruled: int
    mistaken: int
    undecided: int
    misjudged: int
    overtaken: int
    examples: list[str]  # the first violations and misjudged operations, in words
    completion_ns: list[int]  # from fire() to the owner's callback
    completion_intended_ns: list[int]  # from when fire() was due to the owner's callback
    expiry_ns: list[int]  # from the deadline to the owner's callback
    expiry_daemon_ns: list[int]  # from the deadline to the daemon's settling
    last_delivered_ns: int  # of operations without a callback: when the last one settled

    @property
    def violations(self) -> int:
        return self.lost + self.duplicated + self.early + self.overruled + self.mistaken


class Applied:
    """The times at which events were fired and applied: by operation, and by key if keys are shared."""

    def __init__(
        self, workload: Workload, answers: Sequence[Registered], fired: Sequence[Fired], applied: Sequence[array[int]]
    ) -> None:
        """`applied`: when each firer's events were applied; 0 if that was not seen."""
        self._workload = workload
        self._rows = [answer.rows for answer in answers]
        self._fired, self._own = ([array("q", bytes(8 * len(rows.due_ns))) for rows in self._rows] for _ in range(2))
        self._of_key: dict[int, list[int]] = {}
        registrars = workload.registrars
        for answer, times in zip(fired, applied, strict=True):
            for operation, sent_ns, at_ns in zip(answer.events.operation, answer.sent_ns, times, strict=False):
                self._fired[operation % registrars][operation // registrars] = sent_ns
                self._own[operation % registrars][operation // registrars] = at_ns
            if workload.keys:
                for key, at_ns in zip(answer.events.keys, times, strict=False):
                    self._of_key.setdefault(key, []).append(at_ns)
        for of_key in self._of_key.values():
            of_key.sort()

    def fired_ns(self, registrar: int) -> array[int]:
        """When each operation's own event was fired; 0 = it was not fired."""
        return self._fired[registrar]

    def between(self, registrar: int, row: int, from_ns: int, until_ns: int) -> bool:
        """Whether an event on the operation's keys was applied from `from_ns` on and before `until_ns`."""
        if not self._workload.keys:
            return from_ns <= self._own[registrar][row] < until_ns
        watched = watched_keys(self._workload, self._rows[registrar].keys[row])
        found = [self._of_key[key] for key in watched if key in self._of_key]
        return any(bisect_left(times, from_ns) < bisect_left(times, until_ns) for times in found)


def judge(
    workload: Workload, answers: Sequence[Registered], applied: Applied, start_ns: int, *, partial: bool = False
) -> Judgement:
    """Judge every operation that was registered. In a partial run, an operation without an outcome is not lost."""
    counts = dict.fromkeys(NAMES, 0)
    lost = duplicated = early = overruled = mistaken = expected = undecided = misjudged = overtaken = (
        last_delivered_ns
    ) = 0
    examples: list[str] = []
    completion: list[int] = []
    intended: list[int] = []
    expiry: list[int] = []
    daemon: list[int] = []
    shortest, longest = workload.timeout_ns - MARGIN_NS, workload.timeout_ns + MARGIN_NS

    def show(what: str, registrar: int, row: int, span: tuple[int, int]) -> None:
        if len(examples) < EXAMPLES_MAX:
            examples.append(
                f"{what}: {story(answers[registrar], row, span, start_ns, applied.fired_ns(registrar)[row])}"
            )

    for answer, planned in zip(answers, spans(workload, [answer.rows for answer in answers]), strict=True):
        rows = answer.rows
        duplicated += max(answer.outcomes - sum(map(bool, answer.deadline_ns)), 0)
        table = zip(
            answer.sent_ns, answer.marked_ns, planned.earliest_ns, planned.latest_ns, answer.deliveries, answer.state,
            answer.settled_ns, answer.deadline_ns, answer.fired_ns, applied.fired_ns(rows.registrar),
            answer.delivered_ns,
            strict=False,
        )  # fmt: skip
        for row, columns in enumerate(table):
            sent, marked, earliest, latest, deliveries, state, settled, deadline, stamp, fired, delivered_ns = columns
            span = (earliest, latest)
            expected += latest > workload.timeout_ns
            if not deliveries:
                if not partial:
                    lost += 1
                    show("lost", rows.registrar, row, span)
                continue
            counts[state] += 1
            last_delivered_ns = max(last_delivered_ns, delivered_ns or settled)
            if deliveries > 1:
                duplicated += deliveries - 1
                show("duplicated", rows.registrar, row, span)
            if state == EXPIRED:
                daemon.append(settled - deadline)
                if delivered_ns:
                    expiry.append(delivered_ns - deadline)
                if settled < deadline or deadline < sent + workload.timeout_ns or 0 < delivered_ns < deadline:
                    early += 1
                    show("early", rows.registrar, row, span)
                if applied.between(rows.registrar, row, marked, deadline):
                    overruled += 1
                    show("expired, though its event was applied before its deadline", rows.registrar, row, span)
            elif state == COMPLETED:
                overtaken += 0 < fired < sent
                if fired and stamp and stamp != fired and not workload.keys:
                    mistaken += 1
                    show("completed with another event's value", rows.registrar, row, span)
                if delivered_ns and stamp:
                    completion.append(delivered_ns - stamp)
                    if not workload.keys:
                        intended.append(delivered_ns - start_ns - rows.due_ns[row] - rows.delay_ns[row])
            if latest < shortest:
                right = state == COMPLETED
            elif earliest > longest:
                right = state == EXPIRED
            else:
                undecided += 1
                continue
            if not right:
                misjudged += 1
                show("misjudged", rows.registrar, row, span)
    return Judgement(
        registered=sum(len(answer.sent_ns) for answer in answers),
        completed=counts[COMPLETED],
        expired=counts[EXPIRED],
        cancelled=counts[CANCELLED],
        failed=sum(counts.values()) - counts[COMPLETED] - counts[EXPIRED] - counts[CANCELLED],
        expected_expired=expected,
        lost=lost,
        duplicated=duplicated,
        early=early,
        overruled=overruled,
        mistaken=mistaken,
        undecided=undecided,
        misjudged=misjudged,
        overtaken=overtaken,
        examples=examples,
        completion_ns=completion,
        completion_intended_ns=intended,
        expiry_ns=expiry,
        expiry_daemon_ns=daemon,
        last_delivered_ns=last_delivered_ns,
    )


def story(answer: Registered, row: int, span: tuple[int, int], start_ns: int, fired_ns: int) -> str:
    """The history of an operation, for people: times in ms since its registration was due."""
    due_ns = start_ns + answer.rows.due_ns[row]

    def ms(at_ns: int) -> str:
        return f"{(at_ns - due_ns) / 1e6:.1f} ms" if at_ns else "never"

    planned = f"{span[0] / 1e6:.1f}" + (f" to {span[1] / 1e6:.1f}" if span[0] != span[1] else "")
    times = {
        "registered": answer.sent_ns[row],
        "event fired": fired_ns,
        "deadline": answer.deadline_ns[row],
        NAMES.get(answer.state[row], "settled"): answer.settled_ns[row],
    }
    events = ", ".join(f"{what} {ms(at_ns)}" for what, at_ns in times.items())
    return f"operation {row} of registrar {answer.rows.registrar}, to complete after {planned} ms: {events}"
