"""Ids of producers. Each is given once in the cluster's life."""

from __future__ import annotations

from pathlib import Path

BLOCK = 1_000  # ids that a broker reserves at once; if it is killed, the rest of its block is never used


class ProducerIds:
    """The ids that this broker may give: every `workers`th number."""

    def __init__(self, path: Path, worker: int, workers: int) -> None:
        self._path, self._worker, self._workers = path, worker, workers
        self._next = self._taken = int(path.read_text()) if path.exists() else 0

    def next(self) -> int:
        """A new id. Raises OSError if a new block cannot be reserved."""
        if self._next == self._taken:
            taken = self._taken + BLOCK
            draft = self._path.with_suffix(".new")
            draft.write_text(str(taken))
            draft.replace(self._path)
            self._taken = taken  # after the write: no id is given before the file shows that it is reserved
        number, self._next = self._next, self._next + 1
        return number * self._workers + self._worker
