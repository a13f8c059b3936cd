"""The memory of all processes of a run, measured four times a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psutil

SAMPLE_S: Final = 0.25


class Memory:
    """The most memory that this process and its children (the JVM, Python workers, a daemon) had at once."""

    def __init__(self) -> None:
        self.peak = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,), name="timerd-memory", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: threading.Event) -> None:
        own = psutil.Process()
        while not ended.wait(SAMPLE_S):
            total = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total)
