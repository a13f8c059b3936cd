"""The poller of a Redis sorted set: python -m alternative.poller DIRECTORY

Each millisecond it asks what is due, and again at once where that was more than one call takes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from .scripts import KEYS, POLL_S, Redis, shas


def main(directory: Path) -> None:
    """Until it is terminated, or the server is gone."""
    with Redis(directory) as client:
        _, _, sha = shas(client)
        while True:
            reply = client.ask("EVALSHA", sha, 2, *KEYS, time.monotonic_ns() // 1_000)
            if not reply:
                return
            if int(reply[1:]) < 1_000:
                time.sleep(POLL_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
