"""The results of a run, in sentences. Pure functions of a few numbers: the page shows the sentences first.

This machine was overloaded, it could not send this rate in time: p99 352 ms from the intended time, 184 ms from the ...
With a timeout of 100 ms, 16.2% would expire instead of 7.9%, and 334 would be in flight instead of 471: 29% fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from timerd_client.audit.journal import OPEN_END
from timerd_spark.reports.audit import counted

LATE_MS: Final = 10.0  # if calls are later than this at p99, the run did not follow its plan
OTHERS: Final = 0.10  # a run is disturbed if other work takes more than this share of the processors
SAVING: Final = 0.10  # of the operations in flight: a smaller saving is not worth a sentence


Row = Mapping[str, Any]  # of a result, by the names of its columns


class Verdict(NamedTuple):
    """A sentence, and whether the result is good, bad, or neither ("")."""

    kind: str  # "good", "bad" or ""
    text: str


def of_machine(played: Row, seen: Row, load: tuple[float, float] | None) -> Verdict:
    """Whether the run followed its plan. `played` is the row of a report, `seen` that of what all clients saw."""
    behind = seen["behind_p99_ms"]
    intended, registered = ms(seen["latency_p99_ms"]), ms(played["latency_p99_ms"])
    two = (
        f"p99 {intended} from the intended time, {registered} from the registration" if registered else "none completed"
    )
    of_load = ""
    if load is not None:
        busy, others = load
        of_load = f" Its processors were {busy:.0%} busy" + (f", {others:.0%} by other programs." if others else ".")
    if behind > LATE_MS:
        why = "other work took part of it" if load and load[1] > OTHERS else "it could not send this rate in time"
        return Verdict(
            "bad",
            f"This machine was overloaded, {why}: {two}. One call in a hundred was more than {ms(behind)} late."
            f"{of_load} Give a lower rate, or a machine that does nothing else, before you quote a figure.",
        )
    is_disturbed = load is not None and load[1] > OTHERS
    kept = "was disturbed by other work, and kept up" if is_disturbed else "kept up"
    late, longer = f"{ms(behind)} (at most {ms(seen['behind_max_ms'])})", ms(seen["added_p99_ms"])
    text = (
        f"This machine {kept}. Of the calls, 99 % were sent within {late} of their time. Of the operations, 99 % "
        f"waited at most {longer} longer than planned (the worst {ms(seen['added_max_ms'])}). "
        + (f"Waits of completed ones: {two}." if registered else "None completed.")
    )
    if is_disturbed:
        return Verdict("bad", f"{text}{of_load} Figures of another run may differ.")
    return Verdict("good", text + of_load)


def of_outcomes(row: Row) -> Verdict:
    """The outcomes of operations: `row` is of a report."""
    parts = [f"{row['timeout_ratio']:.2%} of {row['n']:,} operations expired"]
    if row["expired"]:
        parts.append(f"{ms(row['lateness_p99_ms'])} late at p99 and {ms(row['lateness_max_ms'])} at most")
    others = [f"{row[name]:,} were {name}" for name in ("cancelled", "failed") if row[name]]
    return Verdict("", ", ".join(parts) + (f"; {' and '.join(others)}" if others else "") + ".")


def of_audit(step: Mapping[str, Any]) -> Verdict:
    """The result of the audit. `step` is its step in state.json."""
    if (findings := step.get("findings")) is None:
        return Verdict("", f"There was no audit: {step.get('not_audited', '').removeprefix('audit(): ')}.")
    arenas, causes, follows = step.get("arenas", ()), step.get("causes", ()), step.get("follows", 0)
    outcomes, segments, gaps = (sum(arena[name] for arena in arenas) for name in ("outcomes", "segments", "gaps"))
    base = (
        f"{outcomes:,} outcomes were computed again from the events in {counted(segments, 'segment')} of the journal, "
        f"with {counted(gaps, 'gap')}"
    )
    defects = findings - len(causes) - follows
    if defects:
        more = f" Besides, the journal is not whole: {causes[0]}." if causes else ""
        return Verdict("bad", f"The audit disagrees with the daemon: {base}, and {defects:,} defects were found.{more}")
    if causes:
        others = f" There is more like it: {counted(len(causes) - 1, 'finding')}." if len(causes) > 1 else ""
        may = f" {follows:,} outcomes or rows after it disagree, which may come from it." if follows else ""
        whole = "The journal may lack its last rows" if set(causes) == {OPEN_END} else "The journal is not whole"
        return Verdict("bad", f"{whole}: {causes[0]}.{others} Otherwise the audit holds: {base}.{may}")
    if not outcomes:
        return Verdict("", "There was nothing to audit: no operation has settled.")
    if not all(arena["ended"] for arena in arenas):
        return Verdict(
            "", f"The audit holds up to the last row: {base}. The journal's end is open: what came later is not known."
        )
    return Verdict("good", f"The audit holds: {base}, and each is as it should be.")


def in_short(step: Mapping[str, Any]) -> str:
    """The result of the audit in a few words."""
    if (findings := step.get("findings")) is None:
        return "no audit"
    if findings > len(step.get("causes", ())) + step.get("follows", 0):
        return "the audit disagrees with the daemon"
    if findings:
        return "the journal's end is not known" if set(step["causes"]) == {OPEN_END} else "the journal is not whole"
    return "the audit holds" + ("" if all(each["ended"] for each in step.get("arenas", ())) else ", the end is open")


def of_timeouts(row: Row, asked: Sequence[Row]) -> Verdict | None:
    """The savings of another timeout: `row` is of a report, `asked` are the rows of its what_if().

    The sentence is about the longest timeout that would save a tenth of the operations in flight.
    """
    now = row["timeout_ratio"]
    known = [one for one in asked if not one["beyond"] and one["in_flight"] is not None]
    flying = flying_now(row, known)
    if not flying:
        return None
    saving = [one for one in known if one["in_flight"] <= (1 - SAVING) * flying and one["timeout_ratio"] >= now]
    if not saving:
        return Verdict(
            "",
            f"No timeout that the data cover ({len(known)} compared) would save a tenth of the operations in flight.",
        )
    best = max(saving, key=lambda one: one["timeout_ns"])
    saved = 1 - best["in_flight"] / flying
    return Verdict(
        "",
        f"With a timeout of {ms(best['timeout_ns'] / 1e6)}, {best['timeout_ratio']:.1%} would expire instead of "
        f"{now:.1%}, and {number(best['in_flight'])} would be in flight instead of {number(flying)}: {saved:.0%} "
        "fewer.",
    )


def flying_now(row: Row, asked: Sequence[Row]) -> float:
    """The mean number of operations that were in flight, to compare with `asked`, the rows of what_if(); 0: not known.

    `row` is of a report. A report computes its mean from the rate of outcomes, but what_if() computes with the rate of
    registrations. So the mean is scaled to the rate of registrations.
    """
    rate = next((one["rate"] for one in asked if one["rate"]), 0.0)
    return float(rate * (row["in_flight_mean"] or 0.0) / (row["rate"] or 1.0))


def number(value: float) -> str:
    """A mean of a number of operations: "1,204", "9.3", "0.12"."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def ms(value: float | None) -> str:
    """Milliseconds for people, with three digits: "0.42 ms", "184 ms", "1.5 s"."""
    if value is None:
        return ""
    if value >= 1_000:
        return f"{value / 1_000:,.3g} s" if value < 1e6 else f"{value / 1_000:,.0f} s"
    return f"{value:.3g} ms"
