"""The figures that matter to users: the first page of bench/RESULTS.md, which bench/lib/report.py writes.

First come operations with three keys, like the requests of Kafka's article, beside Kafka's own figures. Then come the
figures of a quiet machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.lib.common import Row
from bench.lib.quoted import MACHINE_OF_THE_HOUR, SAME_HOUR


class Extract(NamedTuple):
    """Rows of a suite's table, or rows that were measured elsewhere (`given`)."""

    title: str
    says: str
    suite: str = ""
    table: str = ""
    where: tuple[tuple[str, object], ...] = ()  # columns and values: only rows with these
    columns: tuple[str, ...] = ()
    given: Sequence[Row] = ()


class Part(NamedTuple):
    """A chapter of the first page."""

    title: str
    extracts: tuple[Extract, ...]


def quoted() -> list[Row]:
    """Kafka's own figures, and timerd's figures of the same hour."""
    return [
        {
            "program": row.program,
            "requests a second": " to ".join(f"{rate:,}" for rate in row.rates),
            "CPU for a request": " to ".join(dict.fromkeys(f"{cpu_us:.1f}" for cpu_us in row.cpu_us)) + " us",
        }
        for row in SAME_HOUR
    ]


FIRST_PAGE = (
    Part(
        "Three keys",
        (
            Extract(
                "End to end, three processes",
                "Each operation has three keys, as the requests of Kafka's article have. One process registers, "
                "another one fires, and every outcome is compared with the plan. A row has the worst of each figure "
                "over its runs of 10 s.",
                "ladder",
                "goals",
                (("keys", 3),),
                (
                    "keys", "api", "case", "transport", "rate", "runs", "reached_rate", "sustained", "violations",
                    "misjudged_percent", "completion_p50_ms", "completion_p99_ms", "cpu_us", "stolen_percent",
                ),
            ),
            Extract(
                "The article's experiment, the core alone",
                "The requests of the article wait on the same three keys. timerd's core runs in the process that "
                "makes the requests, without the daemon's sockets. It keeps up with a rate if it reaches 99 % of the "
                "rate and refuses nothing.",
                "article",
                "saturation",
                (("design", "timerd"),),
                ("case", "saturates_after", "right_up_to", "asked_up_to", "cpu_us_per_request", "memory_mib"),
            ),
            Extract(
                "Kafka's own figures",
                "Kafka's purgatory is another program, and no suite here runs it. It was measured in process, without "
                "sockets and clients, with the article's load, in another hour than the tables above. The machine was "
                f"{MACHINE_OF_THE_HOUR}. timerd's core had the same load in that hour. The figures are the least and "
                "the most of that hour's runs. Compare the two rows with each other, and not with the tables above.",
                given=quoted(),
            ),
        ),
    ),
    Part(
        "A quiet machine",
        (
            Extract(
                "Latency of an operation",
                "From the call of fire() in one process to the return of result() in the owner, with 2 ms of rest "
                "before each operation. A row has the median of the rounds, and the worst round beside it. *hops* are "
                "two bare hops of pyzmq, *seqpacket* is a hub in Python without I/O threads.",
                "quiet",
                "latency",
                columns=("way", "rounds", "p50_us", "p99_us", "p50_us_worst", "p99_us_worst", "why_not"),
            ),
            Extract(
                "Cost of an operation",
                "CPU time and switch-ins for one operation, summed over all threads of all processes.",
                "quiet",
                "cost",
                columns=("way", "rate", "cpu_us", "switch_ins", "cpu_us_worst", "switch_ins_worst"),
            ),
            Extract(
                "Over two bare hops",
                "timerd's latency as a multiple of the latency of two bare hops in the same run.",
                "quiet",
                "ratios",
                columns=("way", "over", "p50", "p99", "p50_worst", "p99_worst"),
            ),
        ),
    ),
)  # fmt: skip
