"""The number of a daemon's pending operations."""

from __future__ import annotations

from support.real.daemons import Daemon


def pending(daemon: Daemon) -> int:
    return int(daemon.stats()["purgatories"]["default"]["counters"]["pending"])
