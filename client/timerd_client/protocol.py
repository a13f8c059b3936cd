"""The client's protocol: frames and `now_ns` in, frames and settled operations out. No socket, no clock, no thread.

    CONNECTING --WELCOME--> HELLO --first report heard on the subscription--> LIVE --3 s of silence--> LOST
        ^  ^                                                                   |                        |
        |  +----------------------- "say hello", "session gone" --------------+   any report: LIVE <---+
        +---------------------------------------- hello again ------------------------------------------+

Ground rules (DESIGN.md, rules 6 and 7):

* Commands are numbered one by one and kept until the daemon says that it has applied them. "Expected n", or 250 ms
  without progress, sends again from the first unacknowledged one (go-back-n); the daemon skips what it has applied.
* Outcomes are numbered too, and acknowledged up to the last one received without a gap, in every frame. A gap is asked
  for. An outcome heard twice finds nobody waiting and is dropped.
* After a restart of the daemon the numbering goes on (`applied` of WELCOME). In another arena, or when the daemon knows
  this client no more, what was waiting settles as failed with SessionGoneError: whether it was applied is unknown. The
  client goes on under a new incarnation with numbers from 1.

The caller of every method holds the link's lock, or is the only thread.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple
from typing import Protocol as Interface

import msgpack

from timerd_shm.errors import ErrorCode, SessionGoneError, TimerdError, TimerdUnavailableError, error_for
from timerd_shm.fields import fields, offset_of, size_of, struct_of
from timerd_shm.layout import Orphans
from timerd_shm.limits import (
    ANNOUNCE_FIRST_NS,
    ANNOUNCE_LAST_NS,
    COMMANDS_PER_FRAME_MAX,
    DAEMON_LOST_NS,
    FRAME_SIZE_MAX,
    HEARTBEAT_NS,
    WINDOW_COMMANDS_MAX,
)
from timerd_shm.wire import (
    PROTOCOL_VERSION,
    CommandHeader,
    DownKind,
    KeyCommand,
    OutcomeRecord,
    ReportHeader,
    UpKind,
    WireAnswer,
)

from .commands import NOTHING, with_time_left
from .errors import NOBODY, Subject, refusal
from .promise import RawSettlement, Reply, local

DEFAULT_PURGATORY: Final = "default"
NO_SESSION: Final = bytes(16)
NEVER: Final = 0xFFFF_FFFF_FFFF_FFFF
RETRANSMIT_FIRST_NS: Final = 250_000_000
RETRANSMIT_LAST_NS: Final = 1_000_000_000
ACKNOWLEDGE_DELAY_NS: Final = (
    5_000_000  # outcomes wait this long for a frame to ride in; the daemon reminds after 50 ms
)
ACKNOWLEDGE_OUTCOMES_MAX: Final = 4_096  # or until there are so many
WAITS_MAX: Final = 262_144  # told in one HELLO, so that it stays under FRAME_SIZE_MAX

_UP = struct_of(CommandHeader)
_DOWN = struct_of(ReportHeader)
_DOWN_SIZE: Final = _DOWN.size
_OUTCOME_SIZE: Final = size_of(OutcomeRecord)
_ANSWER_SIZE: Final = size_of(WireAnswer)


def _columns(record: type[Any], *names: str) -> struct.Struct:
    """Reads only the named fields of consecutive records, in the record's order."""
    codes = (field.storage.code if field.name in names else f"{field.storage.size}x" for field in fields(record))
    return struct.Struct("<" + "".join(codes))


_OUTCOMES = _columns(OutcomeRecord, "command", "heap_offset", "value_length")
_ANSWERS = _columns(WireAnswer, "command", "value", "code")


class LinkState(Enum):
    """Where the protocol stands."""

    CONNECTING = "connecting"  # HELLO is sent until WELCOME comes
    HELLO = "hello"  # subscribed, nothing heard on the subscription yet
    LIVE = "live"
    LOST = "lost"  # nothing heard for 3 s; commands are kept
    CLOSED = "closed"


class Identity(NamedTuple):
    """What a client says of itself in HELLO."""

    name: str = ""
    pid: int = 0
    start_ticks: int = 0
    pid_namespace: int = 0
    time_namespace: int = 0
    boot_id: bytes = bytes(16)
    orphans: Orphans = Orphans.CANCEL


class Waiter(Interface):
    """Whom an outcome is for."""

    def subject(self, command: int) -> Subject:
        """What that command was about."""

    def settle(self, command: int, settlement: RawSettlement) -> bool:
        """Take it; whether `tell` is to be called when the lock is free."""

    def tell(self) -> None:
        """Tell who waits."""


class _Query(NamedTuple):
    frame_map: bytes
    reply: Reply


class Protocol:
    """One client's side of the conversation with a daemon."""

    def __init__(
        self,
        identity: Identity,
        now_ns: int,
        random: Callable[[int], bytes] = os.urandom,
        window: int = WINDOW_COMMANDS_MAX,
    ) -> None:
        self.identity = identity
        self.window = window
        self._random = random
        self.incarnation = random(16)
        self.state = LinkState.CONNECTING
        self.refused: TimerdError | None = None  # why the daemon does not take this client
        self.arena = 0  # incarnation of the daemon's arena; 0 = not known yet
        self.session = NO_SESSION
        self.topic = 0
        self.daemon_pid = 0
        self.shared_clock = False
        self.purgatories: dict[str, int] = {DEFAULT_PURGATORY: 0}

        # commands: number `_base + i` is `commands[i]`
        self.issued = 0
        self.applied = 0
        self._sent = 0
        self._base = 1
        self.commands: list[bytes] = []
        self.waiting: dict[int, Waiter] = {}
        self.replies: dict[int, Reply] = {}
        self._queries: dict[int, _Query] = {}
        self._query_id = 0

        self.received_outcome = 0
        self.received_answer = 0
        self._told_outcome = 0  # acknowledged so far
        self._told_answer = 0
        self._asking = False

        # the newest event: one word of the mapped arena, or of this list what the daemon said last
        self._newest_heard = [0]
        self.newest_words: Sequence[int] = self._newest_heard
        self.newest_index = 0

        self.ready: list[Waiter] = []
        self.complaints: list[str] = []
        self.subscriptions: deque[bytes] = deque()  # to send on the XSUB
        self.resets = 0  # raised when a frame that is not sent yet has become stale
        self._outbox: deque[bytes] = deque()
        self.outcomes_unknown = 0  # outcomes nobody waited for
        self.frames_ignored = 0

        self._hello_at = now_ns
        self._hello_wait_ns = RETRANSMIT_FIRST_NS
        self._subscribed = 0
        self._retransmit_at = NEVER
        self._retransmit_wait_ns = RETRANSMIT_FIRST_NS
        self._back_applied = -1
        self._back_at = 0
        self._ask_at = 0
        self._ask_wait_ns = ANNOUNCE_FIRST_NS
        self._acknowledge_at = NEVER
        self._query_at = NEVER
        self._last_sent_ns = now_ns
        self._last_heard_ns = now_ns

    # what callers do ----------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Commands that may still be issued before some are acknowledged."""
        return self.window - (self.issued - self.applied)

    def issue(self, command: bytes) -> int:
        """Take a command, whose number is returned. The caller has seen that there is room."""
        self.issued += 1
        self.commands.append(command)
        return self.issued

    def issue_all(self, commands: Sequence[bytes]) -> int:
        """Take several commands at once; the number of the first."""
        first = self.issued + 1
        self.issued += len(commands)
        self.commands += commands
        return first

    def newest(self) -> int:
        """Sequence of the newest event, as far as this client can see."""
        return self.newest_words[self.newest_index]

    def use_arena(self, words: Sequence[int], index: int) -> None:
        """From now on `words[index]` is the sequence of the newest event (of the arena whose incarnation was given)."""
        self.newest_words, self.newest_index = words, index

    def query(self, question: dict[str, Any], reply: Reply, now_ns: int) -> None:
        """Ask; `reply` gets the RESULT map, or the error. Sent again until it is answered."""
        self._query_id += 1
        packed: bytes = msgpack.packb({**question, "id": self._query_id})
        self._queries[self._query_id] = _Query(packed, reply)
        if self.state is LinkState.LIVE:
            self._outbox.append(self._frame(UpKind.QUERY, packed))
        self._query_at = min(self._query_at, now_ns + RETRANSMIT_FIRST_NS)

    def close(self, now_ns: int) -> None:
        """Say goodbye; what still waits settles as failed by the link."""
        if self.session != NO_SESSION:
            self._outbox.append(self._frame(UpKind.BYE))
        self.state = LinkState.CLOSED

    def fail_all(self, error: TimerdError) -> None:
        """Settle everything that waits with this error."""
        waiting, self.waiting = self.waiting, {}
        replies, self.replies = self.replies, {}
        queries, self._queries = self._queries, {}
        self._query_at = NEVER
        settlement = local(error)
        for command, waiter in waiting.items():
            if waiter.settle(command, settlement):
                self.ready.append(waiter)
        for reply in [*replies.values(), *(query.reply for query in queries.values())]:
            if reply.answer(None, error):
                self.ready.append(reply)

    def take_ready(self) -> list[Waiter]:
        """Those that are to be told now that the lock is free."""
        ready, self.ready = self.ready, []
        return ready

    # time ---------------------------------------------------------------------------------------------------------

    def poll_deadline(self) -> int:
        """When `tick` has something to do, if nothing else happens before (ns); NEVER when closed."""
        match self.state:
            case LinkState.CLOSED:
                return NEVER
            case LinkState.CONNECTING | LinkState.HELLO:
                return self._hello_at
            case LinkState.LOST:
                return self._hello_at
            case LinkState.LIVE:
                return min(
                    self._acknowledge_at,
                    self._retransmit_at if self.applied < self._sent else NEVER,
                    self._query_at,
                    self._ask_at if self._asking else NEVER,
                    self._last_sent_ns + HEARTBEAT_NS,
                    self._last_heard_ns + DAEMON_LOST_NS,
                )

    def tick(self, now_ns: int) -> None:
        """Do what is due: hello, retransmission, questions, acknowledgements, the daemon's absence."""
        state = self.state
        if state is LinkState.LIVE:
            if now_ns >= self._last_heard_ns + DAEMON_LOST_NS:
                self.state = LinkState.LOST
                self._hello_wait_ns = RETRANSMIT_FIRST_NS
                self._hello_at = now_ns
            else:
                self._tick_live(now_ns)
                return
        elif state is LinkState.CLOSED:
            return
        if now_ns >= self._hello_at:
            if state is LinkState.HELLO and self._subscribed < 4:
                # the subscription may have reached a daemon that did not know the session yet
                self._subscribe(again=True)
            else:
                self.state = LinkState.LOST if self.state is LinkState.LOST else LinkState.CONNECTING
                self._say_hello()
            self._hello_at = now_ns + self._hello_wait_ns
            self._hello_wait_ns = min(2 * self._hello_wait_ns, RETRANSMIT_LAST_NS)

    def _tick_live(self, now_ns: int) -> None:
        if self.applied < self._sent and now_ns >= self._retransmit_at:
            self._sent = self.applied
            self.resets += 1
            self._retransmit_wait_ns = min(2 * self._retransmit_wait_ns, RETRANSMIT_LAST_NS)
            self._retransmit_at = now_ns + self._retransmit_wait_ns
        if now_ns >= self._query_at:
            self._outbox += [self._frame(UpKind.QUERY, query.frame_map) for query in self._queries.values()]
            self._query_at = now_ns + RETRANSMIT_FIRST_NS if self._queries else NEVER
        if self._asking and now_ns >= self._ask_at:
            self._ask(now_ns)
        if now_ns >= self._acknowledge_at or now_ns >= self._last_sent_ns + HEARTBEAT_NS:
            self._outbox.append(self._frame(UpKind.ACK))
            self._last_sent_ns = now_ns  # or it would be due again before it is sent

    # frames up ----------------------------------------------------------------------------------------------------

    def wants_to_send(self) -> bool:
        """Whether next_frame() would give a frame."""
        return bool(self._outbox) or (self.state is LinkState.LIVE and self._sent < self.issued)

    def next_frame(self, now_ns: int) -> bytes | None:
        """The next frame for the DEALER, None if there is none. Commands that piled up share one."""
        if self._outbox:
            self._last_sent_ns = now_ns
            return self._outbox.popleft()
        if self.state is not LinkState.LIVE or self._sent >= self.issued:
            return None
        if self._sent == self.applied:
            self._retransmit_at = now_ns + self._retransmit_wait_ns
        start = self._sent + 1 - self._base
        commands = self.commands[start : start + COMMANDS_PER_FRAME_MAX]
        body = b"".join(commands)
        while len(body) > FRAME_SIZE_MAX - _UP.size:
            commands = commands[: (len(commands) + 1) // 2]
            body = b"".join(commands)
        if not self.shared_clock:
            body = b"".join(with_time_left(command, now_ns) for command in commands)
        first = self._sent + 1
        self._sent += len(commands)
        self._last_sent_ns = now_ns
        return self._frame(UpKind.COMMANDS, body, len(commands), first)

    def _frame(self, kind: UpKind, body: bytes = b"", count: int = 0, first: int | None = None) -> bytes:
        self._told_outcome, self._told_answer = self.received_outcome, self.received_answer
        self._acknowledge_at = NEVER
        first = self._sent + 1 if first is None else first
        header: bytes = _UP.pack(
            PROTOCOL_VERSION,
            kind,
            0,
            count,
            self.arena,
            self.session,
            first,
            self.received_outcome,
            self.received_answer,
        )
        return header + body

    def _say_hello(self) -> None:
        identity = self.identity
        waits = [command for command in self.waiting if command <= self.applied][:WAITS_MAX]
        hello = {
            "protocol": PROTOCOL_VERSION,
            "incarnation": self.incarnation,
            "name": identity.name,
            "pid": identity.pid,
            "start_ticks": identity.start_ticks,
            "pid_namespace": identity.pid_namespace,
            "time_namespace": identity.time_namespace,
            "boot_id": identity.boot_id,
            "now_ns": self._hello_at,
            "orphans": int(identity.orphans),
            "group": None,
            "waits": waits,
            "purgatories": list(self.purgatories),
        }
        self._outbox.clear()  # questions are asked again, the rest was for the old session
        self._outbox.append(self._frame(UpKind.HELLO, msgpack.packb(hello)))
        self.resets += 1

    def _subscribe(self, *, again: bool = False) -> None:
        if again:
            self.subscriptions.append(b"\x00" + self.session)
        self.subscriptions.append(b"\x01" + self.session)
        self._subscribed += 1

    def _ask(self, now_ns: int) -> None:
        """Ask for what was missed; not again before a time that doubles from 50 ms to 1 s."""
        if self._asking and now_ns < self._ask_at:
            return
        self._ask_wait_ns = min(2 * self._ask_wait_ns, ANNOUNCE_LAST_NS) if self._asking else ANNOUNCE_FIRST_NS
        self._asking = True
        self._ask_at = now_ns + self._ask_wait_ns
        self._outbox.append(self._frame(UpKind.ASK))

    # frames down --------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now_ns: int, *, published: bool) -> None:
        """Take a frame from the XSUB (`published`) or the DEALER. What is not a frame of this daemon is counted."""
        if self.state is LinkState.CLOSED:
            return
        if len(frame) < _DOWN_SIZE:
            self.frames_ignored += 1
            return
        header = ReportHeader._make(_DOWN.unpack_from(frame))
        if header.version != PROTOCOL_VERSION:
            self.frames_ignored += 1
            if self.state is LinkState.CONNECTING:
                self.refused = error_for(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"the daemon speaks version {header.version} of the protocol, this client {PROTOCOL_VERSION}",
                )
            return
        try:
            match header.kind:
                case DownKind.REPORT:
                    self._report(header, frame, now_ns, published)
                case DownKind.EXPECTED:
                    self._expected(header, now_ns)
                case DownKind.WELCOME:
                    self._welcome(header, _map_of(frame), now_ns)
                case DownKind.RESULT:
                    self._result(_map_of(frame), now_ns)
                case DownKind.ERROR:
                    self._error(header, _map_of(frame), now_ns)
                case DownKind.HELLO_FIRST:
                    self._hello_first(header, now_ns)
                case DownKind.SESSION_GONE:
                    self._begin_anew(now_ns)
                case _:
                    self.frames_ignored += 1
        except (struct.error, ValueError, KeyError, TypeError) as error:
            self.frames_ignored += 1
            self.complaints.append(f"frame of kind {header.kind} with {len(frame)} bytes is malformed: {error!r}")

    def _report(self, header: ReportHeader, frame: bytes, now_ns: int, published: bool) -> None:
        if header.incarnation != self.arena or self.session == NO_SESSION:
            self.frames_ignored += 1
            return
        self._last_heard_ns = now_ns
        if self.state is LinkState.LOST or (published and self.state is LinkState.HELLO):
            self._go_live(now_ns)
        if header.newest > self._newest_heard[0]:
            self._newest_heard[0] = header.newest
        if header.applied > self.applied:
            self._acknowledged(header.applied, now_ns)

        received, answered = self.received_outcome, self.received_answer
        missed = False
        if header.outcome_first <= header.outcome_last:
            if header.outcome_first > received + 1:
                missed = True
            elif header.outcome_last > received:
                if header.outcomes:
                    self._settle_all(header, frame)
                self.received_outcome = header.outcome_last
        elif header.outcome_newest > received:
            missed = True
        if header.answers:
            if header.answer_previous > answered:
                missed = True
            else:
                self._take_answers(header, frame)
        elif header.answer_newest > answered:
            missed = True

        progress = self.received_outcome > received or self.received_answer > answered
        if progress:
            if self._asking:  # is there more?
                self._asking = False
                missed = missed or (not published and header.outcome_newest > self.received_outcome)
            if self.received_outcome - self._told_outcome >= ACKNOWLEDGE_OUTCOMES_MAX:
                self._acknowledge_at = now_ns
            else:
                self._acknowledge_at = min(self._acknowledge_at, now_ns + ACKNOWLEDGE_DELAY_NS)
        elif header.outcomes or header.answers:  # heard before: the acknowledgement was lost
            self._acknowledge_at = min(self._acknowledge_at, now_ns + ACKNOWLEDGE_DELAY_NS)
        if missed:
            self._ask(now_ns)

    def _settle_all(self, header: ReportHeader, frame: bytes) -> None:
        """Settle the operations of a report. Each keeps a copy of its record and value, never the frame."""
        size = _OUTCOME_SIZE
        end = _DOWN_SIZE + header.outcomes * size
        heap = end + header.answers * _ANSWER_SIZE
        if heap > len(frame):
            raise ValueError(f"{header.outcomes} outcomes and {header.answers} answers do not fit")
        arena = self.arena
        take = self.waiting.pop
        tell = self.ready.append
        offset = _DOWN_SIZE
        for command, heap_offset, value_length in _OUTCOMES.iter_unpack(memoryview(frame)[offset:end]):
            waiter = take(command, None)
            if waiter is not None:
                value = frame[heap + heap_offset : heap + heap_offset + value_length] if value_length else b""
                if waiter.settle(command, (frame[offset : offset + size], value, arena, None)):
                    tell(waiter)
            else:
                self.outcomes_unknown += 1
            offset += size

    def _take_answers(self, header: ReportHeader, frame: bytes) -> None:
        start = _DOWN_SIZE + header.outcomes * _OUTCOME_SIZE
        rows = frame[start : start + header.answers * _ANSWER_SIZE]
        for command, value, code in _ANSWERS.iter_unpack(rows):
            if command <= self.received_answer:
                continue
            self.received_answer = command
            self._answered(command, value, refusal(code, value, self._subject(command)) if code else None)

    def _subject(self, command: int) -> Subject:
        promise = self.waiting.get(command, self.replies.get(command))
        return NOBODY if promise is None else promise.subject(command)

    def _answered(self, command: int, value: int, error: TimerdError | None) -> None:
        reply = self.replies.pop(command, None)
        if error is not None:
            waiter = self.waiting.pop(command, None)
            if waiter is not None:
                if waiter.settle(command, local(error)):
                    self.ready.append(waiter)
            elif reply is None:
                self.complaints.append(f"command {command} was refused: {error}")
        if reply is not None and reply.answer(value, error):
            self.ready.append(reply)

    def _acknowledged(self, applied: int, now_ns: int) -> None:
        if not self.applied < applied <= self.issued:
            return
        self.applied = applied
        self._sent = max(self._sent, applied)
        self._retransmit_wait_ns = RETRANSMIT_FIRST_NS
        self._retransmit_at = now_ns + RETRANSMIT_FIRST_NS
        drop = applied + 1 - self._base
        if drop >= 1_024 or drop == len(self.commands):  # else the list would be moved for each one
            del self.commands[:drop]
            self._base += drop

    def _expected(self, header: ReportHeader, now_ns: int) -> None:
        if header.incarnation != self.arena:
            self.frames_ignored += 1
            return
        self._last_heard_ns = now_ns
        self._acknowledged(header.applied, now_ns)
        # every frame in flight behind a lost one is answered so; going back once is enough
        again = header.applied == self._back_applied and now_ns < self._back_at + ANNOUNCE_FIRST_NS
        if header.applied == self.applied and self._sent > self.applied and not again:
            self._back_applied, self._back_at = header.applied, now_ns
            self._sent = self.applied
            self.resets += 1

    def _welcome(self, header: ReportHeader, welcome: dict[str, Any], now_ns: int) -> None:
        applied = int(welcome["applied"])
        if self.arena and header.incarnation != self.arena:
            self._forget(SessionGoneError("the daemon has another arena; what was not settled is unknown"))
        self.arena = header.incarnation
        if not self.applied <= applied <= self.issued:
            # it knows less than it has acknowledged, or more than was said: this is not our record any more
            self._begin_anew(now_ns)
            return
        self._last_heard_ns = now_ns
        self.refused = None
        if self.session not in (NO_SESSION, welcome["session"]):
            self.subscriptions.append(b"\x00" + self.session)
        self.session = bytes(welcome["session"])
        self.topic = int(welcome["topic"])
        self.daemon_pid = int(welcome.get("daemon_pid", 0))
        self.shared_clock = bool(welcome["shared_clock"])
        self._name_purgatories(welcome.get("purgatories", {}))
        self._newest_heard[0] = max(self._newest_heard[0], int(welcome["newest"]))
        self._acknowledged(applied, now_ns)
        for command in welcome.get("unknown", ()):
            waiter = self.waiting.pop(command, None)
            if waiter is not None:
                gone = SessionGoneError(f"the daemon no longer holds operation {command}; how it settled is unknown")
                if waiter.settle(command, local(gone)):
                    self.ready.append(waiter)
        self.state = LinkState.HELLO
        self._subscribed = 0
        self._subscribe()
        self._hello_wait_ns = RETRANSMIT_FIRST_NS
        self._hello_at = now_ns + self._hello_wait_ns

    def _name_purgatories(self, indices: dict[str, int]) -> None:
        """Take the daemon's indices; commands that were kept for another arena carry that one's."""
        known = self.purgatories
        moved = {known[name]: index for name, index in indices.items() if known.get(name, index) != index}
        if moved:
            at = offset_of(KeyCommand, "purgatory")  # the same in every command
            self.commands = [
                command[:at] + bytes((moved.get(command[at], command[at]),)) + command[at + 1 :]
                for command in self.commands
            ]
        known.update(indices)

    def _go_live(self, now_ns: int) -> None:
        self.state = LinkState.LIVE
        self._sent = self.applied
        self._asking = False
        self._outbox.append(self._frame(UpKind.ACK))
        self._query_at = now_ns if self._queries else NEVER
        self.resets += 1

    def _hello_first(self, header: ReportHeader, now_ns: int) -> None:
        self._last_heard_ns = now_ns
        if self.state is LinkState.CONNECTING:
            return  # to a frame that crossed our HELLO
        if header.incarnation != self.arena:
            self._begin_anew(now_ns)
            return
        self.state = LinkState.CONNECTING
        self._hello_wait_ns = RETRANSMIT_FIRST_NS
        self._hello_at = now_ns

    def _begin_anew(self, now_ns: int) -> None:
        """The daemon does not know this client: a new incarnation says hello."""
        self._forget(SessionGoneError("the daemon no longer knows this client; what was not settled is unknown"))
        if self.session != NO_SESSION:
            self.subscriptions.append(b"\x00" + self.session)
        self.session = NO_SESSION
        self.arena = 0
        self.incarnation = self._random(16)
        self.state = LinkState.CONNECTING
        self._hello_wait_ns = RETRANSMIT_FIRST_NS
        self._hello_at = now_ns

    def _forget(self, error: SessionGoneError) -> None:
        if unacknowledged := self.issued - self.applied:
            self.complaints.append(f"{unacknowledged} commands were unacknowledged: {error}")
        self.fail_all(error)
        self.commands.clear()
        self._base, self._sent, self.issued, self.applied = 1, 0, 0, 0
        self.received_outcome = self.received_answer = self._told_outcome = self._told_answer = 0
        self._asking = False
        self._acknowledge_at = NEVER
        self._back_applied = -1
        self._newest_heard = [0]
        self.use_arena(self._newest_heard, 0)
        self._outbox.clear()
        self.resets += 1

    def _result(self, result: dict[str, Any], now_ns: int) -> None:
        self._last_heard_ns = now_ns
        query = self._queries.pop(int(result["id"]), None)
        if query is not None and query.reply.answer(result):
            self.ready.append(query.reply)

    def _error(self, header: ReportHeader, error_map: dict[str, Any], now_ns: int) -> None:
        error = error_for(int(error_map["code"]), str(error_map["message"]))
        identifier = error_map.get("id")
        if identifier is not None:
            query = self._queries.pop(int(identifier), None)
            if query is not None and query.reply.answer(None, error):
                self.ready.append(query.reply)
            return
        if error.code is ErrorCode.SESSION_GONE:
            self._begin_anew(now_ns)
            return
        if self.state is LinkState.CONNECTING:
            self.refused = error
            return
        self.complaints.append(f"the daemon refused a frame: {error}")
        if header.incarnation != self.arena:
            return
        self._acknowledged(header.applied, now_ns)
        culprit = self.applied + 1
        if header.applied != self.applied or self._sent < culprit:
            return
        # The daemon has stopped before this command, and would do so for ever: its number goes to one it can read.
        self.commands[culprit - self._base] = NOTHING
        self._answered(culprit, 0, error)
        self._sent = self.applied
        self.resets += 1

    def unavailable(self, seconds: float) -> TimerdUnavailableError:
        """The error of a caller whose patience is over."""
        return TimerdUnavailableError(
            f"no answer from the daemon within {seconds:g} s (state: {self.state.value}); "
            "start it (`timerd`), or connect(autostart=True)"
        )


def _map_of(frame: bytes) -> dict[str, Any]:
    decoded = msgpack.unpackb(memoryview(frame)[_DOWN_SIZE:])
    if not isinstance(decoded, dict):
        raise ValueError(f"a map was expected, not {type(decoded).__name__}")
    return decoded
