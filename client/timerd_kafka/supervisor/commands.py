"""The commands of a test to a running cluster: lines of JSON on standard input, with answers on standard output.

    {"number": 7, "do": "stop_follower", "topic": "orders", "partition": 0, "broker": 2}
        -> {"number": 7, "0": {}, "2": {"done": 1}, ...}    or {"number": 7, "error": ...}
    {"number": 8, "do": "kill", "broker": 1}    ... "kill_daemon"    ... "state"    ... "pids"

The test numbers its commands, and an answer has its command's number, because it may come after the next command. The
end of the input ends the cluster, so the cluster does not outlive its test.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Protocol

BROKERS_S = 5.0  # the longest wait for brokers, shorter than the ten seconds that a test waits for the answer


class Cluster(Protocol):
    """The parts of a supervisor that commands use."""

    def pids(self) -> dict[str, int]:
        """The pids of the processes, by their names: "0" to "N", and "daemon"."""

    def ask_broker(self, number: int, command: dict[str, Any]) -> bool:
        """Send a command to a broker. Returns False if it does not run."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after `seconds`."""

    def end(self) -> None:
        """End the cluster."""


class Commands:
    """The commands that are under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._buffer = b""
        self._awaited: dict[int, set[int]] = {}  # by the number of a command: the brokers that have not answered
        self._answers: dict[int, dict[str, Any]] = {}

    def hear(self, _: object) -> None:
        """Read the commands that have arrived."""
        data = os.read(sys.stdin.fileno(), 65_536)
        if not data:
            self._cluster.end()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._do(json.loads(line))

    def _do(self, command: dict[str, Any]) -> None:
        pids, number = self._cluster.pids(), command["number"]
        own: dict[str, Callable[[], object]] = {
            "pids": lambda: None,
            "kill": lambda: os.kill(pids[str(command["broker"])], command.get("signal", signal.SIGKILL)),
            "kill_daemon": lambda: os.kill(pids["daemon"], command.get("signal", signal.SIGKILL)),
        }
        if command["do"] in own:
            try:
                own[command["do"]]()
            except KeyError as error:
                say(number, {"error": f"there is no process {error} now; there are {', '.join(pids)}"})
            except (OSError, TypeError, OverflowError) as error:
                say(number, {"error": f"{error}"})
            else:
                say(number, pids)
            return
        broker = command.get("broker")
        meant = [int(name) for name in pids if name != "daemon"] if broker is None else [broker]
        self._answers[number] = {}
        self._awaited[number] = {one for one in meant if self._cluster.ask_broker(one, command)}
        self._cluster.later(BROKERS_S, lambda: self._give_up(number))
        self._say_if_all(number)

    def answered(self, broker: int, answer: dict[str, Any]) -> None:
        """Take a broker's answer to a command."""
        number = answer.pop("number", None)
        if number in self._awaited:
            self._answers[number][str(broker)] = answer
            self._awaited[number].discard(broker)
            self._say_if_all(number)

    def lost(self, broker: int) -> None:
        """Expect no more answers of a broker, which has ended."""
        for number, awaited in list(self._awaited.items()):
            awaited.discard(broker)
            self._say_if_all(number)

    def _say_if_all(self, number: int) -> None:
        if not self._awaited[number]:
            del self._awaited[number]
            say(number, self._answers.pop(number))

    def _give_up(self, number: int) -> None:
        """Answer a command whose time is over with an error. Perhaps the test itself has stopped the silent broker."""
        silent = sorted(self._awaited.pop(number, ()))
        if silent:
            del self._answers[number]
            which = " and ".join(f"broker {broker} does not answer" for broker in silent)
            remedy = f"if it was stopped, kill({silent[0]}, signal.SIGCONT) lets it go on"
            say(number, {"error": f"{which} within {BROKERS_S:g} s; {remedy}"})


def say(number: int, what: dict[str, Any]) -> None:
    """Answer the command with this number."""
    sys.stdout.write(json.dumps({"number": number, **what}) + "\n")
    sys.stdout.flush()
