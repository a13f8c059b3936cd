"""The poller of a Redis sorted set: python -m bench.rivals.alternative.poller DIRECTORY

Each millisecond it asks Redis for due operations. After a full answer (1,000 operations) it asks again at once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from .scripts import KEYS, POLL_S, Redis, shas


def main(directory: Path) -> None:
    """Poll until this process is terminated, or the connection is lost."""
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
