"""For tests of programs that use Kafka; see docs/howto/kafka.md.

    plugin     the fixtures of pytest
    cluster    a cluster in processes of its own

`from timerd_kafka.testing import KafkaCluster` imports the class of the clusters that the fixtures give, for
annotations. This package imports `cluster` when KafkaCluster or KafkaClusterError is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timerd_kafka.testing.cluster import KafkaCluster as KafkaCluster
    from timerd_kafka.testing.cluster import KafkaClusterError as KafkaClusterError

__all__ = ["KafkaCluster", "KafkaClusterError"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from timerd_kafka.testing import cluster

    return getattr(cluster, name)
