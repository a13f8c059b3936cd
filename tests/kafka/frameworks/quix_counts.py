"""Counts words in a state of Quix Streams: python quix_counts.py BOOTSTRAP DATA

Each line of output is a word and its count, as JSON. The state is a store in DATA, and has a changelog in Kafka.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from quixstreams import Application, State


def count(word: str, state: State) -> dict[str, Any]:
    """Count a word. The state is that of the record's key, which is the word."""
    total = state.get("total", 0) + 1
    state.set("total", total)
    return {"word": word, "total": total}


def show(counted: dict[str, Any]) -> None:
    """Print a word and its count."""
    print(json.dumps(counted), flush=True)


def main(bootstrap: str, data: str) -> None:
    """Count until SIGTERM."""
    app = Application(
        broker_address=bootstrap,
        consumer_group="quix-counts",
        auto_offset_reset="earliest",
        state_dir=data,
        use_changelog_topics=True,
    )
    words = app.topic("quix-words", key_deserializer="str", value_deserializer="str")
    frame = app.dataframe(words)
    frame = frame.apply(count, stateful=True)
    frame.update(show)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
