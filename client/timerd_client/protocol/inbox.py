"""Outcomes that are delivered to this client for its group: it need not have registered the operations. No I/O.

    delivered by a report --> kept here --> given to the caller --ack()--> done: the daemon frees it
                                |
                                '-- perhaps requeued meanwhile: the client asks the daemon ("held"), and may drop it

Ground rules (timerd/DESIGN.md, section "Groups, and owners that end"):

* A member that is silent for a lease loses the outcomes that were delivered to it and are not done: the daemon requeues
  them. Only a member whose process runs keeps them, until its takeover. A member that was stopped or blocked does not
  know whether it lost them. So *just before it gives an outcome to its caller*, it looks at the age of the newest
  answered question. If the age is at most two thirds of a lease, the outcome certainly belongs to this client (the last
  third is for the time on the way). Otherwise the client asks the daemon, and drops an outcome that the daemon does not
  confirm as held. While no daemon answers, the caller waits.
* The client sees a longer pause as a long time between two answered questions. Outcomes that the daemon delivered
  before its second answer may have been requeued, even if the client reads them after this answer. The daemon's clock,
  whose time is in every frame, decides what "before" means.
* Outcomes are delivered to a client that listens (it has a loop over `outcomes()`), and calls are delivered to a client
  that handles their names. For each of the two the client has one question under way at a time. With two
  questions, a repeated old one could undo the newer one.

One risk remains: the process may be stopped after the check and before the caller's code runs. A caller can fence off
such late work with `deliveries`.

The caller of every method holds the link's lock, or is the only thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from timerd_client.waiter import Answerable
from timerd_shm.declare.errors import ErrorCode, NotAMemberError, TimerdError
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.limits import ANNOUNCE_LAST_NS, HELD_QUERY_MAX, LEASE_NS
from timerd_shm.declare.wire import OutcomeFlag, OutcomeRecord

from .backoff import Backoff
from .deadlines import NEVER
from .incoming import Incoming
from .session import CALLS, Session

Ask: TypeAlias = Callable[[dict[str, Any], Answerable, int], None]
"""Asks the daemon. The arguments are the question, the waiter for the answer, and the time in ns."""


class Handles(NamedTuple):
    """Which calls a client takes: the names, how many at once, and the op ids of those that it gives back."""

    names: tuple[str, ...] = ()
    at_once: int = 0
    back: tuple[int, ...] = ()


HANDLES_NOTHING: Final = Handles()

Fact = TypeVar("Fact")

_UNPACK: Final = struct_of(OutcomeRecord).unpack
ASK_AGAIN_FIRST_NS: Final = 10_000_000  # after the answer "not yet"
_CODE_SIZE: Final = 4  # bytes of a failed key's code


class DeliveredOutcome:
    """One outcome of the group that was delivered to this client."""

    __slots__ = ("arena", "client", "keys", "payload", "purgatory", "record", "row", "value", "vouched_ns")

    def __init__(self, row: bytes, frame: bytes, heap: int, arena: int, client: bytes, delivered_ns: int) -> None:
        """`heap` is the offset of the frame's heap. Raises ValueError if the record points outside of the frame."""
        self.row = row
        self.record = record = OutcomeRecord._make(_UNPACK(row))
        value_at = heap + record.heap_offset
        codes = _CODE_SIZE * record.failed.bit_count() if record.flags & OutcomeFlag.HAS_FAILURES else 0
        payload_at = value_at + record.value_length + codes
        names_at = payload_at + record.payload_length
        end = names_at + record.keys_length
        if end > len(frame):
            raise ValueError(f"outcome {record.number} has its payload outside of the frame")
        self.value = frame[value_at:payload_at]  # followed by the codes of the failed keys
        self.payload = frame[payload_at:names_at]
        names = _names(frame[names_at:end])
        self.purgatory = names[0].decode() if names else ""
        self.keys = tuple(_text(name) for name in names[1:])
        self.arena = arena  # it was delivered to `client` in this arena, and only that client may acknowledge it
        self.client = client
        self.vouched_ns = delivered_ns  # when the daemon last confirmed, by its clock, that this client holds it

    @property
    def name(self) -> str:
        """The name of a call: its first key. Empty without a key, or if the key is not text."""
        return self.keys[0] if self.keys and isinstance(self.keys[0], str) else ""


def _names(packed: bytes) -> list[bytes]:
    """The names in a sequence of u8 length + bytes."""
    names, at = [], 0
    while at < len(packed):
        end = at + 1 + packed[at]
        names.append(packed[at + 1 : end])
        at = end
    return names


def _text(name: bytes) -> str | bytes:
    """A key as its owner probably gave it: str if the bytes are UTF-8, else bytes."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


class _Question(NamedTuple):
    """A query whose answer only the inbox needs, and no caller."""

    on_answer: Callable[[Any, TimerdError | None], None]

    def answer(self, value: Any, error: TimerdError | None = None) -> bool:
        self.on_answer(value, error)
        return False

    def notify(self) -> None:
        """Do nothing: callers that wait for outcomes look again after each frame."""


class _Standing(Generic[Fact]):
    """One fact that the daemon must know about this client: that it listens, or which calls it handles."""

    def __init__(self, inbox: Inbox, nothing: Fact) -> None:
        self._inbox = inbox
        self._nothing: Fact = nothing  # what a daemon knows about a new client
        self.wanted: Fact = nothing
        self.forget()

    def forget(self) -> None:
        """Begin anew: there is a new arena, or this client has a new incarnation."""
        self.known: Fact | None = self._nothing  # by the daemon's last answer; None = not known
        self.asking = False
        self.asked: Fact = self._nothing  # in the newest question
        self.not_before_ns = 0  # when to ask again
        self._again = Backoff(ASK_AGAIN_FIRST_NS, ANNOUNCE_LAST_NS)

    def ask(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], Fact], now_ns: int) -> None:
        """Send `wanted` to the daemon. `answer` reads from the result what the daemon knows after it."""
        inbox, wanted = self._inbox, self.wanted
        self.asking, self.asked = True, wanted

        def answered(result: Any, error: TimerdError | None) -> None:
            self.asking = False
            if error is None:
                self.known = answer(result)
                if self.known == wanted:
                    self._again.restart()
                else:
                    self.not_before_ns = self._again.next_at(now_ns)
                inbox.daemon_knows(wanted, now_ns)
            elif error.code is ErrorCode.UNAVAILABLE:
                self.known = None
                inbox.ping_at = 0  # ask again as soon as the daemon is back
                inbox.daemon_may_know(wanted)
            elif error.code not in (ErrorCode.SESSION_GONE, ErrorCode.CLOSED):
                inbox.complain(f"nothing is delivered to this client for its group: {error}")

        inbox.query(question, _Question(answered), now_ns)


class Inbox:
    """The outcomes and calls that were delivered to this client for its group, and not yet given to its caller."""

    def __init__(self, session: Session, incoming: Incoming, ask: Ask) -> None:
        self._session = session
        self._incoming = incoming
        self._ask_daemon = ask
        self.outcomes: deque[DeliveredOutcome] = deque()
        self.calls: deque[DeliveredOutcome] = deque()
        self.begun: dict[int, str] = {}  # op ids of the calls that are carried out, with their names
        self._is_leaving = False  # this client takes no calls any more
        self.listeners = 0  # loops that receive outcomes
        self._left: deque[None] = deque()  # one for each loop that was left and still counts in `listeners`
        self._listening = _Standing(self, False)
        self._handling = _Standing(self, HANDLES_NOTHING)
        self.lease_ns = LEASE_NS
        self.ping_at = NEVER
        self.requeued = 0  # outcomes that had been requeued when the daemon was asked
        # Counted by the code that carries calls out.
        self.calls_done = self.calls_failed = self.calls_retried = self.calls_late = self.calls_skipped = 0
        self.forget()

    def forget(self) -> None:
        """Begin anew: there is a new arena, or this client has a new incarnation."""
        self.outcomes.clear()
        self.calls.clear()
        self._listening.forget()
        self._handling.forget()
        self._handling.wanted = self._handling.wanted._replace(back=())
        self._pinging = False
        self._asking = False  # a question "held" waits for its answer
        self._renewed_ns = -1  # when the newest answered question was sent; -1 = there is none
        self._doubt_before_ns = 0  # by the daemon's clock: ask about outcomes that were delivered before this time
        self._done: dict[int, int] = {}  # operation -> the command that ends it, in the order of the commands
        self.ping_at = NEVER

    def is_ours(self, outcome: DeliveredOutcome) -> bool:
        """Whether this outcome was delivered to this incarnation, in this arena. Only then its op id has a meaning."""
        return (self._session.arena, self._session.incarnation) == (outcome.arena, outcome.client)

    def query(self, question: dict[str, Any], reply: _Question, now_ns: int) -> None:
        self._ask_daemon(question, reply, now_ns)

    def complain(self, what: str) -> None:
        self._incoming.complaints.append(what)

    # listening and handling ---------------------------------------------------------------------------------------

    def listen(self, now_ns: int) -> None:
        """Count one more loop that receives outcomes. Raises NotAMemberError."""
        self.check_member()
        self._let_go(now_ns)
        self.listeners += 1
        self.ping_at = min(self.ping_at, now_ns)
        self._switch(now_ns)

    def handle(self, names: Sequence[str], at_once: int, now_ns: int) -> None:
        """Take calls with these names, `at_once` at a time. After handle_no_more() none. Raises NotAMemberError."""
        self.check_member()
        if self._is_leaving:
            return
        self._handling.wanted = Handles(tuple(names), at_once)
        self.ping_at = min(self.ping_at, now_ns)
        self._switch(now_ns)

    def handle_no_more(self, now_ns: int) -> None:
        """Take no further calls, for good, and give back those that have not begun. Those that have begun go on.

        If the client announced that it takes no call, the daemon would requeue all its calls, also one that runs here.
        So the client still announces how many calls it takes at once, but no names, and lists the calls that it gives
        back.
        """
        self._is_leaving = True
        self._handling.wanted = self._handling.wanted._replace(names=())
        for call in self.calls:
            self._give_back(call.record.operation)
        self.calls.clear()
        self._switch(now_ns)

    def _give_back(self, operation: int) -> None:
        """Give this call back with the next question. A call that runs here is not given back."""
        wanted = self._handling.wanted
        if operation not in self.begun and operation not in wanted.back:
            self._handling.wanted = wanted._replace(back=(*wanted.back, operation))

    def check_member(self) -> None:
        """Raises NotAMemberError."""
        if self._session.identity.group is None:
            raise NotAMemberError("outcomes() belong to a group, and this client is in no group: Client(group=NAME)")

    def leave(self) -> None:
        """Count one loop less, from the next tick on. After the last loop, outcomes that are not done are requeued.

        Needs no lock, because a garbage collection may end a loop in any thread.
        """
        self._left.append(None)
        self.ping_at = 0

    def _let_go(self, now_ns: int) -> None:
        """Subtract the loops that were left."""
        while self._left:
            self._left.popleft()
            self.listeners -= 1
        self._switch(now_ns)

    def _switch(self, now_ns: int) -> None:
        """Ask the daemon for a change, if it does not know what this client wants to get."""
        listening, handling = self._listening, self._handling
        listening.wanted = self.listeners > 0
        for standing in (listening, handling):
            if now_ns < standing.not_before_ns:
                self.ping_at = min(self.ping_at, standing.not_before_ns)
        if not listening.asking and listening.known is not listening.wanted and now_ns >= listening.not_before_ns:
            # The daemon may answer "not yet" while it still requeues this client's outcomes. Then it is asked again.
            listening.ask({"query": "listen", "on": listening.wanted}, lambda result: bool(result["on"]), now_ns)
        if not handling.asking and handling.known != handling.wanted and now_ns >= handling.not_before_ns:
            wanted = handling.wanted
            facts = {"names": wanted.names, "most": wanted.at_once, "back": wanted.back}
            question = {"query": "handle", "purgatory": CALLS, **facts}
            handling.ask(question, lambda result: wanted if result["most"] else HANDLES_NOTHING, now_ns)

    def daemon_knows(self, wanted: object, now_ns: int) -> None:
        """The daemon's answer has come: it knows what this client wanted."""
        if wanted is False:
            self.outcomes.clear()
        if wanted is False or wanted is True:
            # "Off": earlier outcomes may come again, to any member. "On": all earlier outcomes were requeued before.
            self._doubt_before_ns = self._session.daemon_ns
        self._switch(now_ns)

    def daemon_may_know(self, wanted: object) -> None:
        """The daemon has not answered in time. Perhaps it knows what this client wanted: see daemon_knows()."""
        if wanted is False:
            # Doubt all outcomes that are here: each was last confirmed at this time or earlier.
            self._doubt_before_ns = self._session.daemon_ns + 1

    def _is_ending(self) -> bool:
        """Whether the daemon may be requeueing all outcomes: it has not yet answered that listening has ended."""
        return self._listening.asking and self._listening.asked is False

    def welcomed(self, lease_ns: int, now_ns: int) -> None:
        """A WELCOME has come: ask the daemon again for what this client wants.

        The daemon may have taken this client for dead within its lease, and requeued all earlier outcomes.
        """
        self.lease_ns = lease_ns
        self._doubt_before_ns = self._session.daemon_ns
        if self.takes_something:
            self.ping_at = min(self.ping_at, now_ns)
            if self._listening.known:
                self._listening.known = None  # the daemon may have kept this fact, or not
            self._handling.known = HANDLES_NOTHING
            self._switch(now_ns)

    @property
    def takes_calls(self) -> bool:
        """Whether calls of the group may be delivered to this client, or it keeps calls that were delivered before."""
        return self._handling.wanted != HANDLES_NOTHING

    @property
    def takes_something(self) -> bool:
        """Whether outcomes or calls of the group may be delivered to this client."""
        return self.listeners > 0 or self.takes_calls

    # delivered ----------------------------------------------------------------------------------------------------

    def take_in(self, row: bytes, frame: bytes, heap: int) -> None:
        """Take an outcome of the group from a report. `heap` is the offset of the frame's heap."""
        session = self._session
        outcome = DeliveredOutcome(row, frame, heap, session.arena, session.incarnation, session.daemon_ns)
        if outcome.record.number <= self._incoming.received_outcome:
            return  # an earlier report had this outcome: two reports in answer to ASK may overlap
        if outcome.record.operation in self._done:
            return  # redelivered while its acknowledgement was on the way, which ends this delivery, too
        if outcome.record.flags & OutcomeFlag.CALL:
            if self._handling.wanted.names:
                self.calls.append(outcome)
            else:  # it was sent before the daemon knew that this client has left
                self._give_back(outcome.record.operation)
                self.ping_at = 0
        elif self._listening.known is not False or self._listening.asking:
            self.outcomes.append(outcome)  # otherwise it was sent before listening ended, and was requeued then

    def done(self, operation: int, command: int) -> None:
        """Note that the outcome is done, and `command` acknowledges it: no caller gets a redelivery of it."""
        self._done[operation] = command
        for queue in (self.outcomes, self.calls):
            for outcome in [outcome for outcome in queue if outcome.record.operation == operation]:
                queue.remove(outcome)

    def forget_done(self, applied: int) -> None:
        """Forget outcomes whose acknowledgement is applied. All outcomes so far were received, so none comes again."""
        while self._done:
            operation, command = next(iter(self._done.items()))
            if command > applied:
                return
            del self._done[operation]

    def next(self, queue: deque[DeliveredOutcome], now_ns: int) -> DeliveredOutcome | None:
        """The next outcome, to be given to the caller at once. None if there is none, or the daemon must confirm it."""
        if not self.may_have(queue):
            return None
        if self._is_over(now_ns - self._renewed_ns) or queue[0].vouched_ns < self._doubt_before_ns:
            self._ask(now_ns)
            return None
        return queue.popleft()

    def may_have(self, queue: deque[DeliveredOutcome]) -> bool:
        """Whether next() may give an outcome."""
        return bool(queue) and not self._asking and not (queue is self.outcomes and self._is_ending())

    def tick(self, now_ns: int) -> None:
        """Send a question each third of the lease, as long as something may be delivered to this client."""
        if now_ns < self.ping_at:
            return
        self.ping_at = now_ns + self.lease_ns // 3
        self._let_go(now_ns)
        if not self.takes_something:
            self.ping_at = self.ping_at if self._left else NEVER
        elif not self._pinging:
            self._pinging = True

            def answered(_: Any, error: TimerdError | None) -> None:
                self._pinging = False
                if error is None:
                    self._renewed(now_ns)

            self._ask_daemon({"query": "ping"}, _Question(answered), now_ns)

    def _ask(self, now_ns: int) -> None:
        """Ask the daemon which of the outcomes in the queues this client still holds."""
        asked = [*self.outcomes, *self.calls][:HELD_QUERY_MAX]
        self._asking = True

        def answered(result: Any, error: TimerdError | None) -> None:
            self._asking = False
            if error is not None:
                return
            held = set(result["held"])
            self._renewed(now_ns)
            lost = {id(outcome) for outcome in asked if outcome.record.operation not in held}
            for outcome in asked:
                outcome.vouched_ns = self._session.daemon_ns
            for queue in (self.outcomes, self.calls):
                kept = [outcome for outcome in queue if id(outcome) not in lost]
                self.requeued += len(queue) - len(kept)
                queue.clear()
                queue.extend(kept)

        operations = [outcome.record.operation for outcome in asked]
        self._ask_daemon({"query": "held", "operations": operations}, _Question(answered), now_ns)

    def _renewed(self, sent_ns: int) -> None:
        """A question that was sent at `sent_ns` has been answered."""
        if self._renewed_ns >= 0 and self._is_over(sent_ns - self._renewed_ns):
            self._doubt_before_ns = self._session.daemon_ns
        self._renewed_ns = max(self._renewed_ns, sent_ns)

    def _is_over(self, age_ns: int) -> bool:
        return self._renewed_ns < 0 or age_ns > self.lease_ns * 2 // 3
