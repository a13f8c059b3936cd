"""The calls of a purgatory that do not wait: the threaded and the asyncio face share them.

`register` and `fire` are the hot path. hot/ takes calls with usual arguments. Here all other calls are checked and
encoded. Nothing is sent before everything has been checked. A sealed link takes no calls. If its link is
sealed, a call asks for another one (lazy.py): before the first use, in a forked child, and when the loop of the last
link has ended.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar, Unpack, overload
from uuid import uuid4

from timerd_client.arguments import U32_MAX, U64_MAX, id_hash, key_bytes, payload_bytes, shown, timeout_ns, unsigned
from timerd_client.declared import REGISTRATION, GroupArguments, RegistrationArguments
from timerd_client.hot import Caller, takes_fire, takes_register
from timerd_client.hot.commands import KEY_COMMAND_SIZE, deadline_after, operation_command, pack_key
from timerd_client.mark import Mark
from timerd_client.one_process import OneProcess
from timerd_client.scope import current_scope
from timerd_client.types import Key, Keys, Payload, Timeout
from timerd_client.waiter import Looker
from timerd_shm.declare.errors import InvalidValueError, NotAMemberError
from timerd_shm.declare.wire import CommandFlag, CommandKind, RegisterFlag
from timerd_wire.refusals import OF_GROUP, Subject

from .lazy import DORMANT, NO_LEDGER, Lazy
from .link import Link
from .operation import GroupOperation, Operation
from .promise import Reply
from .registration import registration

OperationT = TypeVar("OperationT", bound=Operation)
LinkT = TypeVar("LinkT", bound=Link)

_WANTS_ANSWER = int(RegisterFlag.WANTS_ANSWER)
_FOR_GROUP = int(RegisterFlag.FOR_GROUP) | _WANTS_ANSWER


class Surface(OneProcess, Caller, Generic[OperationT, LinkT]):
    """A purgatory as a client sees it.

    Surface derives from Caller, because looking up a Caller would cost 11 % of `register` and 17 % of `fire`.
    """

    IN_PLACE = "make a client in each process, td.Client() or td.client()"
    IN_LOOP: ClassVar[bool]
    """Whether this class belongs to the asyncio face."""
    _link: LinkT

    def __init__(self, lazy: Lazy[LinkT], name: str, operation: type[OperationT]) -> None:
        self._lazy = lazy
        self._watermarks: dict[bytes, tuple[int, int, int]] = {}  # by key: arena, index and hash of the key's record
        super().__init__(DORMANT, NO_LEDGER, {}, name, operation)
        if (made := lazy.made) is not None:
            self._bind(made)

    def _bind(self, link: LinkT) -> LinkT:
        """Use this link from now on."""
        self._protocol = link.protocol
        session = link.protocol.session
        Caller.__init__(self, link, link.protocol.ledger, session.purgatories, self._name, self._operation)
        return link

    def _live(self) -> LinkT:
        """The link of this process. It is made now if there is none. Raises ClosedError, ResourceLimitError."""
        link = self._link
        if not (link.sealed or link.is_left):
            return link
        made = self._lazy.link()
        return made if made is link else self._bind(made)

    @property
    def name(self) -> str:
        """The purgatory's name."""
        return str(self._name)

    @overload
    def register(
        self, keys: Keys, *, group: Literal[False] = False, **arguments: Unpack[RegistrationArguments]
    ) -> OperationT: ...

    @overload
    def register(self, keys: Keys, *, group: Literal[True], **arguments: Unpack[GroupArguments]) -> GroupOperation: ...

    @takes_register
    @REGISTRATION.shown
    def register(
        self, keys: Keys, *, group: bool = False, **arguments: Unpack[RegistrationArguments]
    ) -> OperationT | GroupOperation:
        """Register an operation: it completes when its condition holds over `keys`, or expires after `timeout` s.

        `keys` are a key, several, or {key: watermark}. A timeout of None means no deadline. The deadline counts from
        this call; an operation may expire late, never early. `payload` stays with the operation. `since` is the mark
        from which events count (default: now). `orphans` says what becomes of the operation when this process dies
        (default: the client's policy): "cancel", "keep" (it stays pending) or "group" (the client's group adopts it,
        and a member gets its outcome).

        `id` (1..255 bytes) makes the registration idempotent in its purgatory. If another operation with this id is
        pending, or has settled lately, `if_exists` decides. "error": this operation fails with OperationExistsError.
        "keep": the other operation stays; if it is this client's own, its handle is returned, otherwise this operation
        settles as KEPT. "replace": this operation replaces the other. "replace_cancelled": it replaces only a cancelled
        operation.

        With `group=True` the operation belongs to this client's group from the start, and outlives this process. Its
        outcome goes through `outcomes()` to one member of the group that is alive then. The handle has no result. If
        the daemon refuses the operation, the next `flush()` raises the refusal. With orphans="group", in contrast, the
        outcome comes here while this process lives.

        Returns at once; `register_wait` waits until the daemon has accepted the operation. A wrong
        argument raises an error of its kind, such as InvalidKeyError. Raises BackpressureError and ClosedError, too. A
        refusal of the daemon (arena full, quota, id exists) settles the operation as failed with this error.

        While the daemon is not there, registrations are kept, and sent when it is back. Meanwhile an operation settles
        as UNAVAILABLE a second after its deadline: its outcome is not known. This is final for this client, which
        withdraws the operation when the daemon is back. The deadline is the one of this call, or of this client's last
        `reschedule`.
        """
        if group is not False:
            if group is not True:
                raise InvalidValueError(
                    f"group={shown(group)}: give True or False; the group is the client's, Client(group=NAME)"
                )
            return self._register_for_group(keys, arguments)
        return self._register(keys, "register", arguments)

    def _register_for_group(self, keys: Keys, given: RegistrationArguments) -> GroupOperation:
        arguments = REGISTRATION.of("register", given)
        if (orphans := arguments["orphans"]) is not None:
            raise InvalidValueError(f"orphans={orphans!r} with group=True: the group is the owner of such an operation")
        link = self._live()
        group = link.protocol.session.identity.group
        if group is None:
            raise NotAMemberError("group=True needs a group: Client(group=NAME)")
        if (named := arguments["id"]) is None:
            named = arguments["id"] = uuid4().hex
        asked = registration(keys, arguments, group)
        subject = OF_GROUP._replace(id=named, purgatory=self._name, keeps=arguments["if_exists"] == "keep")
        registered_ns = link.now_ns()
        with link.lock:
            maker, sequence, command = self._ledger.incarnation, self._ledger.newest(), self._ledger.issued
            link.sender.ready_locked()
            flags, sequence, command = self._marked_locked(arguments["since"], maker, sequence, command)
            flags |= _FOR_GROUP
            number = self._ledger.issue(
                asked.command(self._indices[self._name], flags, registered_ns, sequence, command)
            )
            link.protocol.incoming.receipts[number] = subject
            link.wake_if_due(number)
        names = asked.names if isinstance(asked.names, tuple) else (asked.names,)
        return GroupOperation(self, names, named, asked.payload)

    def _marked_locked(self, since: Mark | None, maker: bytes, sequence: int, command: int) -> tuple[int, int, int]:
        """The flags and the mark of a registration. `maker`, `sequence`, `command` were read before `ready_locked`."""
        if since is not None:
            return since.on_wire(self._ledger.arena, self._ledger.incarnation)
        if maker != self._ledger.incarnation:
            return int(RegisterFlag.MARK_OF_OTHER_ARENA), sequence, 0
        return 0, sequence, command

    def _register(
        self,
        keys: Keys,
        call: str,
        given: RegistrationArguments,
        reply: Reply | None = None,
        *,
        may_exceed: bool = False,
        looker: Looker | None = None,
    ) -> OperationT:
        """Register an operation with the arguments of `call`. `reply` gets the answer.

        With `may_exceed`, the command may exceed the window, because the caller cannot wait. For an OWNED condition,
        `looker` looks when an event has come.
        """
        link = self._live()
        arguments = REGISTRATION.of(call, given)
        asked = registration(keys, arguments, link.protocol.session.identity.group)
        ledger = self._ledger
        registered_ns = link.now_ns()
        with link.lock:
            if reply is not None:
                link.connection.refuse_lost()
            maker, sequence, command = ledger.incarnation, ledger.newest(), ledger.issued
            if link.sealed or (ledger.issued - ledger.applied >= ledger.window and not may_exceed):
                link.sender.ready_locked()
            flags, sequence, command = self._marked_locked(arguments["since"], maker, sequence, command)
            flags |= 0 if reply is None else _WANTS_ANSWER
            holder: Any = None
            if asked.id_hash:
                holder = ledger.ids.find(ledger.pending, self._name, asked.id_hash)
                if arguments["if_exists"] == "keep" and isinstance(holder, Operation):
                    if reply is not None:
                        reply.answer(0)
                    kept: OperationT = holder  # type: ignore[assignment]
                    return kept
            number = ledger.issue(asked.command(self._indices[self._name], flags, registered_ns, sequence, command))
            deadline_ns = deadline_after(registered_ns, asked.timeout_ns)
            operation: OperationT = self._operation(link, number, asked.names, asked.payload, deadline_ns)
            ledger.pending[number] = operation
            if reply is not None:
                link.protocol.incoming.replies[number] = reply
            if looker is not None:
                link.protocol.incoming.lookers[number] = looker
            if asked.id_hash:
                operation._id = (arguments["id"], self._name, arguments["if_exists"])  # type: ignore[assignment]
                if holder is None or arguments["if_exists"] == "replace":  # otherwise the daemon will refuse it
                    ledger.ids.add(ledger.pending, self._name, asked.id_hash, number)
            link.wake_if_due(ledger.issued)
        return operation

    @takes_fire
    def fire(self, key: Key, *, value: Payload = b"", amount: int = 1, limit: int | None = None) -> None:
        """Fire an event on a key. Returns at once; `fire_wait` returns the number of completed operations.

        The operations that the event completes get its `value`. `amount` is added up for operations with a `total(n)`
        condition. With `limit` the event completes at most `limit` operations, in the order of registration; later
        registrations may get the rest. A wrong argument raises an error of its kind, such as InvalidKeyError. Raises
        BackpressureError and ClosedError, too. If the daemon refuses the event (no room in the arena for its value),
        the refusal is logged, counted in `stats()`, and raised by the next flush() or close().
        """
        self._issue(self._fire_command(key, value, amount, limit, 0))

    def advance(self, key: Key, watermark: int) -> None:
        """Raise the watermark of a key. Operations that wait for this watermark, or for a lower one, complete.

        A watermark below the present one changes nothing. `forget` removes a watermark. Watermarks count against this
        client's quota: the next flush() or close() raises a refusal (QuotaExceededError, ArenaFullError).
        """
        self._issue(self._key_command(CommandKind.ADVANCE, key, unsigned("watermark", watermark, U64_MAX)))

    def fail(self, key: Key, *, code: int = 0, value: Payload = b"") -> None:
        """Settle a key as failed. Operations whose condition can no longer hold fail with `code` and `value`."""
        self._issue(self._key_command(CommandKind.FAIL, key, unsigned("code", code, U32_MAX), value))

    def cancel(self, id: Key) -> None:
        """Cancel the operation with this id; any process may have registered it. Returns at once: see `cancel_wait`."""
        self._issue(self._cancel_id_command(id, 0))

    def cancel_for_key(self, key: Key) -> None:
        """Cancel every operation that watches the key, of all clients. Returns at once: see `cancel_for_key_wait`."""
        self._issue(self._key_command(CommandKind.CANCEL_FOR_KEY, key))

    def reschedule(self, id: Key, delay: Timeout) -> None:
        """Give the operation with this id a deadline, `delay` s from now; None = no deadline. See `reschedule_wait`."""
        self._reschedule_id(id, delay, None)

    def forget(self, key: Key) -> None:
        """Remove the watermark of a key. No operation settles."""
        self._issue(self._key_command(CommandKind.FORGET, key))

    def mark(self) -> Mark:
        """A mark of this moment, for `register(since=)`: take the mark, then check your own state, then register."""
        link = self._live()
        with link.lock:
            if link.closed:
                link.refuse_closed()
            mark = link.protocol.session.mark()
        scope = current_scope()
        if scope is not None and scope.mark is None:
            scope.mark = str(mark) if mark.incarnation else ""  # no other client can go on from a mark without an arena
        return mark

    # encoding, for both faces

    def _issue(self, command: bytes) -> None:
        self._live().sender.issue(command, self._name)

    def _fire_command(self, key: Key, value: Payload, amount: int, limit: int | None, flags: int) -> bytes:
        unsigned("amount", amount, U64_MAX, 1)
        if limit is not None:
            flags |= CommandFlag.LIMITED
            unsigned("limit", limit, U32_MAX, 1)
        return self._key_command(CommandKind.FIRE, key, amount, value, limit or 0, flags)

    @staticmethod
    def _key_command(
        kind: CommandKind, key: Key, amount: int = 0, value: Payload = b"", limit: int = 0, flags: int = 0
    ) -> bytes:
        """A command about a key. The command's purgatory is set when it is issued."""
        encoded, body = key_bytes(key), payload_bytes(value, "value")
        length = KEY_COMMAND_SIZE + len(encoded) + len(body)
        fixed: bytes = pack_key(kind, 0, flags, len(encoded), length, amount, len(body), limit)
        return fixed + encoded + body

    @staticmethod
    def _cancel_id_command(id: Key, flags: int) -> bytes:
        return operation_command(CommandKind.CANCEL_ID, 0, flags=flags, id_hash=id_hash(id))

    def _ask(self, command: bytes, id: Key | None = None) -> Reply:
        """Issue a command that wants an answer. `id` is the id that the command names, if any.

        Raises TimerdUnavailableError, and sends nothing, if the daemon is lost.
        """
        return self._ask_numbered(command, id)[1]

    def _ask_numbered(self, command: bytes, id: Key | None = None) -> tuple[int, Reply]:
        """As `_ask`; returns the command's number, too."""
        link = self._live()
        reply = Reply(link, Subject(id, self._name))
        with link.lock:
            link.connection.refuse_lost()
            number = link.sender.issue_locked(command, self._name)
            link.protocol.incoming.replies[number] = reply
        return number, reply

    def _ask_fire(self, key: Key, value: Payload, amount: int, limit: int | None) -> Reply:
        return self._ask(self._fire_command(key, value, amount, limit, CommandFlag.WANTS_ANSWER))

    def _ask_cancel_for_key(self, key: Key) -> Reply:
        return self._ask(self._key_command(CommandKind.CANCEL_FOR_KEY, key, flags=CommandFlag.WANTS_ANSWER))

    def _ask_check(self, key: Key) -> tuple[int, Reply]:
        return self._ask_numbered(self._key_command(CommandKind.CHECK, key, flags=CommandFlag.WANTS_ANSWER))

    def _ask_cancel(self, id: Key) -> Reply:
        return self._ask(self._cancel_id_command(id, CommandFlag.WANTS_ANSWER), id)

    def _ask_reschedule(self, id: Key, delay: Timeout) -> Reply:
        reply = Reply(self._live(), Subject(id, self._name))
        self._reschedule_id(id, delay, reply)
        return reply

    def _reschedule_id(self, id: Key, delay: Timeout, reply: Reply | None) -> None:
        """Send RESCHEDULE_ID. With a `reply`, raises TimerdUnavailableError if the daemon is lost."""
        link = self._live()
        registered_ns, duration_ns, hashed = link.now_ns(), timeout_ns(delay, "delay"), id_hash(id)
        command = operation_command(
            CommandKind.RESCHEDULE_ID,
            0,
            flags=0 if reply is None else CommandFlag.WANTS_ANSWER,
            registered_ns=registered_ns,
            timeout_ns=duration_ns,
            id_hash=hashed,
        )
        with link.lock:
            if reply is not None:
                link.connection.refuse_lost()
            number = link.sender.issue_locked(command, self._name)
            if reply is not None:
                link.protocol.incoming.replies[number] = reply
            mine = self._ledger.ids.find(self._ledger.pending, self._name, hashed)
            if isinstance(mine, Operation):
                mine.move(deadline_after(registered_ns, duration_ns))

    def __repr__(self) -> str:
        return f"<Purgatory {self._name!r} of {self._lazy.instance!r}>"

    # threaded/ and aio/ override these calls without docstrings: help() and editors show the docstrings below.

    def register_wait(self, *given: Any, **named: Any) -> object:
        """As `register`; returns when the daemon has accepted the operation. Raises the daemon's refusal.

        Raises TimerdUnavailableError after 5 s, or at once if the daemon is lost; then nothing stays registered.
        """

    def fire_wait(self, *given: Any, **named: Any) -> object:
        """As `fire`; returns the number of operations that the event completed.

        Raises TimerdUnavailableError after `timeout` s. After this error the event may still be applied when the daemon
        is back. So do not fire it again. A result of 0 does not mean that the event completes no operation: an
        operation that was registered before this call, but reaches the daemon after the event, is not counted.
        """

    def cancel_for_key_wait(self, *given: Any, **named: Any) -> object:
        """As `cancel_for_key`; returns the number of operations that were cancelled."""

    def cancel_wait(self, *given: Any, **named: Any) -> object:
        """As `cancel`; returns whether the operation was cancelled.

        Raises UnknownOperationError if no operation with this id is pending.
        """

    def reschedule_wait(self, *given: Any, **named: Any) -> object:
        """As `reschedule`; returns whether the operation has the new deadline.

        Raises UnknownOperationError if no operation with this id is pending.
        """

    def watermark(self, *given: Any, **named: Any) -> object:
        """The watermark of a key, the highest offset to which it was advanced; None if the key has no watermark.

        The client asks the daemon once for the key's record; after that it reads the value from shared memory, in about
        a microsecond. It asks again while the key has no watermark, when the watermark was forgotten, in another arena,
        and if the arena cannot be mapped. Raises TimerdUnavailableError after `timeout` s.
        """

    def register_many(self, *given: Any, **named: Any) -> object:
        """Register an operation for each of `keys`. Give one timeout and one payload for all, or one for each.

        The batch has outcomes, states and values in the order of `keys`. `since` is the mark from which events count
        for all operations (default: now). `ids`, `if_exists` and `orphans` are as in `register`; with "keep" a row
        whose id is in use settles as KEPT.

        In asyncio it raises BackpressureError, and sends nothing, if the window has no room for all:
        `await client.room(n)` first.
        """

    def register_many_wait(self, *given: Any, **named: Any) -> object:
        """As `register_many`; returns when the daemon has answered all rows. `batch.refused()` has the refused rows.

        Raises TimerdUnavailableError after `receipt_timeout` s, or at once if the daemon is lost.
        """

    def subscribe(self, *given: Any, **named: Any) -> object:
        """Subscribe to all events on these keys. Returns at once: `for item in client.subscribe("inbox/7"): ...`

        In asyncio: `async for`.

        A subscription sees each fire, advance and fail, and takes no event away: a limited event goes to operations.
        Events come in their order, over all keys. `since` is the mark from which events count (default: now). `buffer`
        is how many events may wait for the subscriber. The loop ends when no event has come for `timeout` s.

        A Gap stands where events may have been missed, and the subscription goes on after it: the mark is too old, the
        daemon has another arena, or the buffer was full. While the daemon is lost, the subscription waits. A wrong
        argument raises an error of its kind, such as InvalidKeyError. Raises ClosedError, too. The iteration raises a
        refusal of the daemon (arena full, quota).
        """

    def fire_many(self, *given: Any, **named: Any) -> object:
        """Fire each of `keys`, in order. Give one value and amount for all, or one for each. Returns at once.

        In asyncio it raises BackpressureError, and sends nothing, if the window has no room for all:
        `await client.room(n)` first.
        """

    def wait_for(self, *given: Any, **named: Any) -> object:
        """A condition variable across processes: wait until `predicate()` is true, or `timeout` s are over.

        Returns the predicate's last value. The predicate (in asyncio also a coroutine function) is evaluated here, at
        once and then after each event on `keys`; no event is missed in between. After `timeout` it is evaluated once
        more. If it is false then, and no frame of the daemon comes for another second, this raises
        TimerdUnavailableError, because events may be unknown.

        With `unavailable="poll"` a lost daemon is no error. While it is lost, the predicate is evaluated at intervals
        that grow from `poll_interval` s to 1 s. When the daemon is back, this waits for events again.
        """

    def try_complete_else_watch(self, *given: Any, **named: Any) -> object:
        """Kafka's tryCompleteElseWatch, for an operation whose owner evaluates the condition. Returns the operation.

        `operation` is a DelayedOperation, or a function `try_complete`, in asyncio also a coroutine function. This call
        evaluates `try_complete` at once. If the result is false, the operation watches `keys` (10,000 at most), from
        the moment before the evaluation on. Each fire, advance, fail and check on a key evaluates it again, in the
        client's thread or loop; several events may share an evaluation. A limited event does not affect the operation.
        Until `try_complete` is true, the operation keeps its timer, its keys, its id and its orphans policy.

        With orphans="keep" or "group" the operation outlives this process. After that nobody evaluates the condition,
        and the operation expires at its deadline. While the daemon is lost, nobody evaluates either. A second after its
        deadline the operation is UNAVAILABLE, and only `on_error` runs. Raises the errors of `try_complete` in this
        call, and the errors of `register`.
        """

    def check_and_complete(self, *given: Any, **named: Any) -> object:
        """Kafka's checkAndComplete: in all processes, the owners that watch `key` look. Returns how many complete.

        Returns when every owner has looked. Raises CheckIncompleteError after `timeout` s: its `completed` is the
        number so far, and the other owners still look. If a registration reaches the daemon after the check, its owner
        looks, too, but this call neither waits for it nor counts it. In a callback of a delayed operation this raises
        RuntimeError.
        """
