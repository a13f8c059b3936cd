"""Whether all is well with an instance, and what to do if it is not: sentences, the most urgent first.

`timerctl top` and `timerctl web` show them, and the alert rules of docs/grafana are about the same things.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from timerctl.instance import NS
from timerctl.show.text import span

from .groups import Group
from .samples import GIVING_WAY, Fill, Sample

FULL: Final = 0.9  # of a limit
SOON_NS: Final = 600 * NS  # a limit that is full by then is worth a sentence, if it is half full
LATE_NS: Final = 50_000_000  # an expiry that is later than this was delayed by something
BUSY: Final = 0.8  # of one core
WAITS_NS: Final = 5 * NS  # an outcome or call that waits for a member for longer is worth a sentence
# The flag to raise for each limit; `payload_bytes` are the bytes of the blocks.
FLAGS: Final = {
    "ops": "--capacity",
    "nodes": "--nodes",
    "watermarks": "--watermarks",
    "clients": "--clients",
    "answers": "--clients",
    "payload_bytes": "--blocks",
}


class Level(IntEnum):
    """How urgent a finding is."""

    FINE = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


class Finding(NamedTuple):
    """A trouble of an instance, and its remedy."""

    level: Level
    text: str
    help: str = ""  # a sentence, or a command line


def verdict(sample: Sample, before: Sample) -> list[Finding]:
    """The findings of an instance: of this sample, and of what has changed since an earlier one."""
    found = sorted(findings(sample, before), key=lambda finding: -finding.level)
    # A command line is for this instance, wherever it is copied to.
    timerctl = f"timerctl --instance {sample.stats['instance']} "
    own = [each._replace(help=each.help.replace("timerctl ", timerctl)) for each in found]
    return own or [Finding(Level.FINE, "All is well.")]


def findings(sample: Sample, before: Sample) -> Iterator[Finding]:
    """The troubles of an instance, in no order."""
    stats, counters = sample.stats, sample.stats["counters"]
    if not stats["alive"]:
        yield Finding(
            Level.ERROR,
            "The daemon is not running: this is what its arena holds.",
            f"timerd --instance {stats['instance']}",
        )
    elif stats["stopped"]:
        yield Finding(
            Level.ERROR, "The daemon is stopped, and nothing changes until it goes on.", f"kill -CONT {stats['pid']}"
        )
    if counters.get("journal_thread_dead"):
        yield Finding(Level.ERROR, "The journal is not written any more: its thread has ended.", "timerctl errors")
    elif dropped := _grown("journal_rows_dropped", sample, before):
        yield Finding(Level.WARNING, f"The journal lacks {dropped} rows.", "timerctl errors")
    for fill in sample.fills:
        yield from _of_limit(fill)
    if sample.lateness.count and sample.lateness.p99 > LATE_NS:
        yield Finding(
            Level.WARNING,
            f"Expiries are late: {span(sample.lateness.p99)} at p99. The daemon gets too little of a processor, or a "
            "turn is long.",
        )
    if sample.turn_share > BUSY:
        yield Finding(
            Level.WARNING,
            f"The daemon takes {100 * sample.turn_share:.0f} % of a core: it is near what one daemon does.",
        )
    if refused := sample.rates["rejected"]:
        yield Finding(Level.WARNING, f"{refused:,.0f} commands a second are refused.", "timerctl errors")
    for group in sample.groups:
        yield from _of_group(group)
    if letters := sum(group.letters for group in sample.groups):
        level = Level.WARNING if _grown("dead_letters", sample, before) else Level.NOTE
        yield Finding(level, f"{letters} dead letters: calls that are over without success.", "timerctl calls --failed")
    if died := _grown("clients_died", sample, before):
        yield Finding(Level.NOTE, f"{died} clients ended without a goodbye.", "timerctl clients")
    if gaps := _grown("gaps", sample, before):
        yield Finding(Level.WARNING, f"The daemon was stopped or starved {gaps} times for more than a second.")


def _of_group(group: Group) -> Iterator[Finding]:
    for holder in group.holders:
        state = "is stopped" if holder.stopped else f"has been silent for {span(holder.silent_ns)}"
        yield Finding(
            Level.WARNING,
            f"Group {group.name} is held up: {holder.who} {state}, and has {holder.held} of its outcomes and calls.",
            f"kill -CONT {holder.pid}" if holder.stopped else "timerctl clients",
        )
    if group.backlog and not group.members:
        text = f"Group {group.name} has no member, and {group.backlog} outcomes and calls wait: start a worker of it."
        yield Finding(Level.WARNING, text)
    elif group.waits_ns > WAITS_NS:
        yield Finding(
            Level.WARNING,
            f"Group {group.name} is behind: its first outcome or call has waited for {span(group.waits_ns)}.",
            f"timerctl calls --group {group.name}",
        )


def _of_limit(fill: Fill) -> Iterator[Finding]:
    if fill.name in GIVING_WAY:
        return
    flag = FLAGS.get(fill.name)
    remedy = f"Raise {flag} at the next start, or see who holds them: timerctl clients" if flag else "timerctl clients"
    what = fill.name.replace("_", " ")
    if fill.share >= FULL:
        yield Finding(
            Level.ERROR, f"{100 * fill.share:.0f} % of the {what} are used: {fill.used:,} of {fill.limit:,}.", remedy
        )
    elif fill.share >= 0.5 and fill.full_in_ns is not None and fill.full_in_ns <= SOON_NS:
        yield Finding(
            Level.WARNING,
            f"The {what} are full in {span(fill.full_in_ns)} at this rate ({fill.per_s:,.0f} a second).",
            remedy,
        )


def _grown(counter: str, sample: Sample, before: Sample) -> int:
    """By how much a counter has grown since the earlier sample."""
    value: int = sample.stats["counters"].get(counter, 0) - before.stats["counters"].get(counter, 0)
    return max(value, 0)
