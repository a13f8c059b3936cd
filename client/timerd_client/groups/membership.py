"""A client as a member of its group: the registries that it serves, and how calls are made.

The threaded and the asyncio client (the two faces) derive from it.
"""

from __future__ import annotations

import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from timerd_client.arguments import patience_s, shown, unsigned
from timerd_client.link.flows import Flow
from timerd_client.link.link import links
from timerd_client.link.promise import Reply
from timerd_client.protocol.session import CALLS
from timerd_client.types import Patience, Timeout
from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    ArenaTruncatedError,
    InvalidValueError,
    LayoutMismatchError,
    NotAMemberError,
    TimerdUnavailableError,
)
from timerd_shm.declare.limits import CALLS_HELD_MAX, HANDLED_NAMES_MAX
from timerd_wire.refusals import OF_GROUP, Subject

from .carrier import Carrier
from .commands import CallCommands, Made
from .duties import Duties
from .flows import was_made, was_pending
from .listing import CallInfo, listed_with_plans
from .plan import Plan
from .registry import Calls, Job

if TYPE_CHECKING:
    from timerd_client.link.link import Link

LinkT = TypeVar("LinkT", bound="Link")

serving: Final[weakref.WeakSet[Membership[Any]]] = weakref.WeakSet()  # the clients of this process that serve calls


class Membership(Generic[LinkT]):
    """A client as a member of its group.

    When it gets a new link (after a fork, in another loop, with a new arena), it goes on to serve its registries.
    """

    AT_ONCE: ClassVar[int] = 1
    """How many calls a client holds at the same time, unless one of its handlers has a larger `concurrency`."""
    AWAITS: ClassVar[bool] = False
    """Whether handlers may be coroutine functions."""

    _carrier: Carrier | None = None
    _served: dict[str, Job] | None = None
    _at_once: int | None = None

    def _live(self) -> LinkT:
        """The link of this process."""
        raise NotImplementedError

    def _join(self, link: LinkT) -> None:
        """Be a member over this link, and go on to serve the registries."""
        self._carrier = Carrier(link.protocol, link.complain, link.wall.now_ns, link.now_ns)
        self._duties = Duties(link, self._carrier)
        if self._served:
            self._begin(link)

    # serving

    def serve(self, *calls: Calls, at_once: int | None = None) -> None:
        """Run the handlers of these registries, from now until the client is closed. Returns at once.

        A threaded client runs handlers in threads of its own (with gevent in greenlets), an asyncio client as tasks. At
        most `at_once` calls are with this client at the same time (default: the largest `concurrency` of its handlers,
        with asyncio at least 16). To take handlers that were added to a registry later, serve the registry again. A
        forked child serves the same handlers from its first use of the client on. A process that drains or ends takes
        no calls.

        Raises NotAMemberError for a client that is not in the registry's group, and InvalidValueError for no registry,
        more than 256 names, a name with two handlers, or a coroutine function in a threaded client: nobody would await
        it.
        """
        if not calls:
            raise InvalidValueError("serve() of no calls: give one td.Calls() or more")
        link = self._live()
        if at_once is not None:
            self._at_once = unsigned("at_once", at_once, CALLS_HELD_MAX, 1)
        served = dict(self._served or {})
        for registry in calls:
            self._check_registry(registry)
            for name, job in registry:
                self._check_job(name, job, served.get(name))
                served[name] = job
        if len(served) > HANDLED_NAMES_MAX:
            raise InvalidValueError(
                f"serve() of {len(served)} names: a client handles {HANDLED_NAMES_MAX} at most; use fewer names, and "
                "tell calls apart by their payload"
            )
        with link.lock:
            link.check_open()
            self._served = served
        serving.add(self)
        if served:
            self._begin(link)

    def _check_registry(self, registry: object) -> None:
        if not isinstance(registry, Calls):
            raise InvalidValueError(f"{shown(registry)} is {type(registry).__name__}: serve a td.Calls()")
        group = self._commands().group
        if registry.group not in (None, group):
            raise NotAMemberError(
                f"these calls are those of group {registry.group!r}, and this client is in {group!r}: "
                f"Client(group={registry.group!r})"
            )

    def _check_job(self, name: str, job: Job, known: Job | None) -> None:
        self._commands().checked_id(name)
        if known is not None and known is not job:
            raise InvalidValueError(f"{shown(name)} has a handler in this client; give the new one another name")
        if job.is_async and not self.AWAITS:
            raise InvalidValueError(
                f"the handler of {shown(name)} is a coroutine function, and a threaded client awaits nothing: serve it "
                "with td.aio, or give a plain function"
            )

    def _begin(self, link: LinkT) -> None:
        """Handle calls over this link, unless the process drains."""
        carrier = self._carrier
        assert carrier is not None and self._served is not None
        jobs = self._served
        at_once = self._at_once or max(self.AT_ONCE, *(job.concurrency for job in jobs.values()))
        with link.lock:
            # With the lock held: a drain sets the flag, then makes each link give up its calls, with its lock held.
            if not links.take_calls:
                return
            carrier.jobs.update(jobs)
            if any(job.schedule is not None and job.schedule.by_wall for job in jobs.values()):
                link.wall.watch()
            link.protocol.inbox.handle(list(jobs), at_once, link.now_ns())
            link.waiters.notify_locked()
            link.wake_if_due(link.protocol.ledger.issued)
        self._run_handlers(link, at_once)

    def _run_handlers(self, link: LinkT, at_once: int) -> None:
        """Run up to `at_once` handlers at the same time over this link."""
        raise NotImplementedError

    @property
    def calls_running(self) -> int:
        """How many calls are being carried out. After `close`: how many handlers had not returned in time."""
        return 0 if self._carrier is None else self._duties.running

    # making calls

    def _commands(self) -> CallCommands:
        self._live()
        assert self._carrier is not None
        return self._carrier.commands

    def _make(self, made: Made) -> None:
        """Issue the command of a call without waiting. A refusal is logged, and the next flush or close raises it."""
        link = self._live()
        with link.lock:
            link.protocol.incoming.receipts[link.sender.issue_locked(made.command, CALLS)] = self._subject_of(made)

    def _make_asking(self, made: Made) -> Reply:
        """Issue the command of a call. Returns the reply that gets the answer. Raises TimerdUnavailableError."""
        return self._ask_for_call(made.command, Reply(self._live(), self._subject_of(made)))

    def _ask_for_call(self, command: bytes, reply: Reply | None = None) -> Reply:
        link = self._live()
        reply = reply or Reply(link, OF_GROUP)
        with link.lock:
            link.connection.refuse_lost()
            link.protocol.incoming.replies[link.sender.issue_locked(command, CALLS)] = reply
        return reply

    @staticmethod
    def _subject_of(made: Made) -> Subject:
        return OF_GROUP._replace(id=made.id, purgatory=CALLS, keeps=made.keeps, is_call=True)

    def cancel_call(self, id: str) -> None:
        """Cancel the pending call with this id. The id of a schedule is its name: it cancels the next call.

        Returns at once: see `cancel_call_wait`. A call that is due can be cancelled until its handler begins. A
        cancelled schedule begins anew when a member that serves it starts.
        """
        self._live().sender.issue(self._commands().cancel(id), CALLS)

    def calls(self) -> list[CallInfo]:
        """The calls of this client's group, in order of their due times: what each waits for, or where it runs.

        They are read from the arena alone. With a million pending operations this takes some seconds. Raises
        NotAMemberError, and TimerdUnavailableError if there is no arena that this process can read.
        """
        return sorted((info for info, _, _ in self._listed(failed=False)), key=attrgetter("due"))

    def dead_letters(self) -> list[CallInfo]:
        """The dead letters of this client's group, the oldest first, each with its `number` and `reason`.

        A call becomes a dead letter when it is given up, when its last attempt has failed, or when nobody has served
        it. See `retry_call_wait` and `drop_call_wait`. Raises the errors of `calls`.
        """
        return sorted((info for info, _, _ in self._listed(failed=True)), key=attrgetter("number"))

    def _listed(self, *, failed: bool) -> list[tuple[CallInfo, Plan, str]]:
        commands = self._commands()
        try:
            reader = self._live().connection.sockets.map_arena()
        except (ArenaNotReadyError, ArenaTruncatedError, LayoutMismatchError) as error:
            raise TimerdUnavailableError(str(error), in_doubt=False) from error
        with reader:
            return list(listed_with_plans(reader, commands.group, failed=failed, clocks=commands.clocks))

    def _retry(self, number: int, timeout: Patience) -> Flow[bool]:
        """Make a call from the dead letter with this number. Returns False if there is no such dead letter."""
        for letter, plan, name in self._listed(failed=True):
            if letter.number == number:
                for apart in (False, True):
                    command = self._commands().retry(letter, plan, name, apart=apart)
                    made = yield from was_made(self._ask_for_call(command), timeout)
                    if made is not None:
                        return made
        return False

    def _drop(self, number: int, timeout: Patience) -> Flow[bool]:
        """Drop the dead letter with this number. Returns False if there is no such dead letter."""
        for letter, _, _ in self._listed(failed=True):
            if letter.number == number:
                return (yield from was_pending(self._ask_for_call(self._commands().drop(letter)), timeout))
        return False

    def reschedule_call(self, id: str, delay: Timeout) -> None:
        """Make the pending call with this id due `delay` s from now. Returns at once: see `reschedule_call_wait`.

        A call of a cron schedule is planned anew instead, because it belongs to a point of the wall clock.
        """
        self._live().sender.issue(self._commands().reschedule(id, delay), CALLS)

    # outcomes

    def _may_listen(self, timeout: Patience) -> float | None:
        """The timeout of `outcomes()` in seconds. Raises ClosedError, NotAMemberError, TimeoutOutOfRangeError."""
        link = self._live()
        link.check_open()
        link.protocol.inbox.check_member()  # here, not in the first iteration
        return patience_s(timeout)

    # Each face overrides these calls without docstrings of its own: help() and editors show the docstrings below.

    def outcomes(self, *given: Any, **named: Any) -> object:
        """Outcomes of the group's operations, as they come. This process need not have registered them.

            for outcome in client.outcomes():
                save(outcome.payload)
                outcome.ack()

        In asyncio, use `async for`. After a `break`, listening ends some time later; with `contextlib.aclosing` it ends
        at once.

        An outcome is delivered to one member of the group at a time. Unacknowledged outcomes are requeued when this
        process dies or falls silent, and when the client's last loop over outcomes() ends. So call `ack()` before that.
        Up to 256 unacknowledged outcomes are delivered ahead. Listening begins with the first iteration. The loop ends
        when the client is closed, and when no outcome has come for `timeout` seconds. Raises NotAMemberError,
        ClosedError.
        """

    def call_later(self, *given: Any, **named: Any) -> object:
        """Have one member of the group call a handler in `delay` seconds, even if this process has ended by then.

        `handler` is the decorated function, or the name of the handler in the members' registries. Without an `id` the
        call gets a new id. If another call with the given `id` (a str) is pending or running, `if_exists` decides.
        "error": this call is refused. "keep": the other call stays, and this call is dropped. "replace": this call
        takes the place of the pending call; a running handler goes on. "again": this call is made if the other call
        runs; otherwise as "keep". `payload` has 64,900 bytes at most.

        Returns at once. A refusal is logged, counted, and raised by the next `flush()` or `close()`; `call_later_wait`
        raises the refusal itself. Raises NotAMemberError, BackpressureError, and the errors of wrong arguments.
        """

    def call_at(self, *given: Any, **named: Any) -> object:
        """As `call_later`, at an aware datetime; a past one is due at once. A naive one raises InvalidValueError."""

    def call_later_wait(self, *given: Any, **named: Any) -> object:
        """As `call_later`; returns when the daemon has accepted the call, or kept another call with the same id.

        Raises OperationExistsError, ArenaFullError, QuotaExceededError, and TimerdUnavailableError after `timeout` s:
        then it is not known whether the call was made.
        """

    def call_at_wait(self, *given: Any, **named: Any) -> object:
        """As `call_at`; returns when the daemon has accepted the call, with the errors of `call_later_wait`."""

    def cancel_call_wait(self, *given: Any, **named: Any) -> object:
        """As `cancel_call`; returns whether a call with this id was pending.

        Raises TimerdUnavailableError after `timeout` seconds.
        """

    def reschedule_call_wait(self, *given: Any, **named: Any) -> object:
        """As `reschedule_call`; returns whether a call with this id was pending.

        Raises TimerdUnavailableError after `timeout` seconds.
        """

    def retry_call_wait(self, *given: Any, **named: Any) -> object:
        """Make a call from a dead letter of this group. The call is due at once, and begins with attempt 1.

        Returns False if there is no such dead letter. The call has its old id, or a new id if another call has the old
        one. Raises the errors of `calls`, and TimerdUnavailableError after `timeout` seconds.
        """

    def drop_call_wait(self, *given: Any, **named: Any) -> object:
        """Drop a dead letter of this group. Returns False if there is no such dead letter.

        Raises the errors of `retry_call_wait`.
        """
