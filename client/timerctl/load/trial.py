"""One run of the load test: from the start of its processes (and with --own of its daemon) to the judgement.

    check the room  ->  processes make ready  ->  Start at one moment  ->  follow the ring, show the progress
    ->  take the results (a column for each field)  ->  judge

A run that is cut short (Ctrl-C, or the end of a process or the daemon) has a reason (`partial`), and partial results.
"""

from __future__ import annotations

import secrets
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import psutil

from timerctl.exits import Exit, NoDaemonError
from timerctl.instance import open_arena
from timerctl.load.harness.crew import Crew, CrewError, Member
from timerctl.load.harness.messages import Fired, Registered, Role, Task, Usage
from timerctl.load.harness.part import PURGATORY
from timerctl.show.text import span
from timerd_client.workload import Events, Workload, plan
from timerd_shm.declare.counters import PURGATORY_COUNTERS, index_of
from timerd_shm.declare.layout import PURGATORY_COUNTERS_MAX
from timerd_shm.host.paths import InstancePaths, daemon_running
from timerd_shm.read.reader import ArenaReader

from .judge import Applied, Judgement, judge
from .own_daemon import flags_of, private_daemon
from .ring import RingFollower
from .room import check_instance, check_machine
from .stolen import Stolen

START_NS = 200_000_000  # from the last Ready to the start
PROGRESS_NS = 1_000_000_000
CHECK_NS = 100_000_000
COUNTERS = {name: index_of(PURGATORY_COUNTERS, name) for name in ("registered", "completed", "expired", "pending")}
NOTHING = Usage(0, 0)


class Options(NamedTuple):
    """The options of a run that are not part of its workload."""

    bulk: bool = False
    pending: int = 0  # far-future operations that are pending all the time
    own: bool = False  # with a daemon of its own


class Result(NamedTuple):
    """The result of a run: its columns, and their judgement."""

    workload: Workload
    options: Options
    judgement: Judgement
    registered: list[Registered]
    fired: list[Fired]
    start_ns: int
    daemon: Usage
    stolen: float  # share of the processors' time that the host of a virtual machine took
    events_unseen: int
    partial: str  # why the run was cut short; empty if it was not
    status: Exit  # the exit status that `partial` leads to


def run_load(workload: Workload, options: Options, existing: Callable[[], InstancePaths]) -> Result:
    """Run at the instance that `existing` finds, or at a private daemon. Raises an error if the run cannot begin."""
    check_machine(workload, options.pending, options.own)
    with ExitStack() as stack:
        own = private_daemon(flags_of(workload, options.pending)) if options.own else None
        paths = stack.enter_context(own) if own is not None else existing()
        reader = stack.enter_context(open_arena(paths))
        if not options.own:
            check_instance(reader, paths.instance, workload, options.pending)
        crew = stack.enter_context(Crew(paths))
        return Trial(workload, options, paths, reader, crew).play()


class Trial:
    """A run, with everything that it needs. Played once."""

    def __init__(
        self, workload: Workload, options: Options, paths: InstancePaths, reader: ArenaReader, crew: Crew
    ) -> None:
        self._workload = workload
        self._options = options
        self._paths = paths
        self._reader = reader
        self._crew = crew
        self._prefix = secrets.token_hex(2)

    def play(self) -> Result:
        """Play the run from the processes' start on. Raises CrewError, NoDaemonError if the run could not begin."""
        workload, crew = self._workload, self._crew
        if self._options.pending:
            self._add(Role.PENDING, 0)
            crew.await_ready(self._check_daemon)
        registrars = [self._add(Role.REGISTRAR, index) for index in range(workload.registrars)]
        firers = [self._add(Role.FIRER, index) for index in range(workload.firers)]
        crew.await_ready(self._check_daemon)

        follower = RingFollower(self._reader)
        daemon = psutil.Process(self._reader.header().pid)
        cpu_ns, stolen = usage_of(daemon).cpu_ns, Stolen()
        start_ns = time.monotonic_ns() + START_NS
        partial, status = "", Exit.OK
        try:
            crew.start([*registrars, *firers], start_ns)
            self._follow(follower, [*registrars, *firers], start_ns)
        except KeyboardInterrupt:
            partial, status = "interrupted", Exit.INTERRUPTED
        except CrewError as error:
            partial, status = str(error), error.status
        except NoDaemonError as error:
            partial, status = str(error), Exit.NO_DAEMON
        if sys.stderr.isatty():
            print(file=sys.stderr)  # ends the progress line
        if partial:
            crew.stop([*registrars, *firers])
        follower.poll()
        used, share = usage_of(daemon), stolen.share()

        registered = [
            member.answer if isinstance(member.answer, Registered) else no_registrations(workload, index)
            for index, member in enumerate(registrars)
        ]
        fired = [member.answer if isinstance(member.answer, Fired) else NO_EVENTS for member in firers]
        applied = [
            follower.applied(member.topic, len(answer.sent_ns)) for member, answer in zip(firers, fired, strict=True)
        ]
        events = Applied(workload, registered, fired, applied)
        judgement = judge(workload, registered, events, start_ns, partial=bool(partial))
        return Result(
            workload,
            self._options,
            judgement,
            registered,
            fired,
            start_ns,
            used._replace(cpu_ns=max(used.cpu_ns - cpu_ns, 0)),
            share,
            follower.unseen,
            partial,
            status,
        )

    def _add(self, role: Role, index: int) -> Member:
        options = self._options
        return self._crew.add(
            Task(role, index, self._paths.instance, self._workload, self._prefix, options.bulk, options.pending)
        )

    def _follow(self, follower: RingFollower, members: list[Member], start_ns: int) -> None:
        """Follow the ring until all members have answered.

        Raises CrewError if a member cannot go on, NoDaemonError if the daemon has ended.
        """
        period_s = follower.period_s(self._workload.rate)
        before = self._counters()
        check_ns = progress_ns = start_ns
        while any(member.answer is None for member in members):
            self._crew.listen(period_s)
            follower.poll()
            now_ns = time.monotonic_ns()
            if now_ns >= check_ns:
                check_ns = now_ns + CHECK_NS
                self._check_daemon()
                for member in members:
                    if member.answer is not None and member.answer.failure:
                        raise CrewError(f"{member}: {member.answer.failure}", Exit.NO_DAEMON)
            if now_ns >= progress_ns + PROGRESS_NS:
                progress_ns += PROGRESS_NS
                self._show_progress(now_ns - start_ns, before)
        for member in members:
            if member.answer is not None and member.answer.failure:
                raise CrewError(f"{member}: {member.answer.failure}", Exit.NO_DAEMON)

    def _check_daemon(self) -> None:
        if not daemon_running(self._paths):
            raise NoDaemonError(f"the daemon of instance {self._paths.instance!r} has ended")

    def _counters(self) -> dict[str, int]:
        """The purgatory's counters, from shared memory."""
        reader = self._reader
        names = [reader.purgatory_name(index) for index, each in enumerate(reader.purgatories) if each.state]
        first = names.index(PURGATORY) * PURGATORY_COUNTERS_MAX
        return {name: reader.purgatory_counters[first + at].value for name, at in COUNTERS.items()}

    def _show_progress(self, since_ns: int, before: dict[str, int]) -> None:
        """Print the progress line. On a terminal it overwrites the line before."""
        counts = {name: count - before[name] for name, count in self._counters().items()}
        line = f"{span(since_ns)}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())
        over = sys.stderr.isatty()
        print(f"\r{line:79}" if over else line, end="" if over else "\n", file=sys.stderr, flush=True)


def usage_of(process: psutil.Process) -> Usage:
    """CPU time of a process since its start, and its memory; NOTHING if it has ended."""
    with suppress(psutil.Error), process.oneshot():
        times = process.cpu_times()
        return Usage(round((times.user + times.system) * 1e9), process.memory_info().rss)
    return NOTHING


def no_registrations(workload: Workload, registrar: int) -> Registered:
    """An empty answer, for a registrar that did not send one."""
    none = array("q")
    return Registered(
        plan(workload, registrar), none, none, none, none, none, none, none, none, 0, 0, none, {}, NOTHING, "no answer"
    )


NO_EVENTS = Fired(Events(array("q"), array("I"), array("I")), array("q"), array("q"), NOTHING, "no answer")
