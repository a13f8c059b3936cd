"""A plugin of pytest that gives the tests of kafka-python the environment that they need, with a KafkaCluster.

If KAFKA_URI names a running broker, the tests use it. The sdist has only a part of the tests' package `test`; this
module makes the rest. The module reads the environment variables of upstream_shim, and UPSTREAM_TESTS: the folder of
the package `test`. The tests read KAFKA_VERSION.
"""

from __future__ import annotations

import os
import sys
import types

import kafka  # noqa: F401 - the installed package: the tests' folder, soon on the path, may have another `kafka`
import pytest

import upstream_shim
from timerd_kafka.testing import KafkaCluster

_cluster = KafkaCluster(["--partitions", "4", *upstream_shim.FLAGS])


class ExternalService:
    """A broker that somebody else starts and ends."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Start the cluster: the tests and their conftest read the environment when they are imported."""
    uri = f"kafka://{_cluster.start().bootstrap}"
    os.environ["KAFKA_URI"] = uri
    os.environ["ZOOKEEPER_URI"] = uri  # for Kafka before version 4 the tests take the broker's address from here
    os.environ["KAFKA_ROOT"] = str(_cluster.data)  # must be a directory
    upstream_shim.count_connections(int(uri.rpartition(":")[2]))
    test, service = types.ModuleType("test"), types.ModuleType("test.service")
    test.__path__ = [os.environ["UPSTREAM_TESTS"]]
    service.__dict__.update(ExternalService=ExternalService, SpawnedService=None)
    sys.modules.update({"test": test, "test.service": service})


def pytest_unconfigure() -> None:
    """End the cluster, and keep its log."""
    upstream_shim.say({"log": _cluster.log})
    _cluster.close()
