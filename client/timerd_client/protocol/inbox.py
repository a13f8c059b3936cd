"""What this client is told for its group: outcomes of operations that it did not register. No I/O, no clock, no thread.

    told by a report --> kept here --> handed to the caller --ack()--> done: the daemon frees it
                            |
                            '-- not sure that it is still ours: asked for ("held"), dropped if it is another's

Ground rules (timerd/DESIGN.md, section "Groups, and owners that end"):

* A member that is silent for a lease loses what it was told and has not done: another is told. It may have been
  stopped, and then does not know. So, *just before an outcome is handed to the caller*, the newest answered question
  must have been sent not longer ago than the lease (two thirds of it: the rest is for the way). Else the daemon is
  asked, and what it does not confirm is dropped. Without a daemon nothing is confirmed, and the caller waits.
* A pause that was longer lies between two answered questions. Whatever the daemon told before it answered the second
  one may be another's by now, even if it is read after that answer: it is vouched for by the daemon's own clock, which
  stands in every frame.
* Outcomes are told to who listens (a loop over `outcomes()`), calls to who handles their name. What the daemon knows of
  that is changed by one question at a time: a repeated old one would undo a newer one.

Not closable: stopped between the check and the caller's code. That is what `deliveries` is for.

The caller of every method holds the link's lock, or is the only thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from timerd_client.waiter import Answerable
from timerd_shm.declare.errors import ErrorCode, NotAMemberError, TimerdError
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.limits import HELD_QUERY_MAX, LEASE_NS
from timerd_shm.declare.wire import OutcomeFlag, OutcomeRecord

from .deadlines import NEVER
from .incoming import Incoming
from .session import CALLS, Session

Ask: TypeAlias = Callable[[dict[str, Any], Answerable, int], None]
"""Asks the daemon: a question, who waits for the answer, and the time."""

_UNPACK: Final = struct_of(OutcomeRecord).unpack


class Told:
    """One outcome of the group, as it was told."""

    __slots__ = ("arena", "client", "keys", "payload", "purgatory", "record", "row", "value", "vouched_ns")

    def __init__(self, row: bytes, frame: bytes, heap: int, arena: int, client: bytes, delivered_ns: int) -> None:
        """`heap` is where that of the frame starts; raises ValueError if the record points outside of it."""
        self.row = row
        self.record = record = OutcomeRecord._make(_UNPACK(row))
        value_at = heap + record.heap_offset
        payload_at = value_at + record.value_length
        names_at = payload_at + record.payload_length
        end = names_at + record.keys_length
        if end > len(frame):
            raise ValueError(f"outcome {record.number} has its payload outside of the frame")
        self.value = frame[value_at:payload_at]
        self.payload = frame[payload_at:names_at]
        names = _names(frame[names_at:end])
        self.purgatory = names[0].decode() if names else ""
        self.keys = tuple(_text(name) for name in names[1:])
        self.arena = arena  # with `client`: to whom it was told, and so whose acknowledgement counts
        self.client = client
        self.vouched_ns = delivered_ns  # the daemon's clock when it last said that this client holds it


def _names(packed: bytes) -> list[bytes]:
    """The names in u8 length + bytes."""
    names, at = [], 0
    while at < len(packed):
        end = at + 1 + packed[at]
        names.append(packed[at + 1 : end])
        at = end
    return names


def _text(name: bytes) -> str | bytes:
    """A key as its owner most probably gave it: str where it is UTF-8."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


class _Question(NamedTuple):
    """A query's reply that goes to the inbox instead of a caller."""

    taken: Callable[[Any, TimerdError | None], None]

    def answer(self, value: Any, error: TimerdError | None = None) -> bool:
        self.taken(value, error)
        return False

    def tell(self) -> None:
        """Nobody waits for it: those who wait for outcomes look again after each frame."""


class _Standing:
    """What the daemon is to know of this client until it is told otherwise."""

    def __init__(self, inbox: Inbox, nothing: object) -> None:
        self._inbox = inbox
        self._nothing = nothing  # what a daemon knows of a client that has said nothing
        self.wanted = nothing
        self.forget()

    def forget(self) -> None:
        """It is another daemon, or another client."""
        self.known: object = self._nothing  # what the daemon has answered; None = it may be either
        self.asking = False

    def ask(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], object], now_ns: int) -> None:
        """Have the daemon know what is wanted, by this question; `answer` gives from the result what it knows then."""
        inbox, wanted = self._inbox, self.wanted
        self.asking = True

        def answered(result: Any, error: TimerdError | None) -> None:
            self.asking = False
            if error is None:
                self.known = answer(result)
                inbox.told_daemon(self, wanted, now_ns)
            elif error.code is ErrorCode.UNAVAILABLE:
                self.known = None
                inbox.ping_at = 0  # again as soon as the daemon is back
            elif error.code not in (ErrorCode.SESSION_GONE, ErrorCode.CLOSED):
                inbox.complain(f"this client is told nothing for its group: {error}")

        inbox.query(question, _Question(answered), now_ns)


class Inbox:
    """What this client was told for its group and its caller has not been given yet."""

    def __init__(self, session: Session, incoming: Incoming, ask: Ask) -> None:
        self._session = session
        self._incoming = incoming
        self._ask_daemon = ask
        self.outcomes: deque[Told] = deque()
        self.calls: deque[Told] = deque()
        self.listeners = 0  # loops that want outcomes
        self._left: deque[None] = deque()  # of these, those that have left
        self._calls_at_once = 0
        self._listening = _Standing(self, False)
        self._handling = _Standing(self, ())
        self.lease_ns = LEASE_NS
        self.ping_at = NEVER
        self.requeued = 0  # outcomes that were another's when they were asked for
        self.forget()

    def forget(self) -> None:
        """Another arena, or a new incarnation: nothing of the old one is ours."""
        self.outcomes.clear()
        self.calls.clear()
        self._listening.forget()
        self._handling.forget()
        self._pinging = False
        self._asking = False  # a "held" is on its way
        self._renewed_ns = -1  # when the newest answered question was sent; -1 = none was
        self._doubt_before_ns = 0  # on the daemon's clock: what it told before must be asked for
        self._done: dict[int, int] = {}  # operation -> the command that says that it is done, in the commands' order
        self.ping_at = NEVER

    def is_ours(self, told: Told) -> bool:
        """Whether it was told to this client as it is now, so that its op id means something."""
        return (self._session.arena, self._session.incarnation) == (told.arena, told.client)

    def query(self, question: dict[str, Any], reply: _Question, now_ns: int) -> None:
        self._ask_daemon(question, reply, now_ns)

    def complain(self, what: str) -> None:
        self._incoming.complaints.append(what)

    # what it takes ------------------------------------------------------------------------------------------------

    def listen(self, now_ns: int) -> None:
        """One more who wants outcomes. Raises NotAMemberError."""
        self.check_member()
        self._let_go(now_ns)
        self.listeners += 1
        self.ping_at = min(self.ping_at, now_ns)
        self._switch(now_ns)

    def handle(self, names: Sequence[str], at_once: int, now_ns: int) -> None:
        """Take the calls of these names, so many at a time. Raises NotAMemberError."""
        self.check_member()
        self._handling.wanted = tuple(names)
        self._calls_at_once = at_once
        self.ping_at = min(self.ping_at, now_ns)
        self._switch(now_ns)

    def check_member(self) -> None:
        """Raises NotAMemberError."""
        if self._session.identity.group is None:
            raise NotAMemberError("outcomes() are a group's, and this client is in none: connect(group=NAME)")

    def leave(self) -> None:
        """One less, from the next tick on. After the last, others are told what this client was told and has not done.

        Needs no lock: a loop that was left may end in a garbage collection, wherever that is.
        """
        self._left.append(None)
        self.ping_at = 0

    def _let_go(self, now_ns: int) -> None:
        """Take those off that have left."""
        while self._left:
            self._left.popleft()
            self.listeners -= 1
        self._switch(now_ns)

    def _switch(self, now_ns: int) -> None:
        """Have the daemon know what this client takes."""
        listening, handling = self._listening, self._handling
        listening.wanted = self.listeners > 0
        if not listening.asking and listening.known is not listening.wanted:
            # Not yet on, where something that was given up is not another's yet: then it is asked again.
            listening.ask({"query": "listen", "on": listening.wanted}, lambda result: bool(result["on"]), now_ns)
        if not handling.asking and handling.known != handling.wanted:
            names = handling.wanted
            question = {"query": "handle", "purgatory": CALLS, "names": names, "most": self._calls_at_once}
            handling.ask(question, lambda result: names if result["most"] else (), now_ns)

    def told_daemon(self, standing: _Standing, wanted: object, now_ns: int) -> None:
        """The daemon knows what was wanted."""
        if wanted is False:  # to listen: all of it is another's now, and so is what is still on its way
            self.outcomes.clear()
            self._doubt_before_ns = self._session.daemon_ns
        self._switch(now_ns)

    def greeted(self, lease_ns: int, now_ns: int) -> None:
        """A WELCOME has come: what this client takes is made sure of.

        It may have been taken for dead within its lease, so that all that it was told before is another's.
        """
        self.lease_ns = lease_ns
        self._doubt_before_ns = self._session.daemon_ns
        if self._takes_something():
            self.ping_at = min(self.ping_at, now_ns)
            self._listening.known = False
            self._handling.known = ()
            self._switch(now_ns)

    def _takes_something(self) -> bool:
        return self.listeners > 0 or bool(self._handling.wanted)

    # telling ------------------------------------------------------------------------------------------------------

    def take_in(self, row: bytes, frame: bytes, heap: int) -> None:
        """A report has an outcome of the group; `heap` is where that of the frame starts."""
        session = self._session
        told = Told(row, frame, heap, session.arena, session.incarnation, session.daemon_ns)
        if told.record.number <= self._incoming.received_outcome:
            return  # it was in the report before: what was asked for twice may overlap
        if told.record.operation in self._done:
            return  # told again while the word that it is done was on its way, which goes for this time too
        if told.record.flags & OutcomeFlag.CALL:
            self.calls.append(told)
        elif self._listening.known is not False or self._listening.asking:
            self.outcomes.append(told)  # else it crossed the end of the listening, which gave it to another

    def done(self, operation: int, command: int) -> None:
        """The caller has acted, and says so by this command: it is not handed over again, however often it was told."""
        self._done[operation] = command
        for queue in (self.outcomes, self.calls):
            for told in [told for told in queue if told.record.operation == operation]:
                queue.remove(told)

    def forget_done(self, applied: int) -> None:
        """What is done by these commands is not told again, if all outcomes up to now were received."""
        while self._done:
            operation, command = next(iter(self._done.items()))
            if command > applied:
                return
            del self._done[operation]

    def next(self, queue: deque[Told], now_ns: int) -> Told | None:
        """The next one to hand to the caller, now. None: there is none, or the daemon was asked whether it is ours."""
        if not queue or self._asking:
            return None
        if self._is_over(now_ns - self._renewed_ns) or queue[0].vouched_ns < self._doubt_before_ns:
            self._ask(now_ns)
            return None
        return queue.popleft()

    def may_have(self, queue: deque[Told]) -> bool:
        """Whether next() is worth a call."""
        return bool(queue) and not self._asking

    def tick(self, now_ns: int) -> None:
        """A sign of life that is answered, each third of the lease, as long as there may be something to hand over."""
        if now_ns < self.ping_at:
            return
        self.ping_at = now_ns + self.lease_ns // 3
        self._let_go(now_ns)
        if not self._takes_something():
            self.ping_at = self.ping_at if self._left else NEVER
        elif not self._pinging:
            self._pinging = True

            def answered(_: Any, error: TimerdError | None) -> None:
                self._pinging = False
                if error is None:
                    self._renewed(now_ns)

            self._ask_daemon({"query": "ping"}, _Question(answered), now_ns)

    def _ask(self, now_ns: int) -> None:
        """Ask which of those that wait here are still ours."""
        asked = [*self.outcomes, *self.calls][:HELD_QUERY_MAX]
        self._asking = True

        def answered(result: Any, error: TimerdError | None) -> None:
            self._asking = False
            if error is not None:
                return
            self._renewed(now_ns)
            held = set(result["held"])
            lost = {id(told) for told in asked if told.record.operation not in held}
            for told in asked:
                told.vouched_ns = self._session.daemon_ns
            for queue in (self.outcomes, self.calls):
                kept = [told for told in queue if id(told) not in lost]
                self.requeued += len(queue) - len(kept)
                queue.clear()
                queue.extend(kept)

        operations = [told.record.operation for told in asked]
        self._ask_daemon({"query": "held", "operations": operations}, _Question(answered), now_ns)

    def _renewed(self, sent_ns: int) -> None:
        """A question that was sent then has been answered."""
        if self._renewed_ns >= 0 and self._is_over(sent_ns - self._renewed_ns):
            self._doubt_before_ns = self._session.daemon_ns
        self._renewed_ns = max(self._renewed_ns, sent_ns)

    def _is_over(self, age_ns: int) -> bool:
        return self._renewed_ns < 0 or age_ns > self.lease_ns * 2 // 3
