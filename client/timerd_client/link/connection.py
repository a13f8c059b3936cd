"""The connection of a link: its sockets and the discovery of its daemon, the mapped arena, and the lifeline.

The lifeline is a connection whose end shows that the daemon has ended (transport/lifeline.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol as Interface

from timerd_client.arguments import within
from timerd_client.discovery.late_sockets import LateSockets
from timerd_client.protocol.session import NO_SESSION
from timerd_client.protocol.state import LIVE, LinkState
from timerd_client.scope import noted
from timerd_client.transport.lifeline import changing
from timerd_client.transport.sockets import FRAMES_MAX, NO_OUTLET, Sockets
from timerd_client.types import Patience
from timerd_client.waiter import Notified
from timerd_shm.declare.errors import ClosedError, TimerdError, TimerdUnavailableError
from timerd_shm.host.access import in_words
from timerd_shm.host.paths import InstancePaths, refusal
from timerd_shm.read.reader import NEWEST_WORD, ArenaReader

from .base import LinkBase, logger

KEPT = "a command is kept, and applied when a daemon comes"


class Passes(Interface):
    """A thread or a loop. It makes the passes of a link (receive, do what is due, send), and watches descriptors."""

    def watch(self, descriptor: int) -> None:
        """Call `Link.readable` when this descriptor is readable."""

    def unwatch(self, descriptor: int) -> None:
        """Stop watching this descriptor: it is about to be closed."""

    def watch_sockets(self) -> None:
        """Watch the descriptors of new sockets. Raises OSError where no file can be opened."""

    def held_up(self) -> str:
        """For messages: the callback that keeps the passes of this link from going on; empty: none does."""

    def received(self) -> None:
        """Frames were taken: callers that wait for the progress of the link may go on."""


class Connection:
    """The connection to one daemon. It knows no operations. Only the passes of the link call `receive_some` and `tick`.

    Any thread that holds the lock may send.
    """

    def __init__(self, link: LinkBase, paths: InstancePaths, sockets: Sockets) -> None:
        """`sockets` become this connection's own."""
        self._link = link
        self._protocol = link.protocol
        self.paths = paths
        self.reader: ArenaReader | None = None  # reads the mapped arena
        self.mapped = 0  # incarnation of the arena that was mapped last, or could not be mapped
        self.unsent: bytes | None = None  # a frame that had no room
        self.is_cut = False  # whether receive_some() has left frames
        self.losses = 0  # how often the daemon was lost
        self._lost_ns = 0  # when the last frame before the loss came, for the log; 0 = the daemon is not lost
        self._resets = 0
        self._use_sockets(sockets)

    def begin(self, passes: Passes) -> None:
        """Let these passes receive from now on, also from the sockets of a daemon that is found later."""
        self.passes = passes
        passes.watch_sockets()

    def _use_sockets(self, sockets: Sockets) -> None:
        self.sockets = sockets
        self._protocol.outgoing.frame_size_max = sockets.frame_size_max
        self.lifeline = sockets.lifeline

    def expect(self, purgatories: Sequence[str]) -> None:
        """Prepare for calls before the connection: the first HELLO will name these purgatories.

        The present arena is mapped before the daemon has named it, so that the marks of such calls are exact.
        """
        for purgatory in purgatories:
            self._protocol.session.name_later(purgatory)
        try:
            with changing:
                self.reader = self.sockets.map_arena()
        except (TimerdError, OSError):
            return  # there is no arena: for such calls all events of the daemon's arena count
        self.mapped = self._protocol.session.arena = self.reader.header().incarnation
        self._protocol.ledger.use_arena(self.reader.words, NEWEST_WORD)

    # its state, for callers -------------------------------------------------------------------------------------------

    def may_answer(self) -> bool:
        """Whether the daemon may answer: it was found, and is not lost."""
        return not self._is_hopeless() and self._protocol.state not in (LinkState.LOST, LinkState.CLOSED)

    def has_exact_marks(self) -> bool:
        """Whether marks are exact: the arena is mapped. Otherwise they have the newest event of the last frame."""
        return self.reader is not None and self._protocol.session.arena == self.mapped

    def _is_hopeless(self) -> bool:
        return isinstance(self.sockets, LateSockets) and self.sockets.is_hopeless

    def status(self) -> str:
        """The state of the connection, for messages."""
        trouble = self._trouble()
        return self._protocol.status(self._link.now_ns()) + (f"; {trouble}" if trouble else "")

    def _trouble(self) -> str:
        """Why there is no connection: this user may not open a socket, or the trouble that the sockets report."""
        is_late = isinstance(self.sockets, LateSockets)
        refused = None if is_late or self._protocol.state is LIVE else refusal(self.paths)
        return self.sockets.trouble() if refused is None else in_words(refused)

    def refuse_lost(self, *, is_issued: bool = False) -> None:
        """Raises TimerdUnavailableError if the daemon is lost, ClosedError if the link is closed.

        Called with the lock held before a question, so that nobody waits for an answer that cannot come. With
        `is_issued`, commands of the call are kept already: then the error is in doubt.
        """
        self._link.check_open(in_doubt=is_issued)
        if isinstance(self.sockets, LateSockets) and self.sockets.is_hopeless:
            kept = f"; {KEPT}" if is_issued else ""
            raise noted(TimerdUnavailableError(f"{self.sockets.hopeless()}{kept}", in_doubt=is_issued))
        if self._protocol.lost:
            remedies = [] if is_issued else ["try again when `client.connected`"]  # if kept, it would be applied twice
            if refusal(self.paths) is None and self._protocol.refused is None:
                remedies.insert(0, f"start it ({self.paths.command})")
            remedy = f": {', or '.join(remedies)}" if remedies else ""
            lost = f"the daemon is lost ({self.status()}), so it was not asked{remedy}"
            if is_issued:
                lost = f"the daemon is lost ({self.status()}); {KEPT}{remedy}"
            raise noted(TimerdUnavailableError(lost, in_doubt=is_issued))

    def unavailable(self, patience: Patience, *, in_doubt: bool = True) -> TimerdUnavailableError:
        """The error of a caller that has waited for `patience` and got no answer."""
        error = TimerdUnavailableError(self._no_answer(patience), in_doubt=in_doubt)
        return noted(error)

    def _no_answer(self, patience: Patience) -> str:
        if held_up := self.held_up():
            return f"no answer {within(patience)}{held_up}"
        if isinstance(self.sockets, LateSockets):
            return f"no daemon {within(patience)}: {self.sockets.trouble()}"
        remedy = f"start it if it has ended ({self.paths.command}), or try again when `client.connected`"
        if refusal(self.paths) is not None:
            remedy = "try again when `client.connected`"
        elif self._protocol.session.secret == NO_SESSION:
            remedy = "it runs, but is stopped, overloaded or about to end; `timerctl stats` shows its turns"
            if self.sockets.trouble():
                remedy = "it runs, but this client cannot reach it there: try another transport="
        what = f"no answer from the daemon {within(patience)} ({self.status()})"
        if self._protocol.refused is not None:  # the refusal has its own remedy
            return what
        return f"{what}: {remedy}"

    def held_up(self) -> str:
        """As the end of a message: the callback that keeps this client from receiving; empty: none does."""
        held_up = self.passes.held_up() if hasattr(self, "passes") else ""  # there are none before begin()
        return held_up and f"; {held_up}"

    # frames -----------------------------------------------------------------------------------------------------------

    def send_some(self, now_ns: int) -> bool:
        """Send the next frame. Returns whether to call this again: False if nothing is left, or the socket is full."""
        with self._link.lock:
            while self._protocol.session.subscriptions:
                self.sockets.subscribe(self._protocol.session.subscriptions.popleft())
            return self.send_locked(now_ns)

    def send_locked(self, now_ns: int) -> bool:
        """Send the next frame with the lock held, in any thread."""
        protocol = self._protocol
        if protocol.outgoing.resets != self._resets:
            self._resets, self.unsent = protocol.outgoing.resets, None
        frame = self.unsent or protocol.next_frame(now_ns)
        if frame is None:
            return False
        sent = self.sockets.send(frame)
        self.unsent = None if sent else frame
        return sent

    def receive_some(self, *, outcomes: bool = True, answers: bool = True) -> bool:
        """Take the frames of the sockets, FRAMES_MAX of each at most. Returns whether there were any.

        If more may be left, `is_cut` is true: a daemon that sends without end must not keep a pass from ending.

        Without `outcomes` the XSUB is left out, because another thread receives from it. Without `answers` the DEALER
        is left out: the pass asks at its end whether an answer has come (`has_answer`).
        """
        link, protocol = self._link, self._protocol
        received, self.is_cut = False, False
        taken = 0
        while outcomes and (frame := self.sockets.receive(published=True)) is not None:
            received, taken = True, taken + 1
            with link.lock:
                protocol.receive(frame, link.now_ns(), published=True)
            self.received()
            if taken >= FRAMES_MAX:
                self.is_cut = True
                break
        taken = 0
        while answers:
            with link.lock:  # callers send over the socket from which this method receives
                frame = self.sockets.receive(published=False)
                if frame is None:
                    break
                protocol.receive(frame, link.now_ns(), published=False)
            received, taken = True, taken + 1
            self.received()
            if taken >= FRAMES_MAX:
                self.is_cut = True
                break
        return received

    def tick(self, now_ns: int) -> None:
        """Do everything that is due now."""
        link, protocol, sockets = self._link, self._protocol, self.sockets
        with link.lock:
            if now_ns >= sockets.due_ns and sockets.tend(now_ns) and protocol.session.secret != NO_SESSION:
                protocol.session.subscribe()
            if isinstance(sockets, LateSockets) and sockets.is_hopeless and protocol.incoming.is_awaited:
                protocol.incoming.fail_replies(TimerdUnavailableError(f"{sockets.hopeless()}; {KEPT}"))
        if isinstance(sockets, LateSockets) and sockets.found is not None:
            self._move(sockets, sockets.found)
        with link.lock:
            if now_ns >= protocol.poll_deadline():
                protocol.tick(now_ns)
        if protocol.lost and not self._lost_ns:
            self._lost_ns = protocol.silence.last_frame_ns
            self.losses += 1
            if self.lifeline.fileno() < 0:  # else the daemon lives
                with link.lock:
                    self._let_go_of_daemon(now_ns)
            kind = "does not answer yet" if protocol.session.secret == NO_SESSION else "is lost"
            trouble = sockets.trouble() if isinstance(sockets, LateSockets) else ""
            link.complain(
                f"the daemon of instance {self.paths.instance!r} {kind}: silent for "
                f"{(now_ns - self._lost_ns) / 1e9:.1f} s; calls are kept, and sent when the daemon is there"
                f"{trouble and f'; {trouble}'}"
            )
        if protocol.incoming.ready or protocol.incoming.complaints:
            self.received()

    def _move(self, late: LateSockets, found: Sockets) -> None:
        """Use the sockets of the daemon that was found."""
        with self._link.lock:
            self._use_sockets(found)
            self.paths, self.unsent = late.paths, None
        try:
            self.passes.watch_sockets()
        except OSError as error:
            with self._link.lock:
                self._use_sockets(late)
                late.look_again(str(error))
            return
        with self._link.lock:
            self._protocol.found(self._link.now_ns())

    def received(self) -> None:
        """After frames: notify promises, and map the arena that the daemon named."""
        protocol = self._protocol
        for waiter in self._take_ready() if protocol.incoming.ready else ():
            waiter.notify()
        if protocol.state is LIVE:
            if self._lost_ns:
                silence_ns, self._lost_ns = protocol.silence.last_frame_ns - self._lost_ns, 0
                back = f"the daemon of instance {self.paths.instance!r} is back after {silence_ns / 1e9:.1f} s"
                self._link.complain(back)
            if protocol.session.arena != self.mapped:
                self._map_arena()
            if not self.lifeline.is_held(protocol.session.secret):
                self._hold_lifeline()
        if protocol.incoming.complaints:
            with self._link.lock:
                complaints, protocol.incoming.complaints = protocol.incoming.complaints, []
            for each in complaints:
                self._link.complain(each, often=True)
        self.passes.received()

    def _take_ready(self) -> list[Notified]:
        with self._link.lock:
            return self._protocol.incoming.take_ready()

    # the lifeline and the arena ---------------------------------------------------------------------------------------

    def _hold_lifeline(self) -> None:
        self._let_go_of_lifeline()
        if self.lifeline.hold(self._protocol.session.secret, self._link.now_ns()):
            self.passes.watch(self.lifeline.fileno())

    def _let_go_of_lifeline(self) -> None:
        if self.lifeline.fileno() >= 0:
            self.passes.unwatch(self.lifeline.fileno())
            self.lifeline.let_go()

    def lifeline_ended(self) -> None:
        """The lifeline has ended: the daemon has ended, or refuses the connection."""
        now_ns = self._link.now_ns()
        if self.lifeline.fileno() >= 0:
            self.passes.unwatch(self.lifeline.fileno())
            if self.lifeline.has_ended(now_ns):
                with self._link.lock:
                    self._protocol.daemon_ended(now_ns)
                    self._let_go_of_daemon(now_ns)

    def _let_go_of_daemon(self, now_ns: int) -> None:
        """End the connections to a daemon that has ended or is lost: another user may listen in its place soon."""
        if self.sockets.lost(now_ns):
            self._protocol.session.subscriptions.append(NO_OUTLET)  # for the holder of the seat (threaded/seat.py)

    def _map_arena(self) -> None:
        """Map the daemon's arena, so that marks are exact. Without a map, marks have the sequence of the last frame."""
        protocol = self._protocol
        self.mapped = protocol.session.arena
        old, self.reader = self.reader, None
        if protocol.session.shared_clock:
            try:
                with changing:  # no fork meanwhile: map_arena() may connect to see whether a daemon runs
                    reader = self.sockets.map_arena()
            except (TimerdError, OSError) as error:
                logger.info("timerd client: arena not mapped: %s", error)
            else:
                if reader.header().incarnation == protocol.session.arena:
                    with self._link.lock:
                        self.reader = reader
                        protocol.ledger.use_arena(reader.words, NEWEST_WORD)
                else:
                    reader.close()
        if old is not None:
            old.close()

    def close(self) -> None:
        """Close the sockets and the arena. Pending operations settle as failed with ClosedError."""
        link, protocol = self._link, self._protocol
        with link.lock:
            link.sealed = link.closed = True
            closed = ClosedError("the client was closed before this was settled", in_doubt=True)
            protocol.incoming.fail_all(closed)
            last = [protocol.ledger.newest()]
            protocol.ledger.use_arena(last, 0)
            waiters = protocol.incoming.take_ready()
            reader, self.reader = self.reader, None
        for waiter in waiters:
            waiter.notify()
        self.sockets.close(linger=protocol.state is LinkState.CLOSED)
        self._let_go_of_lifeline()  # after BYE
        if reader is not None:
            reader.close()
        for each in link.complaints.rest():
            link.complain(each)
