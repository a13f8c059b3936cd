"""A cluster of four brokers for all tests of a process, raw connections to it, and scenarios on the manual clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.kafka.groupworld import Broker, Run
from support.kafka.rawkafka import RawKafka
from timerd.testing import Manual
from timerd_kafka.testing import KafkaCluster

HERE = Path(__file__).resolve().parent
TEST_S = 280.0  # a slow and busy machine needs minutes for a test with several clusters


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Give each test of this folder more time, unless it or the command line has a timeout."""
    for item in items if config.getoption("timeout") is None else ():
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="session")
def cluster() -> Iterator[KafkaCluster]:
    """The cluster that tests share. A test uses topics and groups of its own, and kills nothing."""
    with KafkaCluster(["--workers", "4"]) as made:
        yield made


@pytest.fixture
def raw(cluster: KafkaCluster) -> Iterator[RawKafka]:
    with RawKafka(cluster.bootstrap) as made:
        yield made


@pytest.fixture
def run(manual: Manual, tmp_path: Path) -> Iterator[Run]:
    """Run a scenario with a broker, in a loop on the manual clock: sleep(30) takes no time."""

    def runs(scenario: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            broker = Broker(tmp_path)
            try:
                await scenario(broker)
            finally:
                broker.kill()

        manual.run(main())

    yield runs
