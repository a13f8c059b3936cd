"""What both faces have in common: a protocol with its lock, sockets, a clock, and the daemon's arena, read-only."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from timerd_client.arguments import patience_s
from timerd_client.discovery.late_sockets import LateSockets
from timerd_client.errors import OperationCancelled
from timerd_client.hot import Line
from timerd_client.hot.commands import in_purgatory, operation_command
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.session import NO_SESSION, Naming
from timerd_client.protocol.state import LIVE, LinkState
from timerd_client.transport.sockets import Sockets
from timerd_client.types import Patience
from timerd_client.waiter import Answerable, Notified
from timerd_client.waits.gate import Gate
from timerd_client.waits.slices import SlicedQueue
from timerd_shm.declare.errors import ClosedError, SessionGoneError, TimerdError, TimerdUnavailableError, error_for
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S, TAKEOVER_MS
from timerd_shm.declare.wire import CommandKind
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.wall_clock import WallAlarm
from timerd_shm.read.reader import NEWEST_WORD, ArenaReader
from timerd_wire import native

from . import plight
from .flush import Flush, unacknowledged
from .identity import identity
from .promise import Reply
from .use import Use

if TYPE_CHECKING:
    import asyncio

    from timerd_shm.declare.states import Orphans

logger = logging.getLogger("timerd_client")
links: weakref.WeakSet[Link] = weakref.WeakSet()  # of this process; process.py closes them after a fork and at exit


class Link(Line):
    """A connection to one daemon. Only its own thread or loop receives. A thread that holds the lock may send.

    It derives from Line: its lock, clock and flags are those that the hot path reads.
    """

    def __init__(
        self,
        paths: InstancePaths,
        name: str,
        orphans: Orphans,
        group: str | None,
        sockets: Sockets,
        now_ns: Callable[[], int] = time.monotonic_ns,
        purgatories: Sequence[str] | None = None,
        takeover_ms: int = TAKEOVER_MS,
    ) -> None:
        """`sockets` become this link's own. `now_ns` is CLOCK_MONOTONIC.

        With `purgatories` calls may be made before the connection: these are the names that the first HELLO has.
        """
        super().__init__(now_ns)
        self.paths = paths
        self.protocol = Protocol(identity(name, orphans, group, takeover_ms), now_ns())
        self._reader: ArenaReader | None = None
        self._mapped = 0  # the arena that was tried last, by its incarnation
        self._unsent: bytes | None = None
        self._chores: deque[Callable[[], None]] = deque()  # for the next pass: the lock was taken
        self._reported_unknown = self._reported_refused = 0
        self._wall_alarm: WallAlarm | None = None
        self._resets = self.losses = 0  # losses: how often the daemon was lost
        self._lost_ns = 0  # since when the daemon is lost, as the log says it; 0 = it is not lost
        self._pid = os.getpid()
        self.why_closed = "close() was called"
        self.ends_with_process = False  # the end has begun: see process_end.py
        self.has_no_thread = False  # the caller makes the passes that a thread of the link would make
        self._use_sockets(sockets)
        if purgatories is not None:
            for purgatory in purgatories:
                self.protocol.session.name_later(purgatory)
            self._expect_arena()
        links.add(self)

    def _use_sockets(self, sockets: Sockets) -> None:
        self.sockets = sockets
        self.protocol.outgoing.frame_size_max = sockets.frame_size_max
        self.lifeline = sockets.lifeline

    def may_answer(self) -> bool:
        """Whether the daemon answers, or is about to: one that was not found does not, and one that is lost."""
        late = isinstance(self.sockets, LateSockets) and self.sockets.is_hopeless
        return not late and self.protocol.state not in (LinkState.LOST, LinkState.CLOSED)

    def is_outlived(self) -> bool:
        """Whether its client needs another link in this process: this one is the parent's, or its loop has ended."""
        return self._pid != os.getpid()

    def _expect_arena(self) -> None:
        """Map the arena of now, before the daemon names it: so the marks of calls before the connection are exact."""
        try:
            self._reader = self.sockets.map_arena()
        except (TimerdError, OSError):
            return  # there is none: calls of before count from the first event of the daemon's arena
        self._mapped = self.protocol.session.arena = self._reader.header().incarnation
        self.protocol.ledger.use_arena(self._reader.words, NEWEST_WORD)

    # what a face completes ----------------------------------------------------------------------------------------

    def notify_locked(self) -> None:
        """With the lock held: wake those who wait, so that they look at their conditions."""
        raise NotImplementedError

    def progressed_locked(self) -> None:
        """With the lock held: there is something. With threads, wake one of those who wait for it."""

    def check_room(self, commands: int) -> None:
        """Before a column is issued: raise BackpressureError if a call cannot wait until all of it has room."""

    def make_room(self) -> None:
        """With the lock held, in a full window: return when the window has room, or raise BackpressureError."""
        raise NotImplementedError

    def wall_ns(self) -> int:
        """CLOCK_REALTIME in ns since the epoch."""
        return time.time_ns()

    def watch_wall_clock(self) -> None:
        """From the next pass on, look at the wall clock as soon as somebody sets it. With the lock held."""
        self._chores.append(self._arm_wall_alarm)
        self.ring()

    def _arm_wall_alarm(self) -> None:
        if self._wall_alarm is None and not self.closed:
            self._wall_alarm = WallAlarm()
            if self._wall_alarm.fileno() >= 0:
                self.watch(self._wall_alarm.fileno())

    def wall_clock_set(self) -> None:
        """The wall clock was set: wake those who wait, so that they look at it."""
        if self._wall_alarm is not None:
            self._wall_alarm.read()
        with self.lock:
            self.notify_locked()

    def gate(self) -> Gate:
        """Where a caller waits for one promise."""
        return Gate()

    def queue(self) -> SimpleQueue[Any]:
        """Where a caller waits for many promises."""
        return SlicedQueue()

    def may_block(self) -> None:
        """Raises RuntimeError in the thread that would have to end the wait."""

    def callback(self, callback: Callable[[Any], object]) -> Callable[[Any], object]:
        """A callback in the form in which it runs where its caller wants it."""
        return callback

    def watch_sockets(self) -> None:
        """Watch the descriptors of new sockets. Raises OSError where no file can be opened."""
        raise NotImplementedError

    def call_in_loop(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Run `call` in a loop, because a promise has settled."""
        raise NotImplementedError

    def must_not_wait(self) -> bool:
        """Whether the caller is who receives for this link, and would wait for itself."""
        return False

    def end_handlers(self, timeout: float) -> None:
        """The process ends: start no more handlers, and wait `timeout` seconds at most for those that run."""

    def drive(self, seconds: float) -> None:
        """The process ends: go on for so long. Where no thread or loop of the link does that, the caller does."""
        native.sleep(seconds)

    def use(self) -> Use:
        """The caller keeps what is returned for as long as it uses this link."""
        return Use()

    def stop(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send BYE and close the sockets, within `timeout` seconds where that may take a while."""

    def watch(self, descriptor: int) -> None:
        """Call `readable` when this descriptor is readable."""
        raise NotImplementedError

    def unwatch(self, descriptor: int) -> None:
        """Stop watching this descriptor: it is about to be closed."""
        raise NotImplementedError

    # for promises and surfaces ------------------------------------------------------------------------------------

    def deadline(self, timeout: Patience | None) -> float | None:
        """The time in so many seconds, by the link's clock; None = never."""
        seconds = patience_s(timeout)
        return None if seconds is None else self.now_ns() / 1e9 + seconds

    def seconds_left(self, deadline: float | None) -> float | None:
        """The seconds that are left until then, at least 0."""
        return None if deadline is None else max(0.0, deadline - self.now_ns() / 1e9)

    def refuse_closed(self) -> None:
        """Raises ClosedError."""
        raise ClosedError(f"this client is closed: {self.why_closed}; make another one, or use td.client()")

    def seal_because(self, why: str) -> None:
        """Refuse all further calls, for this reason."""
        self.why_closed = why
        self.sealed = self.closed = True

    def refuse_lost(self) -> None:
        """Raises TimerdUnavailableError if the daemon is lost, ClosedError if this is closed. With the lock held."""
        if self.sealed:
            self.refuse_closed()
        error = plight.lost(self)
        if error is not None:
            raise error

    def unavailable(self, patience: Patience) -> TimerdUnavailableError:
        """The error of a caller who has waited so long for an answer."""
        return plight.unanswered(self, patience_s(patience))

    def fullness(self) -> str:
        """How full the window is, for messages."""
        ledger = self.protocol.ledger
        return f"{ledger.issued - ledger.applied} of {ledger.window} commands are unacknowledged"

    def relief(self) -> str:
        """What helps in a full window, for messages."""
        return f"start the daemon ({self.paths.command})" if self.protocol.lost else "slow down and retry"

    def plight(self) -> str:
        """The state of the connection, for messages."""
        trouble = self.sockets.trouble()
        return self.protocol.plight(self.now_ns()) + (f"; {trouble}" if trouble else "")

    def ask(self, question: dict[str, Any], asker: Answerable) -> None:
        """Send a question; `asker` gets the answer. Raises ClosedError, or TimerdUnavailableError if lost."""
        with self.lock:
            self.refuse_lost()
            self.protocol.query(question, asker, self.now_ns())
            self.wake_if_due(self.protocol.ledger.issued)

    def query(self, question: dict[str, Any]) -> Reply:
        """Send a question; its reply. Raises what `ask` raises."""
        reply = Reply(self)
        self.ask(question, reply)
        return reply

    def name_purgatory(self, name: str) -> Reply | None:
        """Have a purgatory named: in the first HELLO, or, once there is a session, by a question whose reply this is.

        None: there is nothing to wait for. Raises what `ask` raises.
        """
        session = self.protocol.session
        with self.lock:
            if session.secret == NO_SESSION:
                session.name_later(name)
            if name in session.purgatories:
                return None
        return self.ask_purgatory(name)

    def ask_purgatory(self, name: str) -> Reply:
        """Ask for the index of a purgatory, which is known when the reply has come. Raises what `ask` raises."""
        reply = Reply(self)
        self.ask({"query": "purgatory", "name": name}, Naming(self.protocol.session, name, reply))
        return reply

    def complain(self, what: str, error: BaseException | None = None) -> None:
        """Log what no caller can be given as an error."""
        logger.warning("timerd client: %s", what, exc_info=error)

    def complain_of_close(self, failure: TimerdError, error: BaseException) -> None:
        """Log what close() raises at the end of a `with` block that raises `error`: the caller has to see `error`."""
        self.complain(f"close() after {type(error).__name__} raises {type(failure).__name__}: {failure}")

    def issue(self, command: bytes, purgatory: str | None = None) -> int:
        """Send a command, for the purgatory of that name; its number. Raises ClosedError, BackpressureError."""
        with self.lock:
            return self.issue_locked(command, purgatory)

    def issue_locked(self, command: bytes, purgatory: str | None = None) -> int:
        """Like issue(), with the lock held."""
        self.ready_locked()
        if purgatory is not None:
            command = in_purgatory(command, self.protocol.session.purgatories[purgatory])
        number = self.protocol.ledger.issue(command)
        self.wake_if_due(number)
        return number

    def withdraw(self, operations: Sequence[int]) -> None:
        """Cancel operations of this client, by command number. Raises ClosedError.

        The commands may exceed the window, because the caller may be unable to wait. There are at most as many as there
        are registrations.
        """
        with self.lock:
            if self.sealed:
                self.refuse_closed()
            ledger = self.protocol.ledger
            ledger.issue_all([operation_command(CommandKind.CANCEL, operation) for operation in operations])
            self.wake_if_due(ledger.issued)

    def give_back(self, registration: int, grant: Callable[[], int]) -> None:
        """Withdraw a registration that nobody waits for any more; `grant()` is the outcome that it has got already."""

        def withdraw() -> None:
            if self.closed:
                return
            incoming, error = self.protocol.incoming, OperationCancelled("withdrawn: its `await` was cancelled")
            if not incoming.abandon([registration], error):
                incoming.grants.requeue(grant(), error)
            self.wake_if_due(self.protocol.ledger.issued)

        self.soon(withdraw)

    def end_wait(self, registrations: Iterable[int]) -> bool:
        """Withdraw what a caller waited for whose request has ended; False: all of it has settled meanwhile."""
        with self.lock:
            error = OperationCancelled("withdrawn: its request has ended")
            if ended := self.protocol.incoming.abandon(registrations, error):
                self.wake_if_due(self.protocol.ledger.issued)
            return ended > 0

    def abandon(self, registrations: Iterable[int]) -> None:
        """Withdraw operations that no caller has a handle of. Grants that they have are requeued."""
        those = list(registrations)

        def withdraw() -> None:
            if self.closed:
                return
            self.protocol.incoming.abandon(those, OperationCancelled("withdrawn: nobody waits for it any more"))
            self.wake_if_due(self.protocol.ledger.issued)

        self.soon(withdraw)

    def soon(self, chore: Callable[[], None]) -> None:
        """Do a chore with the lock held: now, or in the next pass if the lock is taken.

        As an example, a garbage collection may end a generator in a thread that holds the lock already.
        """
        if self.lock.acquire(blocking=False):
            try:
                chore()
            finally:
                self.lock.release()
        else:
            self._chores.append(chore)
            self.ring()

    def ring(self) -> None:
        """Start a pass soon. Needs no lock."""
        raise NotImplementedError

    def _do_chores(self) -> None:
        while self._chores:
            self._chores.popleft()()

    def confirm_locked(self) -> None:
        """Somebody waits until all that was issued is applied. With the lock held."""
        self.protocol.confirm()
        if self.protocol.wants_to_send():
            self.wake()

    def seal(self) -> None:
        """Issue nothing more: further calls raise ClosedError. A flush can still wait for what was issued before."""
        with self.lock:
            self.sealed = True
            self.notify_locked()  # for those who wait for room

    def begin_flush(self) -> Flush:
        """Begin a flush of all that was issued so far. With the lock held. Raises ClosedError."""
        if self.closed:
            self.refuse_closed()
        self._do_chores()
        self.confirm_locked()
        return Flush(self.protocol.ledger.issued, self.protocol.session.incarnation, self._reported_unknown)

    def flushed(self, flush: Flush) -> bool:
        """Whether the flush has nothing more to wait for."""
        protocol = self.protocol
        return protocol.outgoing.answered >= flush.command or protocol.session.incarnation != flush.maker or self.closed

    def end_flush(self, flush: Flush, timeout: Patience) -> None:
        """Raises TimerdUnavailableError if the flush is not done, SessionGoneError if it is unknown what was applied.

        Otherwise raises the first refusal of a command that has no operation. With the lock held.
        """
        protocol = self.protocol
        unknown = protocol.outgoing.commands_unknown - flush.reported
        if unknown:
            self._reported_unknown = protocol.outgoing.commands_unknown
            raise SessionGoneError(
                "commands that were unacknowledged when the daemon of instance "
                f"{self.paths.instance!r} lost sight of this client: {unknown}. Whether they were applied is unknown; "
                "repeat those that may be applied twice"
            )
        if not self.flushed(flush):
            missing = unacknowledged(flush.command - protocol.outgoing.answered)
            raise TimerdUnavailableError(f"{missing}: {self.unavailable(timeout)}")
        incoming = protocol.incoming
        if incoming.refusal is not None:
            first, incoming.refusal = incoming.refusal, None
            refused, self._reported_refused = (
                incoming.commands_refused - self._reported_refused,
                incoming.commands_refused,
            )
            what = "a command was refused" if refused == 1 else f"{refused} commands were refused, the first"
            raise error_for(first.code, f"{what}: {first}")

    def ready_locked(self) -> None:
        """Check that the link is open and wait for room. With the lock held. Raises ClosedError, BackpressureError."""
        if self.sealed:
            self.refuse_closed()
        if self.protocol.outgoing.room <= 0:
            self.make_room()

    # for the sender -----------------------------------------------------------------------------------------------

    def send_some(self, now_ns: int) -> bool:
        """Send the next frame; whether there may be more to send. False if the socket is full."""
        with self.lock:
            while self.protocol.session.subscriptions:
                self.sockets.subscribe(self.protocol.session.subscriptions.popleft())
            return self.send_locked(now_ns)

    def send_locked(self, now_ns: int) -> bool:
        """Send the next frame with the lock held, in any thread."""
        protocol = self.protocol
        if protocol.outgoing.resets != self._resets:
            self._resets, self._unsent = protocol.outgoing.resets, None
        frame = self._unsent or protocol.next_frame(now_ns)
        if frame is None:
            return False
        sent = self.sockets.send(frame)
        self._unsent = None if sent else frame
        return sent

    def receive_some(self, *, outcomes: bool = True, answers: bool = True) -> bool:
        """Take what the sockets have; whether they had something. The promises to notify are in `incoming.ready`.

        Without `outcomes` the XSUB is left out: another thread receives from it. Without `answers` the DEALER is left
        out: the caller has looked at it already.
        """
        received = False
        while outcomes and (frame := self.sockets.receive(published=True)) is not None:
            received = True
            with self.lock:
                self.protocol.receive(frame, self.now_ns(), published=True)
            self.received()
        while answers:
            with self.lock:  # callers send by the socket from which this receives
                frame = self.sockets.receive(published=False)
                if frame is None:
                    break
                self.protocol.receive(frame, self.now_ns(), published=False)
            received = True
            self.received()
        return received

    def tick(self, now_ns: int) -> None:
        """Do what is due by now."""
        protocol, sockets = self.protocol, self.sockets
        with self.lock:
            self._do_chores()
            if now_ns >= sockets.due_ns:
                sockets.tend(now_ns)
        if isinstance(sockets, LateSockets) and sockets.found is not None:
            self._move(sockets, sockets.found)
        with self.lock:
            if now_ns >= protocol.poll_deadline():
                protocol.tick(now_ns)
        if protocol.lost and not self._lost_ns:
            self._lost_ns = protocol.silence.last_frame_ns
            self.losses += 1
            kind = "does not answer yet" if protocol.session.secret == NO_SESSION else "is lost"
            self.complain(
                f"the daemon of instance {self.paths.instance!r} {kind}: silent for "
                f"{(now_ns - self._lost_ns) / 1e9:.1f} s; what is called is kept, and sent when it is there"
            )
        if protocol.incoming.ready or protocol.incoming.complaints:
            self.received()

    def _move(self, late: LateSockets, found: Sockets) -> None:
        """The daemon was found: use the sockets that lead there."""
        with self.lock:
            self._use_sockets(found)
            self.paths, self._unsent = late.paths, None
        try:
            self.watch_sockets()
        except OSError as error:
            with self.lock:
                self._use_sockets(late)
                late.look_again(str(error))
            return
        with self.lock:
            self.protocol.found(self.now_ns())

    def received(self) -> None:
        """After frames: notify promises, and map the arena that the daemon named."""
        protocol = self.protocol
        for waiter in self._take_ready() if protocol.incoming.ready else ():
            waiter.notify()
        if protocol.state is LIVE:
            if self._lost_ns:
                silence_ns, self._lost_ns = protocol.silence.last_frame_ns - self._lost_ns, 0
                self.complain(f"the daemon of instance {self.paths.instance!r} is back after {silence_ns / 1e9:.1f} s")
            if protocol.session.arena != self._mapped:
                self._map_arena()
            if not self.lifeline.is_held(protocol.session.secret):
                self._hold_lifeline()
        if protocol.incoming.complaints:
            with self.lock:
                complaints, protocol.incoming.complaints = protocol.incoming.complaints, []
            more = f" (and {len(complaints) - 1} more of this kind)" if len(complaints) > 1 else ""
            self.complain(complaints[0] + more)

    def _take_ready(self) -> list[Notified]:
        with self.lock:
            return self.protocol.incoming.take_ready()

    def _hold_lifeline(self) -> None:
        self._let_go_of_lifeline()
        if self.lifeline.hold(self.protocol.session.secret, self.now_ns()):
            self.watch(self.lifeline.fileno())

    def _let_go_of_lifeline(self) -> None:
        if self.lifeline.fileno() >= 0:
            self.unwatch(self.lifeline.fileno())
            self.lifeline.let_go()

    def readable(self, descriptor: int) -> None:
        """A descriptor is readable that this link watches."""
        if descriptor == self.lifeline.fileno():
            self.lifeline_ended()
        elif self._wall_alarm is not None and descriptor == self._wall_alarm.fileno():
            self.wall_clock_set()

    def lifeline_ended(self) -> None:
        """The lifeline has ended: the daemon has ended, or refuses the connection."""
        now_ns = self.now_ns()
        if self.lifeline.fileno() >= 0:
            self.unwatch(self.lifeline.fileno())
            if self.lifeline.has_ended(now_ns):
                with self.lock:
                    self.protocol.daemon_ended(now_ns)

    def _map_arena(self) -> None:
        """Map the daemon's arena, so that marks are exact. Otherwise marks have the sequence of the last frame."""
        protocol = self.protocol
        self._mapped = protocol.session.arena
        old, self._reader = self._reader, None
        if protocol.session.shared_clock:
            try:
                reader = self.sockets.map_arena()
            except (TimerdError, OSError) as error:
                logger.info("timerd client: arena not mapped: %s", error)
            else:
                if reader.header().incarnation == protocol.session.arena:
                    with self.lock:
                        self._reader = reader
                        protocol.ledger.use_arena(reader.words, NEWEST_WORD)
                else:
                    reader.close()
        if old is not None:
            old.close()

    def close_sockets(self) -> None:
        """Close the sockets and the arena. Pending operations settle as failed with ClosedError."""
        with self.lock:
            protocol = self.protocol
            self.sealed = self.closed = True
            protocol.incoming.fail_all(ClosedError("the client was closed before this was settled"))
            last = [protocol.ledger.newest()]
            protocol.ledger.use_arena(last, 0)
            waiters = protocol.incoming.take_ready()
            reader, self._reader = self._reader, None
        for waiter in waiters:
            waiter.notify()
        self.sockets.close(linger=protocol.state is LinkState.CLOSED)
        self._let_go_of_lifeline()  # after BYE
        if (alarm := self._wall_alarm) is not None and alarm.fileno() >= 0:
            self.unwatch(alarm.fileno())
            alarm.close()
        if reader is not None:
            reader.close()
        links.discard(self)
