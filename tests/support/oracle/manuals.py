"""The state of a daemon on a manual clock."""

from __future__ import annotations

from timerd.testing import Manual


def pending(manual: Manual) -> int:
    """The number of pending operations."""
    manual._driver.settle()
    with manual._driver.daemon.map_arena() as reader:
        return sum(op.state == 1 for op in reader.ops.used())
