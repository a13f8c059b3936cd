"""The quotas of client ids, over all workers of the cluster.

Each worker counts the use of a client id in a number of its own, in the client id's file, which all workers map. So a
worker sees the counts of the others without asking, and the counts of a killed worker stay.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from pathlib import Path

from timerd_client.operations import Quota
from timerd_kafka.numbers import Numbers

CLIENTS_MAX = 1_000  # client ids that a worker counts; if there are more, the one quiet for longest is forgotten


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
            client = self._clients[client_id] = _Client(
                self._directory / hashlib.sha256(client_id.encode()).hexdigest(),
                Quota(self._rate, self._window),
                self._worker,
                self._workers,
            )
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)[1].remove()
        self._clients.move_to_end(client_id)
        return client.record(size, now)


class _Client:
    """The use of one client id at each worker."""

    def __init__(self, path: Path, quota: Quota, worker: int, workers: int) -> None:
        self._path, self._used = path, Numbers(path, workers)
        self._quota, self._worker = quota, worker
        self._seen = sum(self._used.values)

    def record(self, size: int, now: float) -> float:
        self._used.values[self._worker] += size
        total = sum(self._used.values)
        throttle = self._quota.record(total - self._seen, now)
        self._seen = total
        return throttle

    def remove(self) -> None:
        """Remove the file. Other workers go on with the file that they have mapped, and do not see a new one."""
        self._used.close()
        self._path.unlink(missing_ok=True)
