"""The commands to a running cluster, from its standard input (--commands) or from the socket in its directory.

    {"number": 7, "do": "stop_follower", "topic": "orders", "partition": 0, "broker": 2}
        -> {"number": 7, "2": {"done": 1}}    or {"number": 7, "error": ...}
    {"number": 8, "do": "kill", "broker": 1}    ... "kill_daemon"    ... "state"    ... "pids"
    {"number": 9, "do": "set_fault", "fault": "cut", "api": "Fetch"}    ... "faults"    ... "clear_faults"
    {"number": 10, "do": "await_group", "group": "g", "state": "Stable", "members": 2, "timeout": 10}
    {"number": 11, "do": "await_records", "topic": "t", "count": 100, "partition": null, "timeout": 10}

At the standard input, the caller numbers its commands, and an answer has its command's number, because it may come
after the next command. At the socket, a command needs no number, and its answer has none. The end of the standard input
ends the cluster, so the cluster does not outlive its test.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from timerd_kafka.cluster.settings import Settings
from timerd_kafka.faults.rules import FAULTS, RULES_MAX, Counted, Rule, RuleError, count_file, is_whole
from timerd_kafka.supervisor.conditions import Condition, ConditionError, GroupCondition, RecordsCondition

BROKERS_S = 5.0  # the longest wait for brokers, shorter than the ten seconds that a test waits for the answer
TAKE_OUT_S = 1.0  # the longest wait for brokers to remove a fault again, after one did not answer
LOOK_AGAIN_S = 0.02  # between two looks at a condition that a command awaits

log = logging.getLogger("timerd_kafka.supervisor")

Answer = Callable[[dict[str, Any]], object]


class Cluster(Protocol):
    """The parts of a supervisor that commands use."""

    def pids(self) -> dict[str, int]:
        """The pids of the processes that run: the brokers, by their numbers ("0", "1" ...), and "daemon"."""

    def ask_broker(self, number: int, command: dict[str, Any]) -> bool:
        """Send a command to a broker. Returns False if it does not run."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after `seconds`."""

    def end(self) -> None:
        """End the cluster."""


@dataclass
class Asked:
    """A command that some brokers have not answered yet."""

    answer: Answer
    awaited: set[int] = field(default_factory=set)
    answers: dict[str, Any] = field(default_factory=dict)


class Commands:
    """The commands that are under way, and the faults that were set."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster, self._settings = cluster, settings
        self._buffer = b""
        self._keys = itertools.count(1)  # brokers answer with the key of the command
        self._asked: dict[int, Asked] = {}
        self._faults_set = 0
        self.rules: tuple[Rule, ...] = ()
        self._own: dict[str, Callable[[dict[str, Any], Answer], None]] = {
            "pids": lambda _, answer: self._act(lambda: None, answer),
            "kill": lambda command, answer: self._act(lambda: self._kill(str(command["broker"]), command), answer),
            "kill_daemon": lambda command, answer: self._act(lambda: self._kill("daemon", command), answer),
            "set_fault": self._set_fault,
            "faults": self._faults,
            "clear_faults": lambda _, answer: self._take_rules((), lambda answers: answer(failure(answers) or {})),
            "await_group": lambda command, answer: self._await(GroupCondition.of(command, settings.workers), answer),
            "await_records": lambda command, answer: self._await(RecordsCondition.of(command), answer),
        }

    def hear(self, _: object) -> None:
        """Read the commands that have arrived at the standard input."""
        data = os.read(sys.stdin.fileno(), 65_536)
        if not data:
            self._cluster.end()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            self.take(command, partial(say, command["number"]))

    def take(self, command: dict[str, Any], answer: Answer) -> None:
        """Do a command. `answer` is called once with its answer, which is an error if there is no such command."""
        try:
            self._do(command, answer)
        except (RuleError, ConditionError) as error:
            answer({"error": str(error)})
        except Exception as error:
            log.exception("a command failed")
            answer({"error": f"{type(error).__name__}: {error}"})

    def _do(self, command: dict[str, Any], answer: Answer) -> None:
        own, broker = self._own.get(command["do"]), command.get("broker")
        if own is not None:
            own({name: value for name, value in command.items() if name not in ("do", "number")}, answer)
        elif broker is None or is_whole(broker, 0):
            self._ask(command, broker, BROKERS_S, answer)
        else:
            answer({"error": f"broker={broker!r}: the number of a broker; None for all brokers"})

    # processes --------------------------------------------------------------------------------------------------------

    def _kill(self, name: str, command: dict[str, Any]) -> None:
        os.kill(self._cluster.pids()[name], command.get("signal", signal.SIGKILL))

    def _act(self, act: Callable[[], object], answer: Answer) -> None:
        pids = self._cluster.pids()
        try:
            act()
        except KeyError as error:
            answer({"error": f"there is no process {error} now; there are {', '.join(pids)}"})
        except (OSError, TypeError, OverflowError) as error:
            answer({"error": f"{error}"})
        else:
            answer(dict(pids))

    # brokers ----------------------------------------------------------------------------------------------------------

    def _ask(self, command: dict[str, Any], broker: int | None, seconds: float, answer: Answer) -> None:
        """Ask one broker, or all brokers."""
        key = next(self._keys)
        pids = self._cluster.pids()
        meant = [int(name) for name in pids if name != "daemon"] if broker is None else [broker]
        asked = self._asked[key] = Asked(answer)
        asked.awaited |= {one for one in meant if self._cluster.ask_broker(one, command | {"number": key})}
        self._cluster.later(seconds, lambda: self._give_up(key, seconds))
        self._answer_if_all(key)

    def answered(self, broker: int, answer: dict[str, Any]) -> None:
        """Take a broker's answer to a command."""
        key = answer.pop("number", None)
        if key in self._asked:
            self._asked[key].answers[str(broker)] = answer
            self._asked[key].awaited.discard(broker)
            self._answer_if_all(key)

    def lost(self, broker: int) -> None:
        """Expect no more answers of a broker, which has ended."""
        for key, asked in list(self._asked.items()):
            asked.awaited.discard(broker)
            self._answer_if_all(key)

    def _answer_if_all(self, key: int) -> None:
        if not self._asked[key].awaited:
            asked = self._asked.pop(key)
            asked.answer(asked.answers)

    def _give_up(self, key: int, seconds: float) -> None:
        """Answer a command whose time is over with an error, and with the answers that are there.

        Perhaps the test itself has stopped the silent broker.
        """
        asked = self._asked.pop(key, None)
        if asked is not None:
            silent = sorted(asked.awaited)
            which = " and ".join(f"broker {broker} does not answer" for broker in silent)
            remedy = f"if it was stopped, kill({silent[0]}, signal.SIGCONT) lets it go on"
            asked.answer({**asked.answers, "error": f"{which} within {seconds:.3g} s; {remedy}"})

    # faults -----------------------------------------------------------------------------------------------------------

    def _set_fault(self, command: dict[str, Any], answer: Answer) -> None:
        if len(self.rules) >= RULES_MAX:
            raise RuleError(f"{RULES_MAX} faults are set: clear_faults() removes them")
        rule = Rule.of(command, self._faults_set + 1, self._settings.workers)
        self._faults_set += 1
        path = count_file(self._settings.data, rule)
        path.parent.mkdir(exist_ok=True)
        path.touch()

        def taken(answers: dict[str, Any]) -> None:
            if "error" not in answers:
                answer({"fault": rule.number})
                return
            # The caller gets no number, and expects no fault. The brokers that answer take the rule out at once.
            error = {"error": f"{answers['error']}. The fault is not set"}
            others = tuple(one for one in self.rules if one is not rule)
            self._take_rules(others, lambda _: answer(error), TAKE_OUT_S, rule.broker)

        self._take_rules((*self.rules, rule), taken, broker=rule.broker)

    def _faults(self, _: dict[str, Any], answer: Answer) -> None:
        counted = [Counted.read(self._settings.data, rule) for rule in self.rules]
        answer({"faults": [{"rule": one.rule._asdict(), "met": one.met, "applied": one.applied} for one in counted]})

    def _take_rules(
        self, rules: tuple[Rule, ...], answer: Answer, seconds: float = BROKERS_S, broker: int | None = None
    ) -> None:
        """Give the rules to all brokers, or to the one that a changed rule names: others may be stopped.

        A broker that is started later gets them at its start.
        """
        gone, self.rules = set(self.rules) - set(rules), rules

        def taken(answers: dict[str, Any]) -> None:
            for rule in gone:
                count_file(self._settings.data, rule).unlink(missing_ok=True)
            answer(answers)

        self._ask({"do": FAULTS, "rules": [rule._asdict() for rule in rules]}, broker, seconds, taken)

    # conditions -------------------------------------------------------------------------------------------------------

    def _await(self, condition: Condition, answer: Answer) -> None:
        """Answer when a condition holds, or with an error when the time is over."""
        end = time.monotonic() + condition.timeout
        last: Any = None  # what the brokers have said at the last look that all of them have answered

        def looked(answers: dict[str, Any]) -> None:
            nonlocal last
            left = end - time.monotonic()
            holds, found = condition.look(answers)
            if last is None or not failure(answers):
                last = found
            if holds:
                answer({"found": found})
            elif left <= 0:
                answer({"error": "; ".join([condition.missed(last), *failure(answers).values()])})
            else:
                self._cluster.later(min(left, LOOK_AGAIN_S), look)

        def look() -> None:
            seconds = min(BROKERS_S, max(LOOK_AGAIN_S, end - time.monotonic()))
            self._ask(condition.question, condition.broker, seconds, looked)

        look()


def failure(answers: dict[str, Any]) -> dict[str, Any]:
    """The error of the brokers' answers, if there is one; otherwise an empty dictionary."""
    return {"error": answers["error"]} if "error" in answers else {}


def say(number: int, what: dict[str, Any]) -> None:
    """Answer the command with this number."""
    sys.stdout.write(json.dumps({"number": number, **what}) + "\n")
    sys.stdout.flush()
