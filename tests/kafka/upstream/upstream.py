"""Runs the integration tests of aiokafka and kafka-python, which this project did not write, against the Kafka broker.

    python tests/kafka/upstream/upstream.py [--sources DIR] [--only SUITE,...] [--workers N]
                                              [--all] [--short] [--json FILE]

The files of these tests run unchanged. Where they start a broker in a container or in Java, upstream_aiokafka.py and
upstream_kafka_python.py start a KafkaCluster instead. A skipped test counts as "cannot": the tables below say why it
cannot pass with this broker, or the test skips itself. "used" counts the other tests that connected to the broker; the
rest tests the client alone. The tests of kafka-python run again for each of three older versions of Kafka: the client
takes the broker for one of that version, and uses older versions of the APIs.

The tests use the installed clients. The sdist of kafka-python includes its tests, and pip downloads it. The sdist of
aiokafka includes no tests: DIR/aiokafka must be a checkout of aio-libs/aiokafka, best at the tag of the installed
version. Likewise DIR/kafka-python, if it is there, is a checkout of dpkp/kafka-python.

Both suites are written for one broker, so there is one broker by default. With more brokers some tests fail: tests that
count brokers, that expect all records in one answer, or that read at once what only the leader has acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.lib.common import CHILD_END_S, Failed, Parser, Refused, Suite, amount, chosen, listed, run_child, run_suite

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[2] / "build" / "upstream"  # has the sdists, and the packages below
TEST_S = 150  # the seconds that one test may take

# The upstream tests import these packages. Without the codecs they skip tests.
PACKAGES = {
    "pytest_asyncio": "pytest-asyncio==1.3.0",
    "pytest_mock": "pytest-mock==3.15.1",
    "async_timeout": "async-timeout",
    "lz4": "lz4",
    "snappy": "python-snappy",
    "zstandard": "zstandard",
}

NO_TRANSACTIONS = "transactions are absent"
NO_TLS = "TLS is absent"
OF_KAFKA_PYTHON = {
    "test_admin_integration.py::test_create_describe_delete_acls": "ACLs are absent",
    "test_admin_integration.py::test_elect_leaders": "elections are absent",
    "test_admin_integration.py::test_describe_log_dirs": "DescribeLogDirs is absent",
    "test_admin_integration.py::test_alter_replica_log_dirs": "AlterReplicaLogDirs is absent",
    "test_admin_integration.py::test_describe_metadata_quorum": "DescribeQuorum is absent",
    "test_admin_integration.py::test_*_partition_reassignments": "reassignments are absent",
    "test_admin_integration.py::test_describe_topic_partitions*": "DescribeTopicPartitions is absent",
    "test_admin_integration.py::test_list_config_resources": "ListConfigResources is absent",
    "test_producer_integration.py::test_transactional_*": NO_TRANSACTIONS,
    "test_sasl_integration.py::*": "SASL is absent",
    "test_ssl_integration.py::*": NO_TLS,
}
OF_OLD_VERSIONS = {
    "test_consumer_integration.py::test_kafka_version_infer": "the client finds out this broker's version, the newest",
    "test_admin_integration.py::test_describe_configs_broker_*": "it expects the values of a broker with ZooKeeper",
}
OF_VERSION_0 = {"test_admin_integration.py::test_describe_configs_*_returns_configs": "DescribeConfigs v0 is absent"}
OF_AIOKAFKA = {
    "test_consumer.py::*::test_consumer_invalid_session_timeout": "sessions may be shorter than 6 s, down to 100 ms",
    "test_consumer.py::*::test_exclude_internal_topics": "there is no topic __consumer_offsets",
    "test_consumer.py::*::test_ssl_consume": NO_TLS,
    "test_producer.py::*::test_producer_ssl": NO_TLS,
    "test_sasl.py::*": "SASL and ACLs are absent",
    "test_sender.py::*::test_sender_maybe_wait_for_pid_on_failure": NO_TRANSACTIONS,
    "test_transactional_consumer.py::*": NO_TRANSACTIONS,
    "test_transactional_producer.py::*::test_producer_transactional_*": NO_TRANSACTIONS,
}


@dataclass(frozen=True)
class Upstream:
    """A suite of another project, with the settings to run it here."""

    project: str  # its package, and its folder in DIR
    folder: str  # the folder of its tests
    files: tuple[str, ...]  # the files that use a broker; "" is the whole folder
    plugin: str  # the plugin that starts a KafkaCluster for it
    flags: tuple[str, ...]  # flags of pytest
    cannot: Mapping[str, str]
    in_sdist: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def kafka_python(kafka: str, cannot: Mapping[str, str]) -> Upstream:
    """The suite of kafka-python. `kafka` is the version of Kafka that the suite takes the broker for."""
    return Upstream(
        "kafka-python",
        "test/integration",
        ("",),
        "upstream_kafka_python",
        ("-o", "addopts="),
        {**cannot, **OF_KAFKA_PYTHON},
        in_sdist=True,
        environment={"KAFKA_VERSION": kafka},
    )


AIOKAFKA = Upstream(
    "aiokafka",
    "tests",
    tuple(
        f"test_{name}.py"
        for name in (
            *("admin", "client", "conn", "consumer", "coordinator", "pep492", "producer", "sasl", "sender"),
            *("transactional_consumer", "transactional_producer"),
        )
    ),
    "upstream_aiokafka",
    # The tests require the name of an image, and read the version of Kafka from this name.
    ("--docker-image", "kafka:2.13_4.2.0", "--no-pull", "-o", "asyncio_default_fixture_loop_scope=function"),
    OF_AIOKAFKA,
)
SUITES = {
    "aiokafka": AIOKAFKA,
    "kafka-python": kafka_python("4.2.0", {}),
    "kafka-python-2.8": kafka_python("2.8.0", OF_OLD_VERSIONS),
    "kafka-python-2.1": kafka_python("2.1.0", OF_OLD_VERSIONS),
    "kafka-python-0.11": kafka_python("0.11.0", {**OF_OLD_VERSIONS, **OF_VERSION_0}),
}
SHORT = ("kafka-python",)


def sources_of(suite: Suite, upstream: Upstream) -> Path:
    """The folder with the tests of a suite. Raises Refused if they cannot be found or downloaded."""
    given: Path | None = suite.args.sources
    if given is not None and (given / upstream.project / upstream.folder / "conftest.py").exists():
        return (given / upstream.project).resolve()
    if not upstream.in_sdist:
        raise Refused(
            f"the sdist of {upstream.project} has no tests: give --sources DIR with a checkout of its repository at "
            f"DIR/{upstream.project}, tag v{version(upstream.project)}; or leave this suite out: "
            f"--only {','.join(SHORT)}"
        )
    return sdist(suite, upstream)


def sdist(suite: Suite, upstream: Upstream) -> Path:
    """The unpacked sdist of the installed version."""
    name = f"{upstream.project.replace('-', '_')}-{version(upstream.project)}"
    if not (KEPT / name).exists():
        suite.say(f"downloading {name}")
        wanted = ("--no-deps", "--no-binary", ":all:", f"{upstream.project}=={version(upstream.project)}")
        pip("download", "--dest", str(KEPT), *wanted)
        with tempfile.TemporaryDirectory(dir=KEPT) as scratch, tarfile.open(KEPT / f"{name}.tar.gz") as archive:
            archive.extractall(scratch, filter="data")
            Path(scratch, name).rename(KEPT / name)
    if not (KEPT / name / upstream.folder / "conftest.py").exists():
        raise Refused(f"{name}.tar.gz has no {upstream.folder}: give --sources DIR, with DIR/{upstream.project}")
    return KEPT / name


def packages(suite: Suite) -> Path:
    """A folder with those of the PACKAGES that are not installed."""
    site = KEPT / "site"
    missing = [name for module, name in PACKAGES.items() if not find_spec(module) and not (site / module).exists()]
    if missing:
        suite.say(f"installing {', '.join(missing)} in {site}")
        pip("install", "--no-deps", "--target", str(site), *missing)
    return site


def pip(*words: str) -> None:
    """Run pip. Raises Failed if pip fails."""
    found = run_child([sys.executable, "-m", "pip", "--quiet", *words])
    if found.returncode:
        raise Failed(f"pip {' '.join(words)}: {found.stderr.strip()[-2000:]}")


def results(suite: Suite, name: str, sources: Path, site: Path) -> Iterator[dict[str, Any]]:
    """Run a suite in an empty directory. Yields the results of its tests, and the cluster's output."""
    upstream = SUITES[name]
    tests = sources / upstream.folder
    with tempfile.TemporaryDirectory(prefix="upstream-") as scratch:
        lines, said = Path(scratch, "results.jsonl"), Path(scratch, "said.txt")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(HERE), str(site))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "UPSTREAM_RESULTS": str(lines),
            "UPSTREAM_CANNOT": json.dumps(upstream.cannot),
            "UPSTREAM_ALL": "1" if suite.args.all else "",
            "UPSTREAM_FLAGS": f"--workers {suite.args.workers}",
            "UPSTREAM_TESTS": str(sources / "test"),
            **upstream.environment,
        }
        plugins = ("pytest_timeout", "pytest_asyncio.plugin", "pytest_mock", "upstream_shim", upstream.plugin)
        with said.open("wb") as out:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
                    *(word for plugin in plugins for word in ("-p", plugin)),
                    *("-c", str(sources / "pyproject.toml"), "--rootdir", str(sources)),
                    *("--timeout", str(TEST_S), "--timeout-method", "signal"),
                    *upstream.flags,
                    *(str(tests / file) for file in upstream.files),
                ],
                cwd=scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C reaches only this program, which then ends pytest
            )
            try:
                process.wait()
            finally:
                end(process)
        if process.returncode not in (0, 1) or not lines.exists():
            raise Failed(f"{name}: pytest ended with {process.returncode}:\n{said.read_text()[-4000:]}")
        yield from (json.loads(line) for line in lines.read_text().splitlines())


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt pytest, if it still runs. Then pytest ends its cluster."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(CHILD_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(suite: Suite, name: str, sources: Path, site: Path) -> None:
    """Run a suite. Adds a row for each of its tests, and a row for the suite."""
    counts = {"passed": 0, "failed": 0, "cannot": 0}
    used, begun = 0, time.monotonic()
    for found in results(suite, name, sources, site):
        if "log" in found:
            suite.check("no_errors", "Traceback" not in found["log"], "the brokers' log has no traceback")
            if "Traceback" in found["log"]:
                print(found["log"], file=sys.stderr)
            continue
        outcome = found["outcome"]
        counts[outcome] += 1
        used += outcome != "cannot" and found["connections"] > 0
        reason = (found["reason"].splitlines() or [""])[0] if outcome != "passed" else ""
        suite.add("tests", suite=name, test=found["test"], outcome=outcome, reason=reason, seconds=found["seconds"])
        if outcome == "failed":
            print(f"\n{name} {found['test']}\n{found['text']}", file=sys.stderr)
    project = SUITES[name].project
    seconds = time.monotonic() - begun
    suite.add("suites", suite=name, client=version(project), **counts, used=used, seconds=seconds)
    suite.check(name.replace("-", "_"), not counts["failed"] and counts["passed"] > 0, "no test fails")


def play(suite: Suite) -> None:
    """Run the suites one after the other."""
    names = suite.args.only or (SHORT if suite.short else tuple(SUITES))
    KEPT.mkdir(parents=True, exist_ok=True)
    sources = {name: sources_of(suite, SUITES[name]) for name in names}
    site = packages(suite)
    suite.tables["tests"], suite.tables["suites"] = [], []
    for name in names:
        suite.say(name)
        run(suite, name, sources[name], site)


def main() -> int:
    parser = Parser("upstream", __doc__)
    parser.add_argument("--sources", type=Path, metavar="DIR", help="checkouts: DIR/aiokafka, DIR/kafka-python")
    parser.add_argument("--only", type=listed(chosen(list(SUITES))), metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--workers", type=amount(1, 64, "brokers"), default=1, metavar="N", help="brokers (1)")
    parser.add_argument("--all", action="store_true", help="also run tests that cannot pass: perhaps they can by now")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
