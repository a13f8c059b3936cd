"""The collector for prometheus_client: the figures of clients, and those of the daemon's arena."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from support.real.shell import Run
from timerd.testing import Manual
from timerd_client import aio
from timerd_client.metrics import COUNTERS, FIGURES, TimerdCollector
from timerd_client.protocol.statistics import Statistics

HERE = {"instance": "manual"}


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry with the collector of all clients of this process."""
    made = CollectorRegistry()
    made.register(TimerdCollector())
    return made


def names_of(text: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(text)}


def test_each_counter_of_a_client_is_a_metric() -> None:
    assert set(Statistics._fields) | {"clients", "connected", "window", "losses"} == set(FIGURES)
    assert set(FIGURES) > COUNTERS


def test_the_clients_of_a_process_are_added_up(manual: Manual, registry: CollectorRegistry) -> None:
    with td.connect() as one, td.connect() as other:
        one.register("a", timeout=60)
        other.register_many(["b", "c"], timeout=60)
        other.flush()
        assert registry.get_sample_value("timerd_client_clients", HERE) == 2
        assert registry.get_sample_value("timerd_client_connected", HERE) == 2
        assert registry.get_sample_value("timerd_client_waiting", HERE) == 3
        assert registry.get_sample_value("timerd_client_window", HERE) == 2 * 65_536


def test_a_lost_daemon_is_counted(manual: Manual, registry: CollectorRegistry) -> None:
    with td.connect() as client:
        waits = client.register("a", timeout=5)
        client.flush()
        manual.stop()
        manual.advance(10)
        assert waits.result().state is td.State.UNAVAILABLE
        assert registry.get_sample_value("timerd_client_connected", HERE) == 0
        assert registry.get_sample_value("timerd_client_losses_total", HERE) == 1
        assert registry.get_sample_value("timerd_client_given_up_total", HERE) == 1
        manual.start()


def test_a_counter_never_falls_when_clients_end(manual: Manual, registry: CollectorRegistry) -> None:
    def given_up() -> float | None:
        return registry.get_sample_value("timerd_client_given_up_total", HERE)

    for expected in (1, 2):
        client = td.connect()
        client.register("a", timeout=1)
        client.flush()
        manual.stop()
        manual.advance(10)
        assert given_up() == expected
        manual.start()
        manual.advance(1)
        client.close()
        del client
        gc.collect()
        assert given_up() == expected
    assert registry.get_sample_value("timerd_client_clients", HERE) == 0


def test_a_collector_may_be_for_one_client(manual: Manual) -> None:
    with td.connect() as one, td.connect() as other:
        registry = CollectorRegistry()
        registry.register(TimerdCollector(one, daemon=False))
        one.register("a", timeout=60)
        other.register("a", timeout=60)
        assert registry.get_sample_value("timerd_client_waiting", HERE) == 1


def test_asyncio_clients_are_counted_too(manual: Manual, registry: CollectorRegistry) -> None:
    async def main() -> float | None:
        async with aio.connect() as client:
            await client.register_wait("a", timeout=60)
            return await asyncio.to_thread(registry.get_sample_value, "timerd_client_waiting", HERE)

    assert manual.run(main()) == 1


def test_a_second_collector_of_a_registry_is_refused(registry: CollectorRegistry) -> None:
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(TimerdCollector())


def test_a_client_that_was_never_used_has_no_figures(runtime_dir: object, registry: CollectorRegistry) -> None:
    client = td.Client("never-used")
    assert b'instance="never-used"' not in generate_latest(registry)
    assert not client.connected


def test_the_daemons_metrics_are_those_of_timerctl(daemon: Daemon, run: Run, registry: CollectorRegistry) -> None:
    with td.connect(timeout=PATIENCE_S) as client, td.connect(timeout=PATIENCE_S, daemon_user=os.geteuid()):
        client.purgatory("other").register_wait("a", timeout=60)
        assert not client.register("b", timeout=0.001).result()
        client.flush()
        status, printed, _ = run("stats", "--prometheus")
        assert status == 0
        scraped = generate_latest(registry).decode()
    assert names_of(printed) == {name for name in names_of(scraped) if not name.startswith("timerd_client_")}
    pending = '\ntimerd_pending{instance="default",purgatory="other"} 1.0\n'
    assert scraped.count(pending) == 1, "two clients of one daemon repeat its metrics"
    assert '\ntimerd_expired_total{instance="default",purgatory="default"} 1.0\n' in scraped
    assert 'timerd_wait_seconds_bucket{instance="default",le="+Inf",purgatory="default"} 1.0' in scraped


def test_a_dead_daemon_is_seen_in_its_arena(daemon: Daemon, registry: CollectorRegistry) -> None:
    with td.connect(timeout=PATIENCE_S) as client:
        client.flush(timeout=PATIENCE_S)
        assert registry.get_sample_value("timerd_up", {"instance": "default"}) == 1
        daemon.kill()
        assert registry.get_sample_value("timerd_up", {"instance": "default"}) == 0
        daemon.start()


def test_with_daemon_false_there_are_only_metrics_of_clients(daemon: Daemon) -> None:
    registry = CollectorRegistry()
    registry.register(TimerdCollector(daemon=False))
    with td.connect(timeout=PATIENCE_S):
        names = names_of(generate_latest(registry).decode())
    assert names == {f"timerd_client_{name}" for name in FIGURES}


def test_a_forked_worker_counts_its_own_clients(daemon: Daemon, registry: CollectorRegistry) -> None:
    with td.connect(timeout=PATIENCE_S) as client:
        client.register("a", timeout=60)
        assert registry.get_sample_value("timerd_client_waiting", {"instance": "default"}) == 1
        pid = os.fork()
        if not pid:
            found = registry.get_sample_value("timerd_client_waiting", {"instance": "default"})
            os._exit(0 if found is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
