"""The topics of the cluster, in a file that every broker reads. Any broker may change it: one broker at a time.

Each topic has its own id, so a topic that is created again has nothing of the deleted topic.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from uuid import UUID, uuid4

from kio.schema.errors import ErrorCode

from timerd_kafka.cluster.configs import SHOWN, Rules
from timerd_kafka.cluster.settings import PARTITIONS_MAX

TOPICS = "topics.json"
TICK_NS_MAX = 100_000_000  # the longest tick of a file system's clock: 4 ms or 10 ms are usual
NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class Topic:
    """A topic."""

    name: str
    id: UUID
    partitions: int
    replicas: int
    configs: dict[str, str] = field(default_factory=dict)

    @cached_property
    def rules(self) -> Rules:
        """The configurations that have an effect."""
        return Rules.of(self.configs)


Wanted = tuple[int, int, Mapping[str, str]]  # partitions, replicas, configurations
Topics = Mapping[str, Topic]  # by name


class Busy(Exception):
    """Another broker is changing the topics."""


class Catalog:
    """The topics, as this broker has read them last. `version` counts the changes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / TOPICS
        self._lock = directory / "topics.lock"
        self._seen: tuple[int, ...] | None = None  # stat of the file at the last read; None: read it in any case
        self.version = 0
        self.by_name: Mapping[str, Topic] = {}
        self.by_id: Mapping[UUID, Topic] = {}
        self._by_plain: Mapping[str, str] = {}  # the names of the topics, by those of Kafka's metrics

    def refresh(self) -> bool:
        """Read the file if it has changed. Returns whether the topics have changed."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        seen = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if seen == self._seen:
            return False
        # Two changes within a tick of the file system's clock may look the same: a new file may get the old inode.
        is_settled = time.time_ns() - found.st_mtime_ns > TICK_NS_MAX
        written = json.loads(self._path.read_text())
        if written["version"] == self.version:
            self._seen = seen if is_settled else None
            return False
        topics = [Topic(**{**topic, "id": UUID(topic["id"])}) for topic in written["topics"]]
        self.version = written["version"]
        self.by_name = {topic.name: topic for topic in topics}
        self.by_id = {topic.id: topic for topic in topics}
        self._by_plain = {plain_of(topic.name): topic.name for topic in topics}
        self._seen = seen if is_settled else None  # set last, so that a file that could not be read is read again
        return True

    def create(self, wanted: Mapping[str, Wanted]) -> dict[str, ErrorCode]:
        """Make topics in one change. Returns an error for each topic that is not made. Raises Busy, OSError."""
        errors: dict[str, ErrorCode] = {}

        def with_new(topics: Topics) -> Topics:
            made, used = dict(topics), sum(topic.partitions for topic in topics.values())
            plain = set(self._by_plain)
            for name, (partitions, replicas, configs) in wanted.items():
                if name in made:
                    errors[name] = ErrorCode.topic_already_exists
                elif plain_of(name) in plain:
                    errors[name] = ErrorCode.invalid_topic_exception
                elif used + partitions > PARTITIONS_MAX:
                    errors[name] = ErrorCode.invalid_partitions
                else:
                    used += partitions
                    plain.add(plain_of(name))
                    made[name] = Topic(name, uuid4(), partitions, replicas, dict(configs))
            return made

        self.change(with_new)
        return errors

    def colliding(self, name: str) -> str | None:
        """The other topic that Kafka's metrics cannot tell from a topic of this name; None if there is none."""
        other = self._by_plain.get(plain_of(name))
        return other if other != name else None

    def delete(self, is_meant: Callable[[Topic], bool]) -> None:
        """Remove the topics for which `is_meant` holds. Raises Busy, OSError."""
        self.change(lambda topics: {name: topic for name, topic in topics.items() if not is_meant(topic)})

    def change(self, changed: Callable[[Topics], Topics]) -> None:
        """Write the topics that `changed(newest topics)` returns, unless they are the same. Both are by name.

        Raises Busy before `changed` is called if another broker is changing the topics. Raises OSError.
        """
        with self._changing():
            made = changed(self.by_name)
            if made != self.by_name:
                self._write(list(made.values()))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the topics for the block, and read their newest version. A killed broker leaves no lock.

        This does not wait for the lock: a broker that is stopped (SIGSTOP) keeps it, and a wait would stop this one.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy from None
            self._seen = None
            self.refresh()
            yield
        finally:
            os.close(descriptor)

    def _write(self, topics: list[Topic]) -> None:
        written = [{**asdict(topic), "id": str(topic.id)} for topic in topics]
        draft = self._path.with_suffix(".new")  # one name: the next change writes over the draft of a killed broker
        try:
            draft.write_text(json.dumps({"version": self.version + 1, "topics": written}))
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def is_legal(name: str) -> bool:
    """Whether a topic may have this name."""
    return NAME.fullmatch(name) is not None and name not in (".", "..")


def why_illegal(name: str) -> str:
    """Why a topic may not have this name, for people."""
    return f"{name[:SHOWN]!r}: 1 to 249 letters, digits, dots, _ and -"


def plain_of(name: str) -> str:
    """The name of a topic as Kafka's metrics write it."""
    return name.replace(".", "_")
