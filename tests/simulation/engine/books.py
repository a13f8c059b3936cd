"""The invariants of a simulation: the books note what clients issue and what they get, and compare the two."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from timerd_client.errors import CallGivenUpError
from timerd_client.groups.outcome import GroupOutcome
from timerd_client.groups.plan import ALONE_FROM, CALL, Plan, unpack
from timerd_client.groups.points import MISSED_MAX
from timerd_client.groups.steps import Call
from timerd_client.link.batch import ThreadedBatch
from timerd_client.link.operation import ThreadedOperation
from timerd_client.outcome import State
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.protocol.state import LinkState
from timerd_client.threaded.delayed import DelayedOperation
from timerd_shm.declare.errors import ErrorCode, TimerdError
from timerd_shm.declare.limits import GRACE_NS
from timerd_shm.declare.states import CallPhase

from .issued import Issued
from .letters import Letter
from .schedule import Schedule

if TYPE_CHECKING:
    from .process import Process

KNOWN_COMPLAINTS = (
    "still runs",
    "still ran",
    "clients are connected",
    "is not scheduled yet",
    "nothing is delivered to this client for its group",
    "is lost: silent for",
    "does not answer yet",
    "is back after",
    "later than its grace",
    "processes have ended in",
)
DELIVERIES = 3  # the setting of every handler: a call is given up after this number of processes have ended in it
TRACED = 400  # a failure prints this number of the newest lines of the trace


class PlannedFailure(Exception):
    """An error that a handler raises on purpose."""


class Watched:
    """An operation of a living process."""

    def __init__(self, process: Process, operation: ThreadedOperation, what: str, key: str, arena: int) -> None:
        self.process = process
        self.operation = operation
        self.what = what
        self.key = key
        self.arena = arena
        self.issued = Issued(process)
        self.earliest_ns = operation.deadline_ns
        self.others_may_reschedule = False
        self.target = 0  # of the watermark key, if it waits for a watermark
        self.settlement: Any = None


class Total:
    """A total on a key of its own, and the amounts that were fired on it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.fires: list[tuple[Issued, int]] = []


@dataclass(eq=False)
class Running:
    """One run of a handler, or of its on_failure."""

    process: Process
    incarnation: bytes
    call: Call
    arena: int  # the newest arena that its client knew
    began_ns: int
    has_id: bool  # False for an on_failure that runs again
    is_alone: bool = False  # no other handler may run in its process
    ended: bool = False  # the handler has returned, or has failed as planned
    failed: bool = False
    died_ns: int | None = None  # when its process ended in this run
    given_back: bool = False  # its client was closed meanwhile: then the end of its process does not count
    is_last: bool = True  # the call does not come again after this run


class Books:
    """All that is expected, to be compared with what happens. `failures` is looked at after each step."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.failures: list[str] = []
        self.trace: deque[str] = deque(maxlen=TRACED)
        self.arena = 0  # the number of arenas that were destroyed
        self.watched: list[Watched] = []
        self.batches: list[tuple[Process, ThreadedBatch]] = []
        self.delayed: list[tuple[Process, DelayedOperation, list[object]]] = []
        self.totals: dict[str, Total] = {}
        self.limits: dict[bytes, int] = {}  # value of a limited event -> its limit
        self.grants: Counter[bytes] = Counter()
        self.advances: defaultdict[str, list[tuple[Issued, int, int]]] = defaultdict(list)
        self.pairs: dict[str, tuple[Watched, Issued]] = {}
        self.pair_keys: list[str] = []
        self._numbers = 0
        self.for_group: dict[bytes, Watched] = {}  # payload -> operation that a group adopts if its owner dies
        self.done: set[bytes] = set()
        self.acknowledged: dict[bytes, Issued] = {}
        self.of_group: dict[bytes, tuple[Issued, int]] = {}  # payload -> operation with group=True, and its arena
        self.calls: dict[bytes, str] = {}  # payload -> name, of every one-shot call that was asked for
        self.ids: dict[bytes, str] = {}  # payload -> id, of calls with an id
        self.asked_in: dict[bytes, int] = {}  # payload -> arena
        self.cancelling: Counter[str] = Counter()
        self.doubtful: set[bytes] = set()  # payloads of calls that may have been cancelled
        self.expected: dict[bytes, int] = {}  # payload -> arena, of calls that were accepted and not withdrawn
        # The runs of one attempt. Its key: the name, the payload of the call (or the schedule's point), the attempt.
        self.runs: dict[tuple[str, object, int], list[Running]] = defaultdict(list)
        self.failings: dict[tuple[str, object, int], list[Running]] = defaultdict(list)  # the same for on_failure
        self.running_now: list[Running] = []
        # By the same keys as in `runs`, what clients announced to the daemon: (phase, incarnation of the client).
        self.announced: dict[tuple[str, object, int], list[tuple[CallPhase, bytes]]] = defaultdict(list)
        self.dead: set[bytes] = set()  # incarnations of clients whose processes have ended
        self.newest: dict[str, bytes] = {}  # id -> payload of the call that was asked for last
        self.asking: Counter[str] = Counter()  # id -> number of calls that are being asked for
        self.cancelled: set[bytes] = set()  # payloads of calls that were cancelled for sure
        self.made_again: list[tuple[str, int, int]] = []  # id, time, and arena: a call of the id begins after that time
        self.end_process: Callable[[Process], None] = lambda process: None  # called inside of a handler
        # Whether the daemon has ever let others take over what a client (an incarnation) held: the client was dead, or
        # silent while its process was stopped, or silent for longer than its takeover.
        self.has_lost: Callable[[bytes], bool] = lambda incarnation: False
        self.was_silent: Callable[[bytes], bool] = lambda incarnation: False  # whether the client was ever silent
        # Whether the daemon has forgotten ids that had settled: a schedule may then begin anew while its call runs.
        self.has_forgotten_ids: Callable[[], bool] = lambda: False
        self.evicted: Callable[[], int] = lambda: 0  # how many calls and outcomes of ended clients were evicted
        self.hurry = False  # True at the end of the simulation: handlers take no time
        self.points_may_repeat = False  # whether schedules change: then a point may run twice
        self.latest_wall_ns = 0  # the latest time, by the wall clock, for which a call was made
        self.forgotten: set[str] = set()  # cancelled schedules, whose past points the daemon has forgotten
        self.living: list[Process] = []
        self.outcomes: Counter[str] = Counter()
        self.complaints: Counter[str] = Counter()

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.schedule.now_ns / 1e9:.6f} {what}")

    def fail(self, what: str) -> None:
        """Note that something does not hold."""
        self.note(f"FAILURE {what}")
        self.failures.append(what)

    def complaint(self, process: Process, what: str, error: BaseException | None) -> None:
        """Take a line of a client's log: an expected one is counted, any other is a failure."""
        self.note(f"{process.name}: {what} {error!r}")
        if "was refused" in what:
            self.complaints["refused"] += 1
            number = int(what.split()[1])
            process.refused.add((process.client._protocol.session.incarnation, number))
        elif "unacknowledged" in what:
            self.complaints["unknown"] += 1
        elif any(known in what for known in KNOWN_COMPLAINTS):
            self.complaints[what[:40]] += 1
            if "a handler still runs" in what:
                for run in self.running_now:
                    run.given_back |= run.process is process
        elif "the handler of" in what and isinstance(error, PlannedFailure):
            self.complaints["handlers that have failed"] += 1
        elif ("the handler of" in what or "on_failure of" in what) and not process.alive:
            self.complaints["handlers whose process was killed"] += 1
        else:
            self.fail(f"{process.name} complains: {what} {error!r}")

    # operations ---------------------------------------------------------------------------------------------------

    def watch(self, process: Process, operation: ThreadedOperation, what: str, key: str) -> Watched:
        """From now on, check all that is promised for this operation."""
        watched = Watched(process, operation, what, key, self.arena)
        self.watched.append(watched)
        operation.add_done_callback(lambda _: self._tell(watched))
        return watched

    def next_number(self) -> int:
        """A number for a name that was not used before."""
        self._numbers += 1
        return self._numbers

    def moved(self, operation: ThreadedOperation) -> None:
        """The owner gives the operation another deadline."""
        for watched in reversed(self.watched):
            if watched.operation is operation:
                watched.earliest_ns = min(watched.earliest_ns, operation.deadline_ns)
                return

    def _tell(self, watched: Watched) -> None:
        try:
            self._look_at_outcome(watched)
        except Exception as error:
            self.fail(f"{watched.what} on {watched.key}: {error!r}")

    def _look_at_outcome(self, watched: Watched) -> None:
        operation, now_ns = watched.operation, self.schedule.now_ns
        who = f"{watched.process.name}: {watched.what} on {watched.key!r}, command {operation.command}"
        if watched.settlement is not None:
            self.fail(f"{who}: delivered twice, {watched.settlement} and {operation._settlement}")
            return
        watched.settlement = operation._settlement
        outcome = operation.outcome()
        assert outcome is not None
        self.outcomes[outcome.state.name] += 1
        self.note(f"{who}: {outcome!r}")
        record = outcome._record
        if record is not None and outcome.state is State.EXPIRED:
            if now_ns < record.deadline_ns or record.settled_ns < record.deadline_ns:
                self.fail(f"{who}: expired at {record.settled_ns}, delivered at {now_ns}, due at {record.deadline_ns}")
            asked_ns = min(watched.earliest_ns, operation.deadline_ns)
            if not watched.others_may_reschedule and record.deadline_ns < asked_ns:
                self.fail(f"{who}: its deadline was {record.deadline_ns}, asked for was {asked_ns}")
        if outcome.state is State.UNAVAILABLE:
            protocol = watched.process.client._protocol
            if now_ns < operation.deadline_ns + GRACE_NS or protocol.state is not LinkState.LOST:
                self.fail(f"{who}: UNAVAILABLE at {now_ns}, due at {operation.deadline_ns}, {protocol.state}")
        if outcome.state is State.COMPLETED and watched.arena == self.arena:
            self._look_at_completion(watched, outcome, who)

    def _look_at_completion(self, watched: Watched, outcome: Any, who: str) -> None:
        if watched.what == "total":
            total = self.totals[watched.key]
            fired = sum(amount for _, amount in total.fires)
            if fired < total.total:
                self.fail(f"{who}: completed with {fired} of {total.total} fired")
        if watched.what == "heartbeat":
            self.fail(f"{who}: completed by its own client's fire before it")
        if watched.what == "token" and not outcome.redelivered and outcome.value in self.limits:
            self.grants[outcome.value] += 1
            if self.grants[outcome.value] > self.limits[outcome.value]:
                self.fail(f"{who}: {outcome.value!r} was granted {self.grants[outcome.value]} times")
        if watched.what == "watermark":
            advanced = max((mark for _, mark, _ in self.advances[watched.key]), default=0)
            if advanced < watched.target:
                self.fail(f"{who}: completed at {watched.target}, advanced to {advanced}")

    def died(self, process: Process) -> None:
        """Note which commands of the process were applied. From now on, only outcomes at other processes matter."""
        self.dead.add(process.client._protocol.session.incarnation)
        for watched in self.watched:
            if watched.process is process:
                watched.issued.freeze()
        for issued, _ in self.of_group.values():
            if issued.process is process:
                issued.freeze()

    # groups -------------------------------------------------------------------------------------------------------

    def delivered_to_member(self, process: Process, outcome: GroupOutcome) -> None:
        """A member was given an outcome of its group."""
        payload, now_ns = outcome.payload, self.schedule.now_ns
        self.note(f"{process.name}: got the group's outcome {payload!r}, delivery {outcome.deliveries}")
        self.outcomes["for a group"] += 1
        watched = self.for_group.get(payload)
        if payload in self.done:
            self.fail(f"{process.name}: got {payload!r} again, which was done")
        if outcome._record is not None and outcome.state is State.EXPIRED and now_ns < outcome._record.deadline_ns:
            self.fail(f"{process.name}: {payload!r} expired early")
        if payload in self.of_group:
            return
        if watched is None:
            self.fail(f"{process.name}: got its group's outcome {payload!r}, which was never registered")
            return
        if watched.arena != self.arena:
            return
        owner = watched.process
        if (
            owner.alive
            and not owner.closing
            and owner.client._protocol.session.incarnation == watched.issued.incarnation
        ):
            self.fail(f"{process.name}: got its group's outcome {payload!r}, whose owner {watched.process.name} lives")

    # named calls --------------------------------------------------------------------------------------------------

    @contextmanager
    def asking_for(self, name: str, payload: bytes, id: str | None) -> Iterator[None]:
        """A process asks for a one-shot call. If the block raises, it is not known whether the call was accepted."""
        self.calls[payload] = name
        self.asked_in[payload] = self.arena
        if id is None:
            yield
            return
        self.ids[payload] = id
        self.newest[id] = payload
        self.asking[id] += 1
        yield
        self.asking[id] -= 1

    def again(self, id: str, asked_ns: int) -> None:
        """A call of this id was made with if_exists="again". So a call of this id begins after `asked_ns`."""
        if not self.cancelling[id]:
            self.made_again.append((id, asked_ns, self.arena))

    def accepted(self, payload: bytes) -> None:
        """Expect the call to be made, unless a process is cancelling it, or may have cancelled it."""
        if not self._is_cancelling(payload) and payload not in self.doubtful:
            self.expected[payload] = self.asked_in[payload]  # the arena may be another by now

    def _is_cancelling(self, payload: bytes) -> bool:
        return payload in self.ids and bool(self.cancelling[self.ids[payload]])

    @contextmanager
    def withdrawing(self, id: str, by: bytes = b"") -> Iterator[None]:
        """A process cancels the pending call of this id, or replaces it by the call with the payload `by`.

        If the block raises, the call may be cancelled at any later time.
        """
        self.cancelling[id] += 1
        self.forgotten.add(id)
        yield
        self.cancelling[id] -= 1
        self.made_again = [made for made in self.made_again if made[0] != id]
        for payload in [payload for payload, called in self.ids.items() if called == id and payload != by]:
            self.doubtful.add(payload)
            self.expected.pop(payload, None)

    def cancel(self, id: str, cancel: Callable[[], bool]) -> None:
        """A process cancels a call by id. If that succeeds while nobody asks for the id, the call does not begin."""
        payload, arena = self.newest.get(id), self.arena
        with self.withdrawing(id):
            sure = not self.asking[id] and self.cancelling[id] == 1
            cancelled = cancel()
            sure = sure and not self.asking[id] and self.cancelling[id] == 1
        if cancelled and sure and payload is not None and (self.newest[id], self.arena) == (payload, arena):
            self.note(f"{payload!r} is cancelled")
            self.cancelled.add(payload)

    @contextmanager
    def running(self, process: Process, call: Call) -> Iterator[Running]:
        """A handler runs. Each attempt runs once, unless a process that ran it had lost its calls."""
        of_schedule = not call.payload  # else a process has made the call
        which = call.due if of_schedule else call.payload
        what = (call.name, which, call.attempt)
        who = f"{process.name}: handler of {call.name!r}, {which!r}, {call!r}"
        self.outcomes["calls"] += 1
        if not of_schedule and self.calls.get(call.payload) != call.name:
            self.fail(f"{who}: it was never asked for")
        if not 0 <= call.missed <= (MISSED_MAX if of_schedule else 0):
            self.fail(f"{who}: it is for {call.missed} missed points")
        with self._run(process, call, self.runs[what], who, True) as now:
            self._look_at_cancelled(now, who)
            yield now

    def announce(self, phase: CallPhase, told: DeliveredOutcome) -> None:
        """A client announces that it is about to run a handler or on_failure. Its process may end before the run."""
        found = unpack(told.payload)
        assert found is not None, told
        plan, payload = found
        which = payload or plan.due
        self.announced[told.name, which, plan.failures + 1].append((phase, told.client))

    def _ends(self, what: tuple[str, object, int], phase: CallPhase) -> int:
        """The number of ended processes that had announced this run. Some of them may have ended before or after it."""
        keys = [what]
        if isinstance(what[1], datetime):  # grace may have left out the point that was announced
            keys = [key for key in self.announced if (key[0], key[2]) == (what[0], what[2])]
        return sum(client in self.dead for key in keys for said, client in self.announced[key] if said == phase)

    @contextmanager
    def failing(self, process: Process, call: Call, error: BaseException) -> Iterator[Running]:
        """An on_failure runs: the handler failed, or DELIVERIES processes have ended in it, or one in on_failure."""
        which = call.payload or call.due
        what = (call.name, which, call.attempt)
        who = f"{process.name}: on_failure of {call.name!r}, {which!r}, {call!r}, {error!r}"
        self.outcomes["failures"] += 1
        before = self.failings[what]
        if not isinstance(error, CallGivenUpError):
            if not any(run.failed for run in self.runs[what]):
                self.fail(f"{who}: its handler has not failed")
        elif "in its handler" in str(error):
            self.outcomes["given up"] += 1
            ends = self._ends(what, CallPhase.HANDLER)
            if ends < DELIVERIES:
                self.fail(f"{who}: {ends} processes have ended in its handler")
        elif not self._ends(what, CallPhase.ON_FAILURE):
            self.fail(f"{who}: no process has ended in its on_failure")
        with self._run(process, call, before, who, not before) as now:
            yield now

    @contextmanager
    def _run(self, process: Process, call: Call, runs: list[Running], who: str, has_id: bool) -> Iterator[Running]:
        """Add a run to `runs`, and check that its call runs once at a time, alone with its id, and not too soon."""
        protocol = process.client._protocol
        incarnation, arena = protocol.session.incarnation, protocol.session.arena
        now = Running(process, incarnation, call, arena, self.schedule.now_ns, has_id)
        of_schedule = not call.payload
        self.note(f"{who} begins")
        before = [run for run in runs if run.arena == arena]
        # A worker whose every() has waited for the daemon may begin a cancelled schedule again, at a point that ran.
        may_repeat = of_schedule and (self.points_may_repeat or call.name in self.forgotten)
        for run in before if not may_repeat else []:
            if call.deliveries < 2:
                self.fail(f"{who}: {run.process.name} ran it in delivery {run.call.deliveries}")
            if not self.has_lost(run.incarnation):
                self.fail(f"{who}: {run.process.name} ran it, and had never lost its calls")
        self._look_at_ends(now, before, who)
        self._look_beside(now, who)
        runs.append(now)
        self.running_now.append(now)
        try:
            yield now
            now.ended = True
            self.note(f"{who} ends")
        except PlannedFailure:
            now.ended = now.failed = True
            self.note(f"{who} fails")
            raise
        finally:
            if not now.ended and not process.alive:
                now.died_ns = None if now.given_back else self.schedule.now_ns
                self.note(f"{who}: its process has ended")
            self.running_now.remove(now)

    def _look_at_ends(self, now: Running, before: list[Running], who: str) -> None:
        """After two processes have ended in a call, the call rests, and then runs alone. Ignores calls of schedules."""
        died = [run.died_ns for run in before if run.died_ns is not None and not self.was_silent(run.incarnation)]
        if not now.call.payload or len(died) < ALONE_FROM:
            return
        now.is_alone = True
        self.outcomes["alone"] += 1
        least_ns = round(Plan(CALL, ends=len(died)).pause_s() * 1e9)
        if now.began_ns - max(died) < least_ns and self.ids.get(now.call.payload) is None:
            self.fail(f"{who}: {len(died)} processes have ended in it, the last one {now.began_ns - max(died)} ns ago")

    def _look_beside(self, now: Running, who: str) -> None:
        """Check that no other call of this id runs and, if this call must run alone, no other call in its process."""
        away, is_point = self.has_lost, not now.call.payload
        for run in self.running_now:
            if run.arena == now.arena and run.has_id and now.has_id and run.call.id == now.call.id:
                if not away(run.incarnation) and not away(now.incarnation) and not self.has_forgotten_ids():
                    self.fail(f"{who}: {run.process.name} runs {run.call!r}, and neither had ever lost its calls")
            elif run.call.name == now.call.name and run.arena == now.arena and not is_point:
                same = run.call.payload == now.call.payload
                if same and not away(run.incarnation) and not away(now.incarnation):
                    self.fail(f"{who}: {run.process.name} runs it as well, and neither had ever lost its calls")
            alone = (run.is_alone or now.is_alone) and not self.was_silent(now.incarnation)
            if alone and run.incarnation == now.incarnation:
                self.fail(f"{who}: {run.call!r} runs in this process, and one of the two is to run alone")

    def _look_at_cancelled(self, now: Running, who: str) -> None:
        """Check that a call that was cancelled before it ran does not begin."""
        if now.call.payload not in self.cancelled:
            return
        same_id = [run for runs in self.runs.values() for run in runs if run.call.id == self.ids.get(now.call.payload)]
        if not any(self.has_lost(run.incarnation) for run in (now, *same_id)):
            self.fail(f"{who}: it was cancelled")

    # dead letters -------------------------------------------------------------------------------------------------

    def settle_letters(self, letters: list[Letter], made: int) -> None:
        """Judge the dead letters of the group. `made` also counts older ones of this arena, which have given way."""
        if [letter.number for letter in letters] != list(range(made + 1 - len(letters), made + 1)):
            self.fail(f"the newest of {made} dead letters must be kept, found: {letters}")
        once = Counter((letter.name, letter.which) for letter in letters)
        for letter in letters:
            what = letter.name, letter.which
            ran = [run for key, runs in self.runs.items() if letter.is_of(key) for run in runs]
            failed = [run for key, runs in self.failings.items() if letter.is_of(key) for run in runs]
            if once[what] > 1 and not (isinstance(letter.which, datetime) and letter.name in self.forgotten):
                self.fail(f"{letter}: {once[what]} times")
            if not letter.reason:  # nobody has served it for the retention
                if any(run.ended and run.is_last for run in ran) and not isinstance(letter.which, datetime):
                    self.fail(f"{letter}: it was served")
            elif not failed:
                self.fail(f"{letter}: its on_failure never began")
            elif CallGivenUpError.__name__ in letter.reason:
                keys = [key for key in self.announced if letter.is_of(key)]
                if not any(self._ends(key, phase) for key in keys for phase in CallPhase):
                    self.fail(f"{letter}: no process has ended in it")
            elif not any(run.failed for run in ran):
                self.fail(f"{letter}: its handler has not failed")
        if made > len(letters):
            return  # older letters have given way, so a missing letter proves nothing
        for payload, arena in self.expected.items():
            runs = [run for key, found in self.runs.items() if key[1] == payload for run in found]
            succeeded = any(run.ended and run.is_last and not run.failed for run in runs)
            if arena != self.arena or self._is_cancelling(payload) or succeeded:
                continue
            if once[self.calls[payload], payload] != 1:
                self.fail(f"{payload!r} for {self.calls[payload]!r} has failed, and is no dead letter")

    # at the end ---------------------------------------------------------------------------------------------------

    def settle_accounts(self) -> None:
        """Judge all operations at the end: the network has healed, time has passed, and some clients still live."""
        for watched in self.watched:
            if not watched.process.alive:
                continue
            who = f"{watched.process.name}: {watched.what} on {watched.key!r}, command {watched.operation.command}"
            if watched.settlement is None:
                self.fail(f"{who}: no outcome at the end ({watched.process.client._protocol.state})")
            elif watched.operation._settlement != watched.settlement:
                self.fail(f"{who}: delivered {watched.settlement}, then {watched.operation._settlement}")
            elif watched.what == "total":
                self._settle_total(watched, who)
        for process, batch in self.batches:
            if process.alive and not batch.done():
                self.fail(f"{process.name}: {batch!r} at the end")
        for process, delayed, results in self.delayed:
            wanted = ["complete", "expired"] if delayed.state is State.EXPIRED else ["complete"]
            if process.alive and (
                not delayed.done() or results != wanted * (delayed.state in (State.COMPLETED, State.EXPIRED))
            ):
                self.fail(f"{process.name}: {delayed!r} has run {results}")
        for key, (watched, fired) in self.pairs.items():
            outcome = watched.operation.outcome()
            if not (watched.process.alive and watched.arena == self.arena and fired.applied()) or outcome is None:
                continue
            if outcome.state in (State.EXPIRED, State.CANCELLED):
                self.fail(f"{watched.process.name}: {key!r} was fired by {fired.process.name}, but is {outcome!r}")
        lost: list[str] = []
        for payload, arena in self.expected.items():
            name = self.calls[payload]
            ended = [
                run for what, runs in self.runs.items() if what[:2] == (name, payload) for run in runs if run.ended
            ]
            over = any(run.is_last for run in ended) or any(what[:2] == (name, payload) for what in self.failings)
            if arena == self.arena and not self._is_cancelling(payload) and not over:
                lost.append(f"{payload!r} for {name!r} was accepted, {len(ended)} attempts have ended, none the last")
        for id, asked_ns, arena in self.made_again:
            every = (*self.runs.values(), *self.failings.values())  # the call may have joined one that was given up
            began = [run for runs in every for run in runs if run.call.id == id and run.has_id]
            if arena != self.arena or self.cancelling[id] or self.has_forgotten_ids():
                continue
            if not any(run.began_ns >= asked_ns for run in began):
                lost.append(f"a call of {id!r} was made again at {asked_ns}, and none has begun since")
        for payload, (issued, arena) in self.of_group.items():
            if arena == self.arena and issued.applied() and payload not in self.done | {*self.acknowledged}:
                lost.append(f"{payload!r}, which {issued.process.name} registered for its group, was lost")
        for payload, watched in self.for_group.items():
            if watched.process.alive or watched.arena != self.arena or watched.settlement is not None:
                continue
            said = self.acknowledged.get(payload)
            if watched.issued.was_applied and payload not in self.done and said is None:
                lost.append(f"{payload!r} of {watched.process.name}, which has ended, was lost to its group")
        if len(lost) > self.evicted():
            self.fail(f"{len(lost)} are missing, and {self.evicted()} have made room: {lost[0]}")

    def _settle_total(self, watched: Watched, who: str) -> None:
        total, outcome = self.totals[watched.key], watched.operation.outcome()
        assert outcome is not None
        sure = sum(amount for issued, amount in total.fires if issued.applied())
        if outcome.state is State.CANCELLED and sure >= total.total and watched.arena == self.arena:
            self.fail(f"{who}: {sure} of {total.total} were applied, but it was still pending")

    def settle_watermarks(self, found: dict[str, int]) -> None:
        """Judge the watermarks. `found`: the watermark of each key in the arena."""
        for key, advances in self.advances.items():
            # A command that was issued before an arena was destroyed, but not sent, may be applied in the next arena.
            most = max((mark for _, mark, _ in advances), default=0)
            sure = (mark for issued, mark, arena in advances if arena == self.arena and issued.applied())
            least = max(sure, default=0)
            if not least <= found.get(key, 0) <= most:
                self.fail(f"watermark {key!r} is {found.get(key)}, applied {least}, issued {most}")


def is_expected(error: TimerdError) -> bool:
    """Whether a caller may get this error in the simulation."""
    return error.code in {
        ErrorCode.ARENA_FULL,
        ErrorCode.QUOTA_EXCEEDED,
        ErrorCode.OPERATION_EXISTS,
        ErrorCode.UNKNOWN_OPERATION,
        ErrorCode.TOO_OLD_TO_TELL,
        ErrorCode.CHECK_INCOMPLETE,
        ErrorCode.MARK_TOO_OLD,
        ErrorCode.UNAVAILABLE,
        ErrorCode.BACKPRESSURE,
        ErrorCode.CLOSED,
        ErrorCode.SESSION_GONE,
        ErrorCode.KEY_FAILED,
    }
