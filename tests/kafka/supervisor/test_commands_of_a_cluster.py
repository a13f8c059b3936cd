"""Commands to a cluster: those that make no sense, and those that a silent broker does not answer."""

from __future__ import annotations

import pytest

from timerd_kafka.testing import KafkaCluster, KafkaClusterError


def test_a_call_with_an_argument_of_a_wrong_type_is_refused_and_ends_no_cluster() -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster:
        before, topic = cluster.pids(), cluster.topic()
        with pytest.raises(KafkaClusterError, match="stop_follower: broker='0': the number of a broker; None for all"):
            cluster.stop_follower(topic, broker="0")  # type: ignore[arg-type]
        with pytest.raises(KafkaClusterError, match=r"\[\]: TypeError: "):
            cluster.command({"do": []})
        assert cluster.pids() == before
