"""A Kafka cluster in processes of its own, with faults that a test may cause.

with KafkaCluster(["--workers", "4"]) as broker:
    orders = broker.topic("orders", partitions=3)
    KafkaProducer(bootstrap_servers=broker.bootstrap).send(orders, b"first")
    broker.stop_follower(orders, partition=0)
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self, TypedDict, Unpack

from timerd_kafka.faults.rules import OWN_CLIENT
from timerd_kafka.supervisor.conditions import TIMEOUT_MAX
from timerd_kafka.supervisor.door import ask
from timerd_kafka.wire.codec import Question
from timerd_shm.host.descriptors import is_ready
from timerd_shm.host.paths import INSTANCE_VARIABLE, InstancePaths, daemon_running, open_arena_file
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.statistics import collect, look

READY_S = 60.0  # a start takes a second, but longer on a busy machine
ANSWER_S = 10.0
END_S = 20.0
SMALL = ("--port", "0", "--workers", "3", "--capacity", "4096")
CREATE_TOPICS = 19
LOG_SHOWN = 4_000  # characters
_names = itertools.count(1)


class KafkaClusterError(Exception):
    """The cluster refuses a call, has ended, or does not answer. The text has the reason, and the end of the log."""


class Fault(NamedTuple):
    """A fault that is set, and how many requests met it."""

    number: int
    fault: str  # "fail", "delay" or "cut"
    api: str
    error: str | None
    seconds: float | None
    topic: str | None
    partition: int | None
    group: str | None
    client_id: str | None
    broker: int | None
    after: int
    times: int | None
    met: int  # requests that the fault has counted, skipped ones included: 20 million at most
    applied: int  # requests that got the fault


class Selection(TypedDict, total=False):
    """The requests that a fault meets: those with all that is given here."""

    topic: str | None
    partition: int | None
    group: str | None
    client_id: str | None
    broker: int | None  # the broker that gets the request
    after: int  # skip this many such requests, counted over the whole cluster (0)
    times: int | None  # then meet this many (1); None: all, until clear_faults()


class GroupSeen(NamedTuple):
    """The state of a group, and the number of its members."""

    state: str
    members: int


class KafkaCluster:
    """A cluster of three brokers. `flags` are added to the default flags, as on the command line."""

    def __init__(self, flags: Sequence[str] = (), *, data: Path | None = None) -> None:
        """`data`: a directory, which is kept; with None the cluster has a new one, which is removed at the end."""
        if isinstance(flags, str) or "--data" in flags:
            raise KafkaClusterError(
                f"flags={flags!r}: give a list such as ['--workers', '4'], and data= for a directory"
            )
        self._flags = [*SMALL, *map(str, flags)]
        self._given = data
        self._scratch: TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._numbers = itertools.count(1)  # of the commands
        self._asking = threading.Lock()  # a test may have threads
        self.bootstrap = ""
        self.instance = ""
        self.runtime_dir = ""
        self.data = Path()

    def start(self) -> Self:
        """Start the cluster, and return when all brokers listen. Raises KafkaClusterError."""
        if self._process is not None:
            raise KafkaClusterError("it runs already: close() it first, or make another one")
        self._scratch = TemporaryDirectory(prefix="kafka-")  # a short path, as sockets need
        run = Path(self._scratch.name, "run")
        run.mkdir(mode=0o700)
        self.data = self._given or Path(self._scratch.name, "data")
        self.data.mkdir(parents=True, exist_ok=True)
        with (self.data / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(
                # Without -P, Python would import packages from the caller's directory.
                [
                    *(sys.executable, "-P", "-m", "timerd_kafka", "--json", "--commands"),
                    *("--data", str(self.data), "--runtime-dir", str(run), *self._flags),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only the tests
            )
        said = self._answer(READY_S)
        self.bootstrap, self.instance, self.runtime_dir = said["bootstrap"], said["instance"], said["runtime_dir"]
        return self

    def close(self) -> None:
        """End the cluster."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
            self._end_daemon()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _end_daemon(self) -> None:
        """End the cluster's own timer daemon if the supervisor was killed. Else the daemon would run for 10 s more."""
        paths = InstancePaths(Path(self.runtime_dir), self.instance)
        is_own = self._scratch is not None and paths.directory == Path(self._scratch.name, "run")
        if not is_own or not daemon_running(paths):
            return
        with contextlib.suppress(ProcessLookupError):
            daemon = os.pidfd_open(int(paths.lock.read_text()))
            with contextlib.closing(os.fdopen(daemon)):
                signal.pidfd_send_signal(daemon, signal.SIGTERM)
                is_ready(daemon, END_S)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which `timerctl` looks at the cluster's timer daemon."""
        return {RUNTIME_DIR_VARIABLE: self.runtime_dir, INSTANCE_VARIABLE: self.instance}

    @property
    def log(self) -> str:
        """The logs of the cluster's processes."""
        return "".join(
            path.read_text(errors="replace")
            for name in ("kafka.log", "timerd.log")
            if (path := self.data / name).exists()
        )

    # topics -----------------------------------------------------------------------------------------------------------

    def topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replicas: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, and return its name when all brokers have it. Without `name` it gets a new name.

        Without `replicas` it gets the cluster's default. Raises KafkaClusterError if the topic is refused, or a broker
        does not answer.
        """
        if self._process is None:
            raise KafkaClusterError("the cluster does not run: start()")
        name = name or f"topic-{os.getpid()}-{next(_names)}"
        given = {key: str(value) for key, value in (configs or {}).items()}
        question = Question(CREATE_TOPICS, 7)
        module = question.module
        request = module.CreateTopicsRequest(
            topics=(
                module.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=-1 if replicas is None else replicas,
                    assignments=(),
                    configs=tuple(module.CreatableTopicConfig(name=key, value=value) for key, value in given.items()),
                ),
            ),
            timeout=datetime.timedelta(seconds=ANSWER_S),
        )
        try:
            answer = question.read(self._ask_broker(question.write(0, OWN_CLIENT, request)))
        except (OSError, EOFError) as error:
            raise KafkaClusterError(f"topic: a broker does not answer ({error}); perhaps {name!r} is made") from error
        made = answer.topics[0]
        if made.error_code:
            raise KafkaClusterError(f"the topic {name!r} is refused: {made.error_message or made.error_code.name}")
        return name

    def _ask_broker(self, frame: bytes) -> bytes:
        host, _, port = self.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), ANSWER_S * 2) as connection:
            connection.sendall(frame)
            with connection.makefile("rb") as answers:
                answer = answers.read(int.from_bytes(answers.read(4)))
        if not answer:
            raise EOFError("it has closed the connection")
        return answer

    def purgatories(self) -> dict[str, dict[str, int]]:
        """The counters of each purgatory, by the names of `timerctl stats`: "pending", "registered", "expired", ..."""
        paths = InstancePaths(Path(self.runtime_dir), self.instance)
        with ArenaReader.from_descriptor(open_arena_file(paths)) as reader:
            stats = collect(reader.between_turns(lambda: look(reader)), paths)
        return {name: part["counters"] for name, part in stats["purgatories"].items()}

    # faults -----------------------------------------------------------------------------------------------------------

    def stop_follower(self, topic: str, *, partition: int | None = None, broker: int | None = None) -> int:
        """Stop the replication to followers of a topic. Then producers with acks=all time out.

        `partition` and `broker` select the followers of one partition, or those at one broker. Returns the number of
        followers that were stopped. When a broker is started again, its followers copy again. Raises KafkaClusterError
        if there is no such follower.
        """
        return self._follow("stop_follower", topic, partition, broker)

    def start_follower(self, topic: str, *, partition: int | None = None, broker: int | None = None) -> int:
        """Start the replication again. Returns the number of followers that were started."""
        return self._follow("start_follower", topic, partition, broker)

    def _follow(self, what: str, topic: str, partition: int | None, broker: int | None) -> int:
        answers = self.command({"do": what, "topic": topic, "partition": partition, "broker": broker})
        done = sum(int(answer["done"]) for answer in answers.values())
        if not done:
            raise KafkaClusterError(
                f"{what}: no follower of topic={topic!r} partition={partition} at broker={broker}; replicas of the "
                f"topic, by broker: {self._replicas(topic) or 'none'}"
            )
        return done

    def _replicas(self, topic: str) -> str:
        return "; ".join(
            f"{broker}: "
            + ", ".join(
                f"{name} ({'leads' if one['leads'] else 'follows'})"
                for name, one in state["partitions"].items()
                if name.rpartition("-")[0] == topic
            )
            for broker, state in sorted(self.state().items())
        )

    def leader(self, topic: str, partition: int = 0) -> int:
        """The number of the broker that leads a partition. Raises KafkaClusterError if there is no such partition."""
        states = self.state()
        for broker, state in states.items():
            if state["partitions"].get(f"{topic}-{partition}", {}).get("leads"):
                return int(broker)
        raise KafkaClusterError(
            f"leader: there is no partition {partition} of topic {topic!r} at the brokers {', '.join(states)}"
        )

    def kill(self, broker: int, signal: int = signal.SIGKILL) -> None:
        """Send a broker's process a signal. When the process ends, it is started again. SIGCONT ends a SIGSTOP.

        While a broker is stopped, calls that need its answer raise KafkaClusterError after some seconds:

        * state(), leader(), wait_for_group() for a group that it coordinates, wait_for_records() if the records of
          other brokers are too few
        * topic(), stop_follower(), start_follower() and clear_faults(). They take effect all the same, at the stopped
          broker when it goes on
        * fail(), delay() and cut(). They set no fault
        """
        self.command({"do": "kill", "broker": broker, "signal": signal})

    def kill_daemon(self, signal: int = signal.SIGKILL) -> None:
        """Send the timer daemon a signal. When the daemon ends, it is started again."""
        self.command({"do": "kill_daemon", "signal": signal})

    # faults in answers ------------------------------------------------------------------------------------------------

    def fail(self, api: str, error: str, **selection: Unpack[Selection]) -> int:
        """Answer requests with an error, and do not carry them out: fail("Produce", "NOT_LEADER_OR_FOLLOWER").

        `api` and `error` have Kafka's names. If `topic`, `partition` or `group` names a part of a request, this part
        gets the error, and the other parts are carried out. With acks=0 the connection is then closed, as Kafka does.
        Metadata with an error may still create a topic. Returns the number of the fault. Raises KafkaClusterError.

        A request gets one fault of each kind at most, in the order in which they were set. All brokers have the fault
        when this call returns, and no broker keeps it if this call raises. Requests of followers, and of this object
        itself, meet no fault.
        """
        return self._set_fault({"fault": "fail", "api": api, "error": error, **selection})

    def delay(self, api: str, seconds: float, **selection: Unpack[Selection]) -> int:
        """Carry requests out, and send their answers `seconds` later. Otherwise as fail()."""
        return self._set_fault({"fault": "delay", "api": api, "seconds": seconds, **selection})

    def cut(self, api: str, **selection: Unpack[Selection]) -> int:
        """Carry requests out, send half of each answer, and close the connection. Otherwise as fail()."""
        return self._set_fault({"fault": "cut", "api": api, **selection})

    def _set_fault(self, fault: dict[str, Any]) -> int:
        return int(self._ask("set_fault", **fault)["fault"])

    def faults(self) -> list[Fault]:
        """The faults that are set, and how many requests met each of them."""
        return [Fault(**one["rule"], met=one["met"], applied=one["applied"]) for one in self._ask("faults")["faults"]]

    def clear_faults(self) -> None:
        """Remove all faults. Answers that are already late stay late."""
        self._ask("clear_faults")

    # waiting ----------------------------------------------------------------------------------------------------------

    def wait_for_group(
        self, group: str, *, state: str = "Stable", members: int | None = None, timeout: float = ANSWER_S
    ) -> GroupSeen:
        """Wait until a group has this state, by Kafka's name, and with `members` this number of members.

        The state of a group that does not exist is "Dead". Raises KafkaClusterError after `timeout` seconds: its text
        has the group's state at this time, or names the group's coordinator, which has not answered.
        """
        wanted = {"group": group, "state": state, "members": members}
        found = self._ask("await_group", "wait_for_group", timeout, **wanted)["found"]
        return GroupSeen(found["state"], found["members"])

    def wait_for_records(
        self, topic: str, count: int, *, partition: int | None = None, timeout: float = ANSWER_S
    ) -> dict[int, int]:
        """Wait until consumers can read at least `count` records of a topic, or of one partition.

        Returns the number of records that each partition has. Raises KafkaClusterError after `timeout` seconds. While a
        broker is stopped, each look at the brokers takes up to five seconds, and the result lacks the partitions that
        this broker leads.
        """
        wanted = {"topic": topic, "count": count, "partition": partition}
        found = self._ask("await_records", "wait_for_records", timeout, **wanted)["found"]
        return {int(index): number for index, number in found.items()}

    def _ask(self, do: str, called: str | None = None, timeout: float | None = None, **given: Any) -> dict[str, Any]:
        """Give the cluster a command over its socket, where threads do not wait for each other."""
        name = called or given.get("fault") or do
        if self._process is None:
            raise KafkaClusterError(f"{name}: the cluster does not run: start()")
        more = {} if timeout is None else {"timeout": timeout}
        try:
            answer = ask(self.data, {"do": do, **given, **more}, ANSWER_S + patience(timeout))
        except TypeError as error:  # no JSON
            raise KafkaClusterError(f"{name}: {error}") from None
        except (OSError, EOFError) as error:
            raise KafkaClusterError(
                f"{name}: the cluster does not answer ({error}):\n{self.log[-LOG_SHOWN:]}"
            ) from error
        if "error" in answer:
            raise KafkaClusterError(f"{name}: {answer['error']}")
        return answer

    # processes --------------------------------------------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """The processes that run: the brokers by their numbers, and "daemon"."""
        return self.command({"do": "pids"})

    def state(self) -> dict[str, Any]:
        """For each broker: its partitions, their offsets and files, and the number of its waits."""
        return self.command({"do": "state"})

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """Give the cluster a command, and return its answer. Raises KafkaClusterError."""
        if self._process is None:
            raise KafkaClusterError("the cluster does not run: start()")
        assert self._process.stdin is not None
        with self._asking:
            number = next(self._numbers)
            with contextlib.suppress(BrokenPipeError):  # then no answer comes either
                self._process.stdin.write(json.dumps(command | {"number": number}).encode() + b"\n")
                self._process.stdin.flush()
            answer = self._answer(ANSWER_S)
            while answer.pop("number") != number:  # a late answer to an earlier command
                answer = self._answer(ANSWER_S)
        if "error" in answer:
            raise KafkaClusterError(f"{command['do']}: {answer['error']}")
        return answer

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next answer of the cluster."""
        assert self._process is not None and self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            readable = is_ready(descriptor, end - time.monotonic())
            data = os.read(descriptor, 65_536) if readable else b""
            if not data:
                what = "has ended" if readable else f"does not answer within {seconds:g} s"
                raise KafkaClusterError(f"the cluster {what}:\n{self.log[-LOG_SHOWN:]}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said


def patience(timeout: object) -> float:
    """How much longer the answer may take if the command waits: its timeout. A wrong timeout is refused at once."""
    return float(timeout) if isinstance(timeout, int | float) and 0 <= timeout <= TIMEOUT_MAX else 0.0
