"""Counts words in a table of Faust: python faust_counts.py BOOTSTRAP DATA worker

Each line of output is the table after a record, as JSON. The table is kept in memory, so after a restart it comes from
its changelog alone.
"""

from __future__ import annotations

import json
import sys

import faust

PARTITIONS = 4

bootstrap, data = sys.argv.pop(1), sys.argv.pop(1)
app = faust.App(
    "faust-counts",
    broker=f"kafka://{bootstrap}",
    datadir=data,
    store="memory://",
    topic_partitions=PARTITIONS,
    topic_replication_factor=3,
    web_enabled=False,
)
words = app.topic("faust-words", key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
totals = app.Table("totals", default=int, partitions=PARTITIONS)


def show() -> None:
    """Print the table. Faust takes sys.stdout for its log."""
    print(json.dumps({"table": dict(sorted(totals.items()))}), flush=True, file=sys.__stdout__)


async def count(stream: faust.Stream) -> None:
    """Count each word."""
    async for word in stream:
        totals[word.decode()] += 1
        show()


app.agent(words)(count)

if __name__ == "__main__":
    app.main()
