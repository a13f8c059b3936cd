"""The client's protocol: frames and `now_ns` in, frames and settled operations out. No socket, no clock, no thread.

    CONNECTING --WELCOME--> HELLO --first report on the subscription--> LIVE
        ^                         |                                       |
        +--- "hello first", "session gone" --------------------------------+
    any of them --3 s without a frame--> LOST --WELCOME--> HELLO, or --any report--> LIVE
    LIVE, 3 s without a report on the subscription: subscribe again

A Protocol has five parts. Each part knows only the parts above it:

    ledger     unacknowledged commands and pending operations (hot/): the path of each request
    outgoing   commands of the ledger, sent and sent again
    incoming   outcomes, answers, and abandoned operations
    session    the identity of this client at its daemon, and what it knows of the daemon
    inbox      outcomes and calls that are delivered to this client for its group

silence.py decides when the daemon is lost, and deadlines.py which operations are due while it is lost.

Ground rules (DESIGN.md, rules 6 and 7):
* Commands are numbered one by one, and kept until the daemon says that it has applied them (outgoing.py). After
  "expected n", or 250 ms without progress, the client sends again from the first unacknowledged command (go-back-n).
  The daemon skips commands that it has applied.
* Outcomes are numbered, too. Each frame acknowledges the outcomes that were received without a gap (incoming.py). The
  client asks for missing outcomes.
* After a restart of the daemon the numbering goes on (`applied` of WELCOME). In another arena, or when the daemon has
  forgotten this client, pending operations settle as failed with SessionGoneError: nobody knows whether they were
  applied. The numbers begin anew, under a new incarnation, or under the old one if a WELCOME shows the other arena.
* A daemon is *lost* after 3 s in which this client listened and no frame came, or 2 s after its end was seen. While it
  is lost, questions fail at once, and operations are abandoned a second after their deadlines (client/DESIGN.md).

The caller of every method holds the link's lock, or is the only thread.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgpack
from timerd_client.hot import Ledger
from timerd_client.waiter import Answerable
from timerd_shm.declare.errors import ErrorCode, SessionGoneError, TimerdError, TimerdUnavailableError, error_for
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.limits import (
    ANNOUNCE_FIRST_NS,
    ANNOUNCE_LAST_NS,
    ANSWERS_PER_CLIENT_MAX,
    DAEMON_LOST_NS,
    GRACE_NS,
    HEARTBEAT_NS,
    WINDOW_COMMANDS_MAX,
)
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, DownFlag, DownKind, FrameFlag, ReportHeader, UpKind

from .backoff import Backoff, Restarts
from .deadlines import NEVER, Deadlines
from .inbox import Inbox
from .incoming import Incoming, Query, map_of
from .outgoing import Outgoing
from .session import LOST_SESSION, NEW_ARENA, NO_SESSION, Identity, Session, Welcome
from .silence import Silence
from .state import CLOSED, CONNECTING, HELLO, LIVE, LOST, LinkState
from .statistics import Statistics

RETRANSMIT_FIRST_NS: Final = 250_000_000
RETRANSMIT_LAST_NS: Final = 1_000_000_000
ACKNOWLEDGE_DELAY_NS: Final = 25_000_000  # acknowledgements wait this long for a frame; the daemon reminds after 50 ms
ACKNOWLEDGE_OUTCOMES_MAX: Final = 4_096  # this many unacknowledged outcomes are acknowledged at once
ACKNOWLEDGE_ANSWERS_MAX: Final = ANSWERS_PER_CLIENT_MAX // 4  # answers, too; 4 times as many would stop commands
# While all is well, ticks are at most HEARTBEAT_NS apart. So a longer pause is a pause of this process.
assert RETRANSMIT_LAST_NS <= HEARTBEAT_NS, f"{RETRANSMIT_LAST_NS=}; {HEARTBEAT_NS=}"

_UP = struct_of(CommandHeader)
_DOWN = struct_of(ReportHeader)
_DOWN_SIZE: Final = _DOWN.size
_header: Final[Callable[[tuple[Any, ...]], ReportHeader]] = partial(tuple.__new__, ReportHeader)  # quicker than _make
MALFORMED: Final = (struct.error, ValueError, LookupError, TypeError, AttributeError, OverflowError)
_COMMANDS: Final = int(UpKind.COMMANDS)
_REPORT: Final = int(DownKind.REPORT)
_CONFIRM: Final = int(FrameFlag.CONFIRM)
_ASKED: Final = int(DownFlag.ASKED)
SENDING_HELLO: Final = (CONNECTING, LOST)  # HELLO is sent until WELCOME comes


class Protocol:
    """One client's side of the conversation with a daemon: a state, timers, and the five parts."""

    def __init__(
        self,
        identity: Identity,
        now_ns: int,
        random: Callable[[int], bytes] = os.urandom,
        window: int = WINDOW_COMMANDS_MAX,
        lost_ns: int = DAEMON_LOST_NS,
        grace_ns: int = GRACE_NS,
    ) -> None:
        self.ledger = Ledger(window)
        self.outgoing = Outgoing(self.ledger)
        self.incoming = Incoming(self.ledger, self.outgoing)
        self.session = Session(self.ledger, identity, random)
        self.inbox = Inbox(self.session, self.incoming, self.query)
        self.silence = Silence(now_ns, lost_ns)
        self._outlet_silence = Silence(now_ns, lost_ns)  # of the outlet alone: the DEALER may still get answers
        self.grace_ns = grace_ns
        self.state = CONNECTING
        self.refused: TimerdError | None = None  # why the daemon refuses this client
        self._query_id = 0
        self._acknowledged_outcome = 0  # acknowledged so far
        self._acknowledged_answer = 0
        self._asking = False
        self._outbox: deque[bytes] = deque()
        self.frames_ignored = 0
        self.leaving = 0  # FrameFlag.LEAVING when the process is ending: each frame has it
        self._hello_at = now_ns
        self._hello = Backoff(RETRANSMIT_FIRST_NS, RETRANSMIT_LAST_NS)
        self._hellos = 0  # HELLOs that no WELCOME has answered
        self._restarts = Restarts(now_ns, RETRANSMIT_LAST_NS)
        self._subscribed = 0
        self._retransmit_at = NEVER
        self._retransmit = Backoff(RETRANSMIT_FIRST_NS, RETRANSMIT_LAST_NS)
        self._back_applied = -1
        self._back_at = 0
        self._ask_at = 0
        self._ask_wait_ns = ANNOUNCE_FIRST_NS
        self.acknowledge_at = NEVER
        self._query_at = NEVER
        self._last_sent_ns = now_ns
        self._deadlines = Deadlines()

    # calls of callers ---------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the daemon is lost."""
        return self.state is LOST

    def status(self, now_ns: int) -> str:
        """The state of the connection, for messages."""
        silence_s = max(0, now_ns - self.silence.last_frame_ns) / 1e9
        refused = f"; it refuses this client: {self.refused}" if self.refused is not None else ""
        return f"state: {self.state.value}, silent for {silence_s:.1f} s{refused}"

    def statistics(self) -> Statistics:
        """The counters of this client."""
        return Statistics.of(self.ledger, self.outgoing, self.incoming, self.inbox, self.frames_ignored)

    def moved(self, registration: int, due_ns: int) -> None:
        """Note that the owner has moved the deadline of an operation."""
        if self.lost:
            self._deadlines.move(registration, due_ns)

    def query(self, question: dict[str, Any], reply: Answerable, now_ns: int) -> None:
        """Ask a question, and repeat it until it is answered. `reply` gets the RESULT map, or the error."""
        self._query_id += 1
        packed: bytes = msgpack.packb({**question, "id": self._query_id})
        self.incoming.queries[self._query_id] = Query(packed, reply)
        if self.state is LIVE:
            self._outbox.append(self._frame(UpKind.QUERY, packed))
        self._query_at = min(self._query_at, now_ns + RETRANSMIT_FIRST_NS)

    def confirm(self) -> None:
        """A caller waits until the daemon has applied all issued commands: ask for a confirmation at once."""
        if self.outgoing.confirm() and self.state is LIVE:
            self._outbox.append(self._frame(UpKind.ACK, flags=_CONFIRM))

    def close(self, now_ns: int) -> None:
        """Send BYE. The link settles pending operations as failed. The daemon requeues grants that nobody has seen."""
        self.incoming.grants.close()
        if self.session.secret != NO_SESSION:
            self._outbox.append(self._frame(UpKind.BYE))
        self.state = CLOSED

    def found(self, now_ns: int) -> None:
        """The daemon was found: send HELLO at once."""
        if self.state in SENDING_HELLO:
            self._restart_hello(now_ns)

    def daemon_ended(self, now_ns: int) -> None:
        """Note that the daemon's end was seen."""
        self.silence.end_seen(now_ns)

    # time ---------------------------------------------------------------------------------------------------------

    def poll_deadline(self) -> int:
        """When `tick` will have something to do, in ns, unless a frame or a call comes first; NEVER when closed."""
        state = self.state
        if state is LIVE:
            return min(
                self.acknowledge_at,
                self._retransmit_at if self.outgoing.in_flight else NEVER,
                self._query_at,
                self.inbox.ping_at,
                self._ask_at if self._asking else NEVER,
                self._last_sent_ns + HEARTBEAT_NS,
                self.silence.lost_at_ns,
                self._outlet_silence.lost_at_ns,
            )
        if state is CLOSED:
            return NEVER
        if state is LOST:
            first_ns = 0 if self._deadlines.behind(self.ledger.issued) else self._deadlines.first_ns
            return min(self._hello_at, max(first_ns + self.grace_ns, self.silence.lost_at_ns))
        return min(self._hello_at, self.silence.lost_at_ns)

    def tick(self, now_ns: int) -> None:
        """Do what is due: HELLO, retransmission, questions, acknowledgements, and the steps when the daemon is lost."""
        if self.state is CLOSED:
            return
        self._look_at_silence(now_ns)
        if self.state is LIVE:
            self._tick_live(now_ns)
        elif now_ns >= self._hello_at:
            if self.state is HELLO and self._subscribed < 4:
                # the last subscription may have reached a daemon that did not know the session yet
                self._subscribe(now_ns)
                self._subscribed += 1
            else:
                if self.state is HELLO:
                    self.state = CONNECTING
                self._send_hello()
            self._hello_at = self._hello.next_at(now_ns)

    def _look_at_silence(self, now_ns: int) -> None:
        """If the daemon is lost, fail all questions and abandon the operations that are due."""
        silence_ns = self.silence.look(now_ns)
        if now_ns < self.silence.lost_at_ns:
            return
        if not self.lost:
            self._stand(LOST)
            self._restart_hello(now_ns)
            self.incoming.fail_replies(
                TimerdUnavailableError(
                    f"the daemon was lost before it answered: it has been silent for {silence_ns / 1e9:.1f} s; "
                    "whether it has applied the command is unknown"
                )
            )
        self._deadlines.collect(self.ledger.pending, self.ledger.issued)
        due = self._deadlines.take_due(now_ns - self.grace_ns, self.ledger.pending)
        if due:
            silence = TimerdUnavailableError(
                f"not known: {self.grace_ns / 1e9:g} s after the deadline the daemon has been silent for "
                f"{silence_ns / 1e9:.1f} s; the operation is withdrawn when it is back"
            )
            self.incoming.settled_unavailable += self.incoming.abandon(due, silence)

    def _stand(self, state: LinkState) -> None:
        self.state = state
        if state is not LOST:
            self._deadlines.clear()
            self.refused = None

    def _restart_hello(self, now_ns: int) -> None:
        """Send HELLO at the next tick, or later if the last restart was just before; then at intervals of up to 1 s."""
        self._hello.restart()
        self._hello_at = self._restarts.next_at(now_ns)

    def _tick_live(self, now_ns: int) -> None:
        self.inbox.tick(now_ns)
        self._outlet_silence.look(now_ns)
        if now_ns >= self._outlet_silence.lost_at_ns:
            self._subscribe(now_ns)  # the outlet may have been lost without a sign
        if self.outgoing.in_flight and now_ns >= self._retransmit_at:
            self.outgoing.go_back()
            self._retransmit_at = self._retransmit.next_at(now_ns)
        if now_ns >= self._query_at:
            self._outbox += [self._frame(UpKind.QUERY, query.frame_map) for query in self.incoming.queries.values()]
            self._query_at = now_ns + RETRANSMIT_FIRST_NS if self.incoming.queries else NEVER
        if self._asking and now_ns >= self._ask_at:
            self._ask(now_ns)
        if now_ns >= self.acknowledge_at or now_ns >= self._last_sent_ns + HEARTBEAT_NS:
            self.incoming.look_at_grants(now_ns)
            self._outbox.append(self._frame(UpKind.ACK))
            self._last_sent_ns = now_ns  # otherwise the frame would be due again before it is sent

    # frames up ----------------------------------------------------------------------------------------------------

    @property
    def has_messages(self) -> bool:
        """Whether next_frame() would give a frame without commands. Such frames go first."""
        return bool(self._outbox)

    @property
    def has_commands(self) -> bool:
        """Whether next_frame() would give commands."""
        return self.state is LIVE and self.outgoing.has_commands

    def wants_to_send(self) -> bool:
        """Whether next_frame() would give a frame."""
        return bool(self._outbox) or (self.state is LIVE and self.outgoing.has_commands)

    def next_frame(self, now_ns: int) -> bytes | None:
        """The next frame for the DEALER; None = there is none. Commands that piled up share a frame."""
        if self._outbox:
            self._last_sent_ns = now_ns
            return self._outbox.popleft()
        if self.state is not LIVE or not self.outgoing.has_commands:
            return None
        self.incoming.look_at_grants(now_ns)
        if self.outgoing.sent == self.ledger.applied:
            self._retransmit_at = now_ns + self._retransmit.wait_ns
        first, number = self.outgoing.take()
        self._last_sent_ns = now_ns
        header = self._frame(_COMMANDS, b"", number, first, _CONFIRM if self.outgoing.asks(first, number) else 0)
        if not self.session.shared_clock:
            return self.outgoing.with_time_left(header, first, number, now_ns)
        return self.outgoing.join(header, first, number)

    def _frame(self, kind: int, body: bytes = b"", count: int = 0, first: int | None = None, flags: int = 0) -> bytes:
        self._acknowledged_outcome = self.incoming.received_outcome
        self._acknowledged_answer = self.incoming.received_answer
        self.acknowledge_at = NEVER
        first = self.outgoing.sent + 1 if first is None else first
        header: bytes = _UP.pack(
            PROTOCOL_VERSION,
            kind,
            flags | self.leaving,
            count,
            self.session.arena,
            self.session.secret,
            first,
            self.incoming.acknowledged_outcome,
            self.incoming.received_answer,
        )
        return header + body

    def _send_hello(self) -> None:
        self._outbox.clear()  # questions will be asked again, and all other frames were for the old session
        self._outbox.append(
            self._frame(UpKind.HELLO, self.session.hello(self._hello_at, listens=self.inbox.listeners > 0))
        )
        self.outgoing.resets += 1
        self._hellos += 1

    def _ask(self, now_ns: int) -> None:
        """Ask for missing outcomes and answers, at intervals that double from 50 ms to 1 s."""
        if self._asking and now_ns < self._ask_at:
            return
        self._ask_wait_ns = min(2 * self._ask_wait_ns, ANNOUNCE_LAST_NS) if self._asking else ANNOUNCE_FIRST_NS
        self._asking = True
        self._ask_at = now_ns + self._ask_wait_ns
        self._outbox.append(self._frame(UpKind.ASK))

    # frames down --------------------------------------------------------------------------------------------------

    def take_report(self, frame: bytes, now_ns: int, *, published: bool) -> bool:
        """Take a plain report, which only settles, answers and confirms. For any other frame return False."""
        if self.state is not LIVE or len(frame) < _DOWN_SIZE:
            return False
        header = _header(_DOWN.unpack_from(frame))
        if header.version != PROTOCOL_VERSION or header.kind != _REPORT or header.incarnation != self.session.arena:
            return False
        if header.applied > self.outgoing.offered:
            return False
        self._take(header, frame, now_ns, published)
        return True

    def receive(self, frame: bytes, now_ns: int, *, published: bool) -> None:
        """Take a frame from the outlet (`published`), or from the DEALER."""
        if self.state is CLOSED:
            return
        if len(frame) < _DOWN_SIZE:
            self.frames_ignored += 1
            return
        header = _header(_DOWN.unpack_from(frame))
        if header.version == PROTOCOL_VERSION:
            self._take(header, frame, now_ns, published)
            return
        self.frames_ignored += 1
        if self.state in SENDING_HELLO:
            self.refused = error_for(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the daemon speaks version {header.version} of the protocol, this client {PROTOCOL_VERSION}",
            )

    def _take(self, header: ReportHeader, frame: bytes, now_ns: int, published: bool) -> None:
        self.session.note_clock(header.now_ns, now_ns, anew=header.kind == DownKind.WELCOME)
        try:
            if header.kind == _REPORT:
                self._report(header, frame, now_ns, published)
                return
            if header.flags or header.looks:
                self.frames_ignored += 1  # no daemon sets these; without this check any two bytes could end a session
                return
            match header.kind:
                case DownKind.EXPECTED:
                    self._expected(header, now_ns)
                case DownKind.WELCOME:
                    self._welcome(header, Welcome.of(map_of(frame)), now_ns)
                case DownKind.RESULT:
                    self._result(map_of(frame), now_ns)
                case DownKind.ERROR:
                    self._error(header, map_of(frame), now_ns)
                case DownKind.HELLO_FIRST:
                    self._hello_first(header, now_ns)
                case DownKind.SESSION_GONE if self.session.secret == NO_SESSION:
                    self.frames_ignored += 1  # a client without a session cannot lose it, so no daemon has sent this
                case DownKind.SESSION_GONE:
                    self._begin_anew(now_ns)
                case _:
                    self.frames_ignored += 1
        except MALFORMED as error:
            self.frames_ignored += 1
            self.incoming.complaints.append(
                f"frame of kind {header.kind} with {len(frame)} bytes is malformed: {error!r}"
            )

    def _report(self, header: ReportHeader, frame: bytes, now_ns: int, published: bool) -> None:
        if header.incarnation != self.session.arena or self.session.secret == NO_SESSION:
            self.frames_ignored += 1
            return
        if header.applied > self.outgoing.offered and header.topic == self.session.topic:
            self._begin_anew(now_ns)  # another process uses this session: the daemon would skip our commands
            return
        incoming = self.incoming
        self.silence.last_frame_ns = now_ns
        if self.state is LOST or (published and self.state is HELLO):
            self._go_live(now_ns)
        if published:
            self._outlet_silence.last_frame_ns = now_ns
        self.session.note_newest(header.newest)
        if header.applied > self.ledger.applied:
            self._acknowledged(header.applied, now_ns)

        received, answered, missed = incoming.received_outcome, incoming.received_answer, False
        if header.outcome_first <= header.outcome_last:
            if header.outcome_first > received + 1:
                missed = True
            elif header.outcome_last > received:
                if header.outcomes:
                    incoming.take_outcomes(header, frame, self.inbox.take_in)
                incoming.received_outcome = header.outcome_last
        elif header.outcome_newest > received:
            missed = True
        if header.answers:
            if header.answer_previous > answered:
                missed = True
            else:
                incoming.take_answers(header, frame)
        elif header.answer_newest > answered:
            missed = True
        incoming.note_answered(header)
        if header.looks:
            incoming.take_looks(header, frame)
        has_looked = incoming.look_at_grants(now_ns)
        progress = incoming.received_outcome > received or incoming.received_answer > answered
        if progress:
            if self._asking:  # is more missing?
                self._asking = False
                missed = missed or (header.flags == _ASKED and header.outcome_newest > incoming.received_outcome)
            if incoming.received_answer > answered:
                # The daemon may have stopped until these answers were acknowledged: its next "expected" counts again.
                self._back_applied = -1
            many = incoming.received_outcome - self._acknowledged_outcome >= ACKNOWLEDGE_OUTCOMES_MAX
            many = many or header.answers >= ACKNOWLEDGE_ANSWERS_MAX
            self.acknowledge_at = min(self.acknowledge_at, now_ns if many else now_ns + ACKNOWLEDGE_DELAY_NS)
        elif header.outcomes or header.answers or has_looked:  # received before: the acknowledgement was lost
            self.acknowledge_at = min(self.acknowledge_at, now_ns + ACKNOWLEDGE_DELAY_NS)
        if missed:
            self._ask(now_ns)
        incoming.forget_abandoned(header)
        if incoming.received_outcome >= header.outcome_newest:
            self.inbox.forget_done(header.applied)

    def _acknowledged(self, applied: int, now_ns: int) -> None:
        if self.incoming.grants.release(applied):
            self.acknowledge_at = now_ns
        if self.outgoing.drop_applied(applied):
            self._retransmit.restart()
            self._retransmit_at = now_ns + RETRANSMIT_FIRST_NS

    def _expected(self, header: ReportHeader, now_ns: int) -> None:
        if header.incarnation != self.session.arena:
            self.frames_ignored += 1
            return
        self.silence.last_frame_ns = now_ns
        self._acknowledged(header.applied, now_ns)
        self.incoming.note_answered(header)
        # after a lost frame, the daemon answers each frame in flight with "expected"; going back once is enough
        again = header.applied == self._back_applied and now_ns < self._back_at + ANNOUNCE_FIRST_NS
        if header.applied == self.ledger.applied and self.outgoing.sent > self.ledger.applied and not again:
            self._back_applied, self._back_at = header.applied, now_ns
            self.outgoing.go_back()

    def _welcome(self, header: ReportHeader, welcome: Welcome, now_ns: int) -> None:
        session, ledger, applied = self.session, self.ledger, welcome.applied
        if not self._hellos or welcome.incarnation not in (None, session.incarnation):
            self.frames_ignored += 1  # it answers no HELLO, or one of an earlier incarnation
            return
        self._hellos -= 1
        if header.incarnation == session.arena and welcome.session == session.secret and applied < ledger.applied:
            self.frames_ignored += 1  # the second answer to a repeated HELLO: a report over PUB has overtaken it
            return
        if not session.are_named(welcome.purgatories):
            self._restart_hello(now_ns)  # a purgatory was named after the HELLO that this WELCOME answers
            return
        if header.incarnation != session.arena:
            if session.arena and session.secret != NO_SESSION:
                self._forget(SessionGoneError(NEW_ARENA))
            else:  # no daemon has seen the kept commands
                ledger.count_from_first()
                session.leave_arena()
        session.arena = header.incarnation
        if not ledger.applied <= applied <= self.outgoing.offered:
            self._begin_anew(now_ns)  # the daemon knows less than it has acknowledged, or more than was sent
            return
        again = self.state in (HELLO, LIVE) and (welcome.slot, welcome.session) == (session.slot, session.secret)
        self.silence.last_frame_ns = now_ns
        self._acknowledged(applied, now_ns)
        session.welcomed(welcome)
        incoming = self.incoming
        incoming.unknown_to_daemon(welcome.unknown)
        incoming.forgotten_by_daemon(welcome.gone)
        self.inbox.welcomed(welcome.lease_ns, now_ns)
        if again:
            return  # a daemon that was stopped answers every HELLO, and one outlet is enough
        self._stand(HELLO)
        self._subscribe(now_ns)
        self._subscribed = 1
        self._hello.restart()
        self._hello_at = now_ns + RETRANSMIT_FIRST_NS

    def _subscribe(self, now_ns: int) -> None:
        """Connect for outcomes, and wait for a report."""
        self.session.subscribe()
        self._outlet_silence.last_frame_ns = now_ns

    def _go_live(self, now_ns: int) -> None:
        self._stand(LIVE)
        self.outgoing.go_back()
        self._asking = False
        self._outbox.append(self._frame(UpKind.ACK))
        self._query_at = now_ns if self.incoming.queries else NEVER

    def _hello_first(self, header: ReportHeader, now_ns: int) -> None:
        self.silence.last_frame_ns = now_ns
        if self.state is CONNECTING:
            return  # an answer to a frame that crossed this client's HELLO
        if header.incarnation != self.session.arena:
            self._begin_anew(now_ns)
            return
        self._stand(CONNECTING)
        self._restart_hello(now_ns)

    def _begin_anew(self, now_ns: int) -> None:
        """The daemon does not know this client: take a new incarnation, and send HELLO."""
        self.silence.last_frame_ns = now_ns
        self._forget(SessionGoneError(LOST_SESSION))
        self.session.change_incarnation()
        self._stand(CONNECTING)
        self._restart_hello(now_ns)

    def _forget(self, error: SessionGoneError) -> None:
        self.incoming.fail_all(error)
        self.inbox.forget()
        unacknowledged = self.outgoing.begin_anew()
        if unacknowledged:
            self.incoming.complaints.append(f"commands that were unacknowledged: {unacknowledged}; {error}")
        self.incoming.begin_anew()
        self._acknowledged_outcome = self._acknowledged_answer = 0
        self._asking = False
        self.acknowledge_at = self._query_at = NEVER
        self._back_applied = -1
        self.session.leave_arena()
        self._outbox.clear()

    def _result(self, result: dict[str, Any], now_ns: int) -> None:
        self.silence.last_frame_ns = now_ns
        query = self.incoming.queries.pop(int(result["id"]), None)
        if query is not None and query.reply.answer(result):
            self.incoming.ready.append(query.reply)

    def _error(self, header: ReportHeader, error_map: dict[str, Any], now_ns: int) -> None:
        error = error_for(int(error_map["code"]), str(error_map["message"]))
        identifier = error_map.get("id")
        if identifier is not None:
            query = self.incoming.queries.pop(int(identifier), None)
            if query is not None and query.reply.answer(None, error):
                self.incoming.ready.append(query.reply)
            return
        if error.code is ErrorCode.SESSION_GONE and self.session.secret != NO_SESSION:
            self._begin_anew(now_ns)
            return
        if self.state in SENDING_HELLO:
            self.refused = error
            return
        self.incoming.complaints.append(f"the daemon refused a frame: {error}")
        if header.incarnation != self.session.arena:
            return
        self._acknowledged(header.applied, now_ns)
        culprit = self.ledger.applied + 1
        if header.applied != self.ledger.applied or self.outgoing.sent < culprit:
            return
        # The daemon would always stop at this command, so a command that it can read takes its place.
        self.outgoing.void(culprit)
        self.incoming.answer(culprit, 0, error)
        self.outgoing.go_back()
