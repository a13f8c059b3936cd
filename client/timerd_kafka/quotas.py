"""The quotas of client ids, over all workers of the cluster.

Each worker counts the use of a client id in a number of its own, in the client id's file, which all workers map. So a
worker sees the counts of the others without asking, and the counts of a killed worker stay.

A worker that forgets a client id removes the file, and marks the file as removed. Other workers that have mapped it
see the mark, and go on with the next file of this name.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from pathlib import Path

from timerd_client.operations import Quota
from timerd_kafka.numbers import Numbers

CLIENTS_MAX = 1_000  # client ids that a worker counts; if there are more, the one quiet for longest is forgotten
THROTTLE_MAX_S = 3_600.0  # an answer has no room for 25 days, as after 3 MB with a quota of a byte a second


class Quotas:
    """The quotas of one kind: for produced bytes, or for fetched bytes."""

    def __init__(self, directory: Path, rate: float | None, window: float, worker: int, workers: int) -> None:
        """`rate` is in bytes a second, for each client id; None means no quota."""
        self._directory, self._rate, self._window = directory, rate, window
        self._worker, self._workers = worker, workers
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        if rate is not None:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def record(self, client_id: str, size: int, now: float) -> float:
        """Note a use of `size` bytes. Returns the seconds for which to throttle the client."""
        if self._rate is None or not size:
            return 0.0
        client = self._clients.get(client_id)
        if client is None:
            path = self._directory / hashlib.sha256(client_id.encode()).hexdigest()
            quota = Quota(self._rate, self._window)
            client = self._clients[client_id] = _Client(path, quota, self._worker, self._workers)
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)[1].remove()
        self._clients.move_to_end(client_id)
        return min(client.record(size, now), THROTTLE_MAX_S)


class _Client:
    """The use of one client id at each worker."""

    def __init__(self, path: Path, quota: Quota, worker: int, workers: int) -> None:
        self._path, self._quota, self._worker, self._workers = path, quota, worker, workers
        self._file = self._open(path)
        self._seen = self._used

    def _open(self, path: Path) -> Numbers:
        """The use at each worker, followed by whether the file was removed."""
        return Numbers(path, self._workers + 1)

    @property
    def _used(self) -> int:
        """The use at all workers."""
        return sum(self._file.values[: self._workers])

    @property
    def _is_removed(self) -> bool:
        return self._file.values[self._workers] != 0

    def record(self, size: int, now: float) -> float:
        if self._is_removed:
            self._seen -= self._used  # the rest of the old file is still to be counted, and all of the new file
            self._file.close()
            self._file = self._open(self._path)
        self._file.values[self._worker] += size
        used = self._used
        throttle = self._quota.record(used - self._seen, now)
        self._seen = used
        return throttle

    def remove(self) -> None:
        """Remove the file, and tell the workers that have mapped it. If another worker has done so, do nothing."""
        is_removed = self._is_removed
        self._file.close()
        if is_removed:
            return
        removed = self._path.with_name(f"{self._path.name}.{self._worker}")
        try:
            self._path.rename(removed)
        except FileNotFoundError:
            return  # another worker is just removing it
        there = self._open(removed)  # perhaps not the file that was mapped here: it has just been replaced
        there.values[self._workers] = 1
        there.close()
        removed.unlink()
