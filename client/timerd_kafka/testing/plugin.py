"""Fixtures of pytest for programs that use Kafka. pytest loads this module automatically if timerd is installed.

    kafka_broker            a new cluster for each test: kafka_broker.bootstrap, .topic("orders", partitions=3)
    kafka_session_broker    one cluster for all tests of a session

This module imports the cluster, and with it the rest of timerd, only when a test uses one of these fixtures.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from timerd_kafka.testing.cluster import KafkaCluster

FLAGS = (
    "flags of the clusters of kafka_broker and kafka_session_broker, such as --workers 4; "
    "python -m timerd_kafka --help lists them"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("kafka_flags", FLAGS, default="")


def start(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """A cluster, which is closed after its use."""
    from timerd_kafka.testing.cluster import KafkaCluster

    with KafkaCluster(shlex.split(pytestconfig.getini("kafka_flags"))) as cluster:
        yield cluster


@pytest.fixture
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """A new Kafka cluster, by default of three brokers. It takes a second to start, and half a second to end."""
    yield from start(pytestconfig)


@pytest.fixture(scope="session")
def kafka_session_broker(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """One Kafka cluster for the whole session. Give each test topics and groups of its own."""
    yield from start(pytestconfig)
