"""The gate: limits that the daemon and the witnesses must keep under each attack. `judge()` plays and judges its runs.

    the daemon       at most 20 ms of the conductor's CPU in any turn, and at most 64 MB more memory, in every run
    the witnesses    p99 at most 20 ms for a member, 100 ms for a newcomer, 50 ms for a call, and nothing UNAVAILABLE:
                     the median of the attacked runs (witnesses.py)
    the daemon's end none. With `locks` the suite kills the daemon once, and its unit starts it again

Each attack has several stages: a new daemon with its witnesses, first at peace and then attacked. A crowd of 8 or 20
busy attackers takes the processors from the witnesses, whatever the daemon does. So while its stage is at peace, a
crowd attacks another daemon, and the witnesses' limits apply to what their p99 is above the p99 at peace. A run is
repeated if the host took over 2 % of the machine's time meanwhile, or as much time as a turn took beyond its limit:
such a run does not measure the daemon.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import statistics
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.lib.common import Refused, Suite
from timerctl.load.report import percentiles
from timerd_shm.declare.layout import DaemonHistogram
from timerd_shm.host.paths import InstancePaths, daemon_running, open_arena_file
from timerd_shm.read.reader import ArenaReader

from .attackers import ATTACKS, Attack
from .attackers.attacker import attacking
from .serving import Unit, unit
from .witnesses import WITNESSES, Witness, witnesses

TURN_CPU_MS_MAX = 20.0
GROWN_MB_MAX = 64.0
STOLEN_MAX = 0.02
REPEATS_MAX = 5  # of a run during which the host stole too much
WARM_S = 1.0  # before the counted time begins
AFTER_S = 1.5  # still counted after the attacker's end, because the daemon then removes the attacker's connections
MB = 1_000_000


class Run(NamedTuple):
    """The figures of one run."""

    attack: str
    attacked: bool
    acts: int
    turn_cpu_max_ms: float
    grown_mb: float
    member_p99_ms: float
    newcomer_p99_ms: float
    call_p99_ms: float
    max_ms: float  # of all witnesses
    unavailable: int
    rounds: int  # of the witness that made the fewest
    stolen: float
    stolen_ms: float
    alive: bool
    restarts: int
    wrong: list[str]

    @property
    def is_spoiled(self) -> bool:
        """Whether the host took so much time that the figures may not be the daemon's.

        The kernel counts time that the host takes in the middle of a turn as CPU time of the turn.
        """
        return self.stolen > STOLEN_MAX or 0 < self.turn_cpu_max_ms - TURN_CPU_MS_MAX <= self.stolen_ms


class Stage:
    """A daemon as an attack needs it, and the witnesses beside it. One run at a time is played on it."""

    def __init__(self, name: str, attack: Attack, flags: list[str], served: Unit, beside: list[Witness]) -> None:
        self._name, self._attack, self._flags, self._served, self._beside = name, attack, flags, served, beside

    def at_peace(self, seconds: float, seed: int) -> Run:
        """Attack nobody, or if the attack is a crowd's, another daemon.

        The figures are then the floor that this machine sets: they show only what the attackers' processes take from
        the witnesses by running on the same processors.
        """
        if not self._attack.is_crowd:
            return self._run(seconds, contextlib.nullcontext())
        with unit(self._flags, self._attack.files) as other:
            return self._run(seconds, self._attacking(other, seed))

    def attacked(self, seconds: float, seed: int) -> Run:
        """Attack the daemon. This is the last run on its stage: nothing is left as it was."""
        run = self._run(seconds, self._attacking(self._served, seed), self._attack.kills)
        return run._replace(attacked=True, wrong=run.wrong + wrong_with(self._attack, self._served))

    def _attacking(self, victim: Unit, seed: int) -> contextlib.AbstractContextManager[Any]:
        attack = self._attack
        return attacking(attack.act, attack.transport, victim.paths, seed, attack.is_stranger)

    def _run(self, seconds: float, during: contextlib.AbstractContextManager[Any], kills: int = 0) -> Run:
        memory = Memory(self._served)
        with during as count:
            for witness in self._beside:
                witness.look()
            stolen = Stolen()
            for _ in range(kills):
                pause(seconds / (kills + 1))
                self._served.kill()
            pause(seconds / (kills + 1))
            acts = count.value if count else 0
        if count:
            pause(AFTER_S)
        seen = {witness.name: witness.look() for witness in self._beside}
        times = {name: percentiles(each.took_ns) for name, each in seen.items()}
        return Run(
            self._name,
            False,
            acts,
            round(turn_cpu_max_ms(self._served.paths), 2),
            round(memory.end() / MB, 1),
            round(times["member"]["p99"] / 1e3, 2),
            round(times["newcomer"]["p99"] / 1e3, 2),
            round(times["call"]["p99"] / 1e3, 2),
            round(max(each["max"] for each in times.values()) / 1e3, 2),
            sum(each.unavailable for each in seen.values()),
            min(len(each.took_ns) for each in seen.values()),
            round(stolen.share(), 4),
            round(stolen.ms(), 1),
            self._served.runs and daemon_running(self._served.paths),
            self._served.restarts,
            [text for each in seen.values() for text in each.wrong],
        )


@contextlib.contextmanager
def stage(name: str, attack: Attack) -> Iterator[Stage]:
    """Run a daemon and the witnesses. Each witness has been served when the block begins."""
    with (
        own_flags(attack.flags) as flags,
        unit(flags, attack.files) as served,
        witnesses(served.paths, attack.transport) as beside,
    ):
        pause(WARM_S)
        yield Stage(name, attack, flags, served, beside)


def wrong_with(attack: Attack, served: Unit) -> list[str]:
    """Faults of the daemon beside this attack: it was not started again once for each kill, or its log lacks a text."""
    wrong = []
    if served.restarts != attack.kills:
        wrong.append(f"the daemon was started again {served.restarts} times, not {attack.kills}")
    if attack.says not in served.log:
        wrong.append(f"the daemon's log does not say {attack.says!r}")
    return wrong


def resume(suite: Suite, path: Path) -> None:
    """Take over the attacks that an interrupted gate has judged, from the document that it has written.

    Raises Refused if another machine has played them: figures of two machines are no table.
    """
    document = json.loads(path.read_text())
    then, now = (f"{each['cpu']}, {each['cores']} processors" for each in (document["machine"], suite.machine))
    if then != now:
        raise Refused(f"--resume: {path} has attacks that {then} has played; this is {now}: play all, without --resume")
    judged = {row["attack"] for row in document["tables"].get("gate", ())}
    for table, rows in document["tables"].items():
        for row in rows:
            if row["attack"] in judged:
                suite.add(table, **row)
    for name in judged & document["checks"].keys():
        suite.check(name, **document["checks"][name])
    suite.say(f"{len(judged)} attacks were judged by {path}")


def judge(suite: Suite, name: str, runs: int, seconds: float) -> None:
    """Play an attack's stages: at peace, then attacked. Add all runs to the tables, and check the gate."""
    attack = ATTACKS[name]
    if attack.is_stranger and os.geteuid():
        return suite.say(f"{name} is left out: its attacker is another user, and that needs root")
    peace: list[Run] = []
    war: list[Run] = []
    for number in range(runs):
        peace_left, left = 1 + REPEATS_MAX, 1 + REPEATS_MAX
        while left:
            suite.say(f"{name}: stage {number + 1} of {runs}")
            with stage(name, attack) as made:
                while peace_left:
                    run = note(suite, made.at_peace(seconds, suite.seed + number))
                    peace_left = peace_left - 1 if run.is_spoiled else 0
                    peace[number:] = [run]
                run = note(suite, made.attacked(seconds, suite.seed + number))
            left = left - 1 if run.is_spoiled else 0
            war[number:] = [run]
    cpu, grown = max(run.turn_cpu_max_ms for run in war), max(run.grown_mb for run in war)
    p99 = {name: medians(war, f"{name}_p99_ms") for name in WITNESSES}
    floor = {name: medians(peace, f"{name}_p99_ms") * attack.is_crowd for name in WITNESSES}
    unavailable = medians(war, "unavailable")
    wrong = [text for run in war for text in run.wrong]
    alive, restarts = all(run.alive for run in war), sum(run.restarts for run in war)
    served, acted = all(run.rounds for run in war), all(run.acts for run in war)
    holds = (
        served
        and acted
        and cpu <= TURN_CPU_MS_MAX
        and grown <= GROWN_MB_MAX
        and all(p99[name] - floor[name] <= kind.p99_ms_max for name, kind in WITNESSES.items())
        and not unavailable
        and not wrong
        and alive
    )
    suite.add(
        "gate",
        attack=name,
        acts=round(statistics.median(run.acts for run in war)),
        turn_cpu_max_ms=cpu,
        peace_turn_cpu_max_ms=max(run.turn_cpu_max_ms for run in peace),
        grown_mb=grown,
        **{f"{name}_p99_ms": p99[name] for name in WITNESSES},
        **{f"peace_{name}_p99_ms": medians(peace, f"{name}_p99_ms") for name in WITNESSES},
        unavailable=int(unavailable),
        restarts=restarts,
        commit=suite.machine["commit"],
        holds=holds,
    )
    says = (
        f"{cpu:.1f} ms of CPU in a turn (at most {TURN_CPU_MS_MAX:g}), {grown:.1f} MB more ({GROWN_MB_MAX:g}), "
        f"p99 {', '.join(f'{name} {p99[name]:.1f} ms ({kind.p99_ms_max:g})' for name, kind in WITNESSES.items())}, "
        f"{unavailable:g} UNAVAILABLE (0)"
    )
    if attack.is_crowd:
        says += f", beside another daemon p99 {', '.join(f'{name} {floor[name]:.1f} ms' for name in WITNESSES)}"
    says += "" if alive else "; the daemon has ended"
    says += f"; started again by its unit: {restarts}" if restarts else ""
    says += "" if served else "; a witness was never served"
    says += "" if acted else "; an attacker did nothing"
    says += f"; {wrong[0]}" if wrong else ""
    suite.check(name, holds, says)


def note(suite: Suite, run: Run) -> Run:
    """Add a run to the tables."""
    suite.add("runs", **run._replace(wrong=[])._asdict() | {"wrong": "; ".join(run.wrong)[:200]})
    return run


def medians(runs: list[Run], of: str) -> float:
    """The median of a figure over runs."""
    return float(statistics.median(getattr(run, of) for run in runs))


class Memory(threading.Thread):
    """Measures, 20 times a second, by how many private bytes a daemon has grown."""

    def __init__(self, served: Unit) -> None:
        super().__init__(name="memory", daemon=True)
        self._served = served
        self._most = self._first = self._private()
        self._over = threading.Event()
        self.start()

    def _private(self) -> int:
        memory = psutil.Process(self._served.pid).memory_info()
        return int(memory.rss - memory.shared)

    def run(self) -> None:
        while not self._over.wait(0.05):
            with contextlib.suppress(psutil.Error):  # it is being started again
                self._most = max(self._most, self._private())

    def end(self) -> int:
        self._over.set()
        self.join()
        return self._most - self._first


class Stolen:
    """How much of the machine's time its host has stolen since this was made."""

    def __init__(self) -> None:
        self._before = self._look()

    @staticmethod
    def _look() -> tuple[int, int]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return ticks[7], sum(ticks)  # user nice system idle iowait irq softirq steal

    def share(self) -> float:
        stolen, whole = (now - before for now, before in zip(self._look(), self._before, strict=True))
        return stolen / whole if whole else 0.0

    def ms(self) -> float:
        return 1e3 * (self._look()[0] - self._before[0]) / os.sysconf("SC_CLK_TCK")


def turn_cpu_max_ms(paths: InstancePaths) -> float:
    """The most CPU that the conductor has used in one turn since the arena was made."""
    reader = ArenaReader.from_descriptor(open_arena_file(paths))
    try:
        return float(reader.daemon_histograms()[DaemonHistogram.TURN_CPU].max) / 1e6
    finally:
        reader.close()


@contextlib.contextmanager
def own_flags(flags: tuple[str, ...]) -> Iterator[list[str]]:
    """These flags, with a new directory for each `{journal}`, and the group of this process for each `{group}`."""
    with tempfile.TemporaryDirectory(prefix="timerd-gate-") as directory:
        group = grp.getgrgid(os.getgid()).gr_name
        yield [flag.format(journal=directory, group=group) for flag in flags]


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)
