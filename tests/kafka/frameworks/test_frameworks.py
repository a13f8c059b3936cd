"""Frameworks that keep their state in topics: a table of Faust, a state of Quix Streams.

Each counts words, is stopped, loses its files, and goes on with the counts of its changelog.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import confluent_kafka
import pytest

from support.real.trees import ROOT
from timerd_kafka.testing import KafkaCluster

HERE = Path(__file__).resolve().parent
PARTITIONS = 4
PATIENCE_S = 300.0
WORDS = ["some", "words", "and", "some", "more", "words", "some"] * 20

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def python_of(framework: str) -> str:
    """The Python of the framework's environment, which is made by name. Skips the test if that is not possible."""
    command = [sys.executable, str(ROOT / "tests/kafka/acceptance/install.py"), framework]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        pytest.skip(ran.stdout.strip() or ran.stderr[-1_000:])
    return str(ROOT / "build/kafka-clients" / framework / "bin/python")


def send(kafka: KafkaCluster, topic: str) -> None:
    """Send all words. Each word has a partition of its own."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
    places = {word: number % PARTITIONS for number, word in enumerate(sorted(set(WORDS)))}
    for word in WORDS:
        producer.produce(topic, word.encode(), word.encode(), partition=places[word])
    assert producer.flush(PATIENCE_S) == 0


class Program:
    """A program that prints lines of JSON, until SIGTERM ends it."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. Fails if it takes too long, or the program ends."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            ended = self._process.poll() is not None
            assert time.monotonic() < end and not ended, f"not {what}: {self.lines[-3:]}\n{self.log}"
            time.sleep(0.02)

    def stop(self) -> None:
        """End the program as an operator does."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) in (0, -signal.SIGTERM), self.log

    @property
    def log(self) -> str:
        """The end of its error output."""
        return self._log.read_text(errors="replace")[-4_000:]


def counts(times: int) -> dict[str, int]:
    """The count of each word, if all were sent this number of times."""
    return {word: count * times for word, count in Counter(WORDS).items()}


def test_a_table_of_faust_is_recovered_from_its_changelog(tmp_path: Path) -> None:
    python = python_of("faust")

    def started(kafka: KafkaCluster, number: int) -> Program:
        command = [python, str(HERE / "faust_counts.py"), kafka.bootstrap, str(tmp_path / f"data-{number}")]
        return Program([*command, "worker", "--loglevel=warn"], tmp_path / "log")

    with KafkaCluster(["--workers", "4"]) as kafka:
        kafka.topic("faust-words", partitions=PARTITIONS, replicas=3)
        send(kafka, "faust-words")
        with started(kafka, 1) as first:
            first.wait_until(lambda: bool(first.lines) and first.lines[-1]["table"] == counts(1), "all counted")
            first.stop()
        send(kafka, "faust-words")
        with started(kafka, 2) as second:
            second.wait_until(lambda: bool(second.lines) and second.lines[-1]["table"] == counts(2), "counted twice")
            assert sum(second.lines[0]["table"].values()) == len(WORDS) + 1, "the table was recovered before"
            assert len(second.lines) == len(WORDS), "each record was counted once"
            second.stop()


def test_a_state_of_quix_is_recovered_from_its_changelog(tmp_path: Path) -> None:
    python = python_of("quix")

    def started(kafka: KafkaCluster, number: int) -> Program:
        data = str(tmp_path / f"data-{number}")
        return Program([python, str(HERE / "quix_counts.py"), kafka.bootstrap, data], tmp_path / "log")

    def totals(program: Program) -> dict[str, int]:
        return {line["word"]: line["total"] for line in program.lines}

    with KafkaCluster(["--workers", "4"]) as kafka:
        kafka.topic("quix-words", partitions=PARTITIONS, replicas=3)
        send(kafka, "quix-words")
        with started(kafka, 1) as first:
            first.wait_until(lambda: totals(first) == counts(1), "all counted")
            first.stop()
        send(kafka, "quix-words")
        with started(kafka, 2) as second:
            second.wait_until(lambda: totals(second) == counts(2), "all counted twice")
            assert len(second.lines) == len(WORDS), "each record was counted once"
            second.stop()
