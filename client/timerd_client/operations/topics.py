"""A request that creates, enlarges or deletes topics, and waits until the metadata shows the change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from timerd_client.operations.codes import Errors
from timerd_client.operations.keys import topic_key
from timerd_client.operations.named import Lock
from timerd_client.operations.parts import Part, PartsOperation, Respond


class DelayedTopics(PartsOperation):
    """Complete when each topic without an error has changed as requested: it has its leaders, or it is gone.

    As Kafka's DelayedCreatePartitions and DelayedDeleteTopics: a topic that was refused at once keeps its error, and
    the operation does not wait for it. At the deadline the pending topics get REQUEST_TIMED_OUT. Their changes may
    still happen.

    Keys: topic_key() of each topic.
    """

    def __init__(
        self,
        topics: Mapping[str, int],
        is_done: Callable[[str], bool],
        respond: Respond,
        *,
        lock: Lock | None = None,
    ) -> None:
        """`topics` has each topic's first error code (NONE: under way). `is_done(topic)`: whether it has changed."""
        super().__init__({name: Part(error) if error else None for name, error in topics.items()}, respond, lock)
        self._is_done = is_done

    def look_at(self, name: str) -> Part | None:
        return Part(Errors.NONE) if self._is_done(name) else None

    def watch_keys(self) -> Iterable[str]:
        return [topic_key(name) for name in self.pending]
