"""Free ports for clusters that a test starts at a given port."""

from __future__ import annotations

import random

from timerd_kafka.wire.ports import LOWEST, check_free


def is_free(port: int) -> bool:
    try:
        check_free("127.0.0.1", port)
    except OSError:
        return False
    return True


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports. They are below LOWEST, so no other cluster takes one by itself."""
    begins = random.sample(range(5_000, LOWEST - count), 100)
    return next(port for port in begins if all(map(is_free, range(port, port + count))))
