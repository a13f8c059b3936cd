"""The data directory of a cluster: one cluster at a time uses it, with the same number of brokers each time."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

from timerd_kafka.cluster.catalog import TOPICS, Catalog
from timerd_kafka.cluster.settings import Settings, SettingsError
from timerd_kafka.faults.rules import FAULTS

FORMAT = 1
PORTS = "ports.json"
LOGS = {"kafka.log", "timerd.log"}
OWN = {"cluster.lock", "cluster_id", TOPICS}  # files of a cluster that was killed during its first start


def claim(settings: Settings) -> int:
    """Take the directory for this cluster, and make missing files. Returns a descriptor that holds the directory.

    Raises SettingsError if another cluster uses the directory, if it was made with another number of workers, if it
    cannot be written or has files of other programs, or if its own files are damaged or missing.
    """
    try:
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        strangers = {path.name for path in settings.data.iterdir()} - LOGS
    except OSError as error:
        raise SettingsError(f"data={settings.data}: {error.strerror}; give a directory that may be written") from None
    if strangers and "cluster.json" not in strangers and not strangers <= OWN:
        raise SettingsError(
            f"data={settings.data}: it has other files ({sorted(strangers)[0]}); give a directory for the cluster alone"
        )
    descriptor = os.open(settings.data / "cluster.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SettingsError(
            f"data={settings.data}: another cluster runs on it; end that cluster, or give another directory"
        ) from None
    described = settings.data / "cluster.json"
    written = {"format": FORMAT, "workers": settings.workers}
    if described.exists():
        found = described_by(described.read_text())
        if found is None:
            os.close(descriptor)
            raise SettingsError(f"data={settings.data}: cluster.json is damaged; write {json.dumps(written)} into it")
        if found != written:
            os.close(descriptor)
            raise SettingsError(
                f"data={settings.data}: it was made with {found['workers']} workers (format {found['format']}), but "
                f"now there are {settings.workers} (format {FORMAT}). Partitions would move: give another directory"
            )
        if not (settings.data / TOPICS).exists():
            os.close(descriptor)
            raise SettingsError(
                f"data={settings.data}: {TOPICS} is gone, without which all records would be removed; restore it"
            )
    else:
        (settings.data / TOPICS).write_text(json.dumps({"version": 0, "topics": []}))
        (settings.data / "cluster_id").write_text(new_id())
        described.write_text(json.dumps(written))
    try:
        Catalog(settings.data).refresh()
    except (ValueError, KeyError, TypeError) as error:
        os.close(descriptor)
        raise SettingsError(f"data={settings.data}: {TOPICS} is damaged ({error}); restore it") from None
    for counts in ("quotas", FAULTS):  # of the last run
        shutil.rmtree(settings.data / counts, ignore_errors=True)
    return descriptor


class Ports(NamedTuple):
    """The ports of a cluster, as its directory remembers them."""

    bootstrap: int
    brokers: tuple[int, ...]

    @classmethod
    def read(cls, data: Path) -> Ports | None:
        """The ports of the last start; None if there was none, or its file is damaged."""
        try:
            found = json.loads((data / PORTS).read_text())
            return cls(int(found["bootstrap"]), tuple(map(int, found["brokers"])))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, data: Path) -> None:
        """Remember these ports."""
        (data / PORTS).write_text(json.dumps(self._asdict()))


def described_by(text: str) -> dict[str, int] | None:
    """The format and the number of workers of an existing cluster; None if they cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"format", "workers"} <= set(found) else None


def new_id() -> str:
    """A new id of a cluster, in Kafka's form: 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
