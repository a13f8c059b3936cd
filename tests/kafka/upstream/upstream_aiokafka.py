"""A plugin of pytest that gives the tests of aiokafka the environment that they need, with a KafkaCluster.

The fixtures of these tests start a container by the library `docker`. This module stands in for that library, and a
KafkaCluster stands in for the container. The module reads the environment variables of upstream_shim, and makes a
folder in the current directory.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka  # noqa: F401 - the installed package; the one in the tests' folder, soon on the path, is not compiled
import pytest

import upstream_shim
from timerd_kafka.testing import KafkaCluster


class Container:
    """A cluster that looks like a container."""

    def __init__(self, environment: dict[str, Any]) -> None:
        port = environment["ADVERTISED_PORT"]
        listens = ("--bind", environment["ADVERTISED_HOST"], "--port", str(port))
        partitions = ("--partitions", str(environment["NUM_PARTITIONS"]))
        self._cluster = KafkaCluster([*listens, *partitions, *upstream_shim.FLAGS]).start()
        upstream_shim.count_connections(port)

    def exec_run(self, command: object, **_: object) -> tuple[int, bytes]:
        """Refuse to run a command: there is no container to run it in."""
        return 1, f"{command}: this is no container".encode()

    def stop(self) -> None:
        """End the cluster, and keep its log."""
        upstream_shim.say({"log": self._cluster.log})
        self._cluster.close()


class Containers:
    """The containers of a Client."""

    def run(self, *, environment: dict[str, Any], **_: object) -> Container:
        """Start a container."""
        return Container(environment)


class Client:
    """The client of the container library."""

    containers = Containers()

    def close(self) -> None:
        """Do nothing: nothing is open."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put this module in the place of the container library, before the tests' conftest imports it."""
    docker, models, containers = (types.ModuleType(name) for name in ("docker", "models", "containers"))
    containers.__dict__.update(Container=Container)
    models.__dict__.update(containers=containers)
    docker.__dict__.update(models=models, from_env=Client)
    sys.modules["docker"] = docker
    Path("tests/ssl_cert").mkdir(parents=True, exist_ok=True)  # otherwise the tests make certificates, in a container


@pytest.fixture(scope="session", autouse=True)
def no_kerberos() -> Iterator[None]:
    """Make no keytab, because there is no Kerberos."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests._testutil.KerberosUtils.create_keytab", lambda _: None)
        yield
