"""The parts of top's screen as text: what `--once` prints, and what the panels of the screen show.

A part is lines of text; a bar is made of blocks, and a history of the last minute of bars of eight heights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from timerctl.instance import NS
from timerctl.listing import Row
from timerctl.show.table import terminal_width
from timerctl.show.text import size, span
from timerd_shm.read.histogram import Summary

from .samples import GIVING_WAY, Fill, Sample
from .verdict import Finding
from .views import View

STEPS: Final = " ▁▂▃▄▅▆▇█"
BAR: Final = 10  # columns of a bar
SHOWN: Final = ("registered", "completed", "expired", "cancelled", "failed", "events", "commands")
LIMITS: Final = 8  # lines of limits
IN_BYTES: Final = ("payload_bytes", "ring_bytes")


def frame(
    samples: Sequence[Sample], found: Sequence[Finding], tables: Sequence[tuple[View, list[Row]]]
) -> Iterator[str]:
    """The whole screen once, the tables below each other."""
    yield title(samples[-1])
    yield from sentences(found)
    yield ""
    yield from beside(rates(samples), latencies(samples[-1]), limits(samples[-1]))
    for view, rows in tables:
        yield ""
        yield f"{view.name} ({len(rows)})"
        cells = [view.cells(row) for row in rows]
        yield from (*view.table.lines(cells), *view.table.left_out(cells)) if rows else (view.nothing,)


def title(sample: Sample) -> str:
    """The instance in a line."""
    stats = sample.stats
    life = f"pid {stats['pid']}, up {span(round(stats['uptime_s'] * NS))}" if stats["alive"] else "not running"
    turns = f"turns take {100 * sample.turn_share:.1f} % of a core"
    return f"timerd {stats['instance']}: {life}; arena {size(stats['arena_bytes'])}; {turns}"


def sentences(found: Sequence[Finding]) -> Iterator[str]:
    """The findings, each with what helps."""
    for finding in found:
        yield f"{finding.text} {finding.help}".rstrip()


def rates(samples: Sequence[Sample]) -> list[str]:
    """Rates, each with its last minute beside it; and the numbers of pending operations and clients."""
    newest = samples[-1]
    lines = ["a second                the last minute"]
    for name in SHOWN:
        history = [sample.rates[name] for sample in samples]
        lines.append(f"{name:11} {newest.rates[name]:10,.0f}  {spark(history, 20)}")
    counters = newest.stats["counters"]
    lines.append(f"{'pending':11} {counters['pending']:10,}  clients {counters['clients']}")
    return lines


def latencies(sample: Sample) -> list[str]:
    """Percentiles of the last second."""
    lines = [f"{'of the last second':20} {'p50':>8} {'p99':>8} {'max':>8}"]
    for name, summary in (
        ("waited", sample.wait),
        ("expired late by", sample.lateness),
        ("CPU of a turn", sample.turn),
    ):
        lines.append(f"{name:20} " + " ".join(f"{figure:>8}" for figure in _figures(summary)))
    return lines


def _figures(summary: Summary) -> tuple[str, ...]:
    return tuple(span(each) if summary.count else "-" for each in (summary.p50, summary.p99, summary.max))


def limits(sample: Sample) -> list[str]:
    """The fullest limits, with the time when they are full at this rate."""
    lines = [f"{'limits':24} {'used':>10} {'full in':>12}"]
    for fill in [each for each in sample.fills if each.name not in GIVING_WAY][:LIMITS]:
        full = "-" if fill.full_in_ns is None else span(fill.full_in_ns)
        lines.append(f"{fill.name.replace('_', ' '):13} {bar(fill.share)} {_used(fill):>10} {full:>12}")
    return lines


def _used(fill: Fill) -> str:
    return size(fill.used) if fill.name in IN_BYTES else f"{fill.used:,}"


def bar(share: float) -> str:
    """A share from 0 to 1 as a bar."""
    eighths = round(min(max(share, 0.0), 1.0) * BAR * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")).ljust(BAR, "·")


def spark(values: Sequence[float], width: int) -> str:
    """A history as bars, the newest on the right: each is the mean of as many values as one column has."""
    if not values:
        return ""
    each = max(1, -(-len(values) // width))
    parts = [values[max(0, end - each) : end] for end in range(len(values), 0, -each)][::-1]
    means = [sum(part) / len(part) for part in parts]
    top = max(means)
    return "".join(STEPS[round(mean / top * 8)] if top else STEPS[0] for mean in means)


def beside(*parts: Sequence[str]) -> Iterator[str]:
    """Parts beside each other if the terminal is wide enough, else below each other."""
    widths = [max(map(len, part)) for part in parts]
    row: list[int] = []
    rows: list[list[int]] = [row]
    for at, wide in enumerate(widths):
        if row and sum(widths[each] + 3 for each in row) + wide > max(terminal_width(), 1):
            row = []
            rows.append(row)
        row.append(at)
    for number, members in enumerate(rows):
        if number:
            yield ""
        for line in range(max(len(parts[at]) for at in members)):
            cells = ((parts[at][line] if line < len(parts[at]) else "").ljust(widths[at]) for at in members)
            yield "   ".join(cells).rstrip()


def document(sample: Sample, found: Sequence[Finding], tables: Sequence[tuple[View, list[Row]]]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "instance": sample.stats["instance"],
        "alive": sample.stats["alive"],
        "stopped": sample.stats["stopped"],
        "findings": [{"level": each.level.name.lower(), "text": each.text, "help": each.help} for each in found],
        "rates": sample.rates,
        "wait_ns": sample.wait._asdict(),
        "lateness_ns": sample.lateness._asdict(),
        "turn_cpu_ns": sample.turn._asdict(),
        "turn_share": sample.turn_share,
        "limits": [each._asdict() | {"gives_way": each.name in GIVING_WAY} for each in sample.fills],
        "groups": [each._asdict() | {"holders": [one._asdict() for one in each.holders]} for each in sample.groups],
        **{view.name: rows for view, rows in tables},
    }
