"""What a purgatory can do without waiting: the methods that the threaded and the asyncio face share.

`register` and `fire` are the hot path. Where hot/ is compiled, it takes the calls of the fast path (a str key, ANY, no
id). Here these calls are checked and encoded in place, and all others go through `arguments`. Nothing is sent before
everything has been checked.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from timerd_client.arguments import (
    EVENT_PREFIX,
    TIMEOUT_S_MAX,
    U32_MAX,
    U64_MAX,
    id_hash,
    key_bytes,
    mark_of,
    orphans_of,
    payload_bytes,
    timeout_ns,
    unsigned,
    watch,
)
from timerd_client.conditions import ANY, When
from timerd_client.hot import Caller, takes_fire, takes_register
from timerd_client.hot.commands import (
    IF_EXISTS,
    KEY_COMMAND_SIZE,
    REGISTER_SIZE,
    deadline_after,
    operation_command,
    pack_key,
    pack_register,
)
from timerd_client.mark import Mark
from timerd_client.types import Key, Keys, Payload, Timeout
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import KEY_SIZE_MAX, PAYLOAD_SIZE_MAX
from timerd_shm.declare.wire import CommandFlag, CommandKind, RegisterFlag
from timerd_wire.refusals import Subject

from .link import Link
from .operation import Operation
from .promise import Reply

OperationT = TypeVar("OperationT", bound=Operation)

_REGISTER = int(CommandKind.REGISTER)
_FIRE = int(CommandKind.FIRE)
_ANY_KIND = int(ANY.kind)
_WANTS_ANSWER = int(RegisterFlag.WANTS_ANSWER)


class Surface(Caller, Generic[OperationT]):
    """A purgatory as a client sees it.

    It derives from Caller, because looking up a Caller would cost 11 % of `register` and 17 % of `fire`.
    """

    _link: Link

    def __init__(self, link: Link, name: str, operation: type[OperationT]) -> None:
        self._protocol = link.protocol
        super().__init__(link, link.protocol.ledger, link.protocol.session.purgatories, name, operation)

    def __repr__(self) -> str:
        return f"<Purgatory {self.name!r} of {self._link.paths.instance!r}>"

    @takes_register
    def register(
        self,
        keys: Keys,
        *,
        timeout: Timeout,
        when: When = ANY,
        payload: Payload = b"",
        id: Key | None = None,
        if_exists: str = "error",
        since: Mark | None = None,
        orphans: str | None = None,
        wait: bool = False,
    ) -> OperationT:
        """Register an operation: it completes when its condition holds over `keys`, or expires after `timeout` s.

        `keys` are a key, several, or {key: watermark}. A timeout of None means no deadline. The deadline counts from
        this call; it may be late, never early. `payload` stays with the operation. `id` (1..255 bytes) makes it
        idempotent in its purgatory: `if_exists` is "error", "keep", "replace", or "replace_cancelled", which takes
        over the id of a cancelled operation and refuses for any other. `since` is the mark from which events count
        (default: now). `orphans` is what becomes of it when this process dies (default: that of connect()):
        "cancel", "keep" (it runs on) or "group" (its outcome goes to a member of the group). `wait=True` also waits
        until the daemon has accepted it (in asyncio: `await op.accepted()`).

        Raises the named error for a wrong argument. A refusal of the daemon (arena full, quota, id exists) settles the
        operation as failed with that error. Raises BackpressureError, ClosedError.

        While the daemon is lost (no frame for 3 s) registrations are kept, and sent when it is back. A second after its
        deadline an operation then settles as UNAVAILABLE: its outcome is unknown. That is final here, and the client
        withdraws the operation when the daemon is back. The deadline is that of this call, or of the last `reschedule`
        by this client. `wait=True` raises TimerdUnavailableError at once.
        """
        names: Key | tuple[Key, ...]
        if when is ANY and (keys.__class__ is str or keys.__class__ is bytes):
            key = keys.encode() if keys.__class__ is str and keys.isascii() else key_bytes(keys)
            size = len(key)
            if not 0 < size <= KEY_SIZE_MAX:
                key_bytes(keys)
            condition, needed, count, total = _ANY_KIND, 1, 1, 0
            tail = EVENT_PREFIX[size] + key
            names = keys
        else:
            names, tail, condition, needed, total = watch(keys, when)
            count = len(names)
            if keys.__class__ is str or keys.__class__ is bytes:
                names = keys
        duration_ns: int
        if timeout.__class__ is float and 0.0 <= timeout <= TIMEOUT_S_MAX:
            duration_ns = round(timeout * 1e9)
        else:
            duration_ns = timeout_ns(timeout)
        if payload.__class__ is not bytes or len(payload) > PAYLOAD_SIZE_MAX:
            payload = payload_bytes(payload)
        tail += payload

        flags = policy = 0
        reply: Reply | None = None
        hashed: bytes | None = None
        if id is not None or since is not None or orphans is not None or if_exists != "error":
            if not isinstance(if_exists, str) or if_exists not in IF_EXISTS:
                raise InvalidValueError(f"if_exists={if_exists!r}: give {', '.join(IF_EXISTS)}")
            if id is not None:
                hashed = id_hash(id)
                flags |= RegisterFlag.HAS_ID | IF_EXISTS[if_exists]
                tail = hashed + tail
            elif if_exists != "error":
                raise InvalidValueError(f"if_exists={if_exists!r} needs an id")
            if orphans is not None:
                flags |= RegisterFlag.ORPHANS_GIVEN
                policy = orphans_of(orphans, self._protocol.session.identity.group)
            if since is not None:
                mark_of(since)
        if wait:
            reply = Reply(self._link)
            flags |= _WANTS_ANSWER

        link, ledger = self._link, self._ledger
        registered_ns = link.now_ns()
        with link.lock:
            if wait:
                link.refuse_lost()
            command, sequence = ledger.issued, ledger.newest()
            if link.sealed or ledger.issued - ledger.applied >= ledger.window:
                maker = ledger.incarnation
                link.ready_locked()
                if maker != ledger.incarnation and since is None:
                    command, flags = 0, flags | RegisterFlag.MARK_OF_OTHER_ARENA
            if since is not None:
                marked, sequence, command = since.on_wire(ledger.arena, ledger.incarnation)
                flags |= marked
            if hashed is not None:
                holder: OperationT | None = ledger.ids.find(ledger.pending, self.name, hashed)
                if holder is not None and if_exists == "keep":
                    return holder
            packed = pack_register(
                _REGISTER,
                self._indices[self.name],
                flags,
                REGISTER_SIZE + len(tail),
                condition,
                needed,
                count,
                policy,
                len(payload),
                registered_ns,
                duration_ns,
                sequence,
                command,
                total,
            )
            number = ledger.issue(packed + tail)
            deadline_ns = deadline_after(registered_ns, duration_ns)
            operation: OperationT = self._operation(link, number, names, payload, deadline_ns)
            ledger.pending[number] = operation
            if reply is not None:
                operation._reply = self._protocol.incoming.replies[number] = reply
            if hashed is not None:
                operation._id = (id, self.name)  # type: ignore[assignment]
                if holder is None or if_exists == "replace":  # else the daemon will refuse it
                    ledger.ids.add(ledger.pending, self.name, hashed, number)
            link.wake_if_due(ledger.issued)
        if reply is not None:
            self._registered(operation)
        return operation

    def _registered(self, operation: OperationT) -> None:
        """After `register(wait=True)`: the threaded face waits here."""

    @takes_fire
    def fire(self, key: Key, *, value: Payload = b"", amount: int = 1, limit: int | None = None) -> None:
        """Fire an event on a key. Returns at once; `fire_wait` gives the number of operations that it completed.

        `value` goes to the operations that it completes. `amount` adds to the total of operations that wait for one.
        With `limit` the event completes so many at most, in order of registration; later ones may have what is left.
        Raises the named error for a wrong argument, BackpressureError, ClosedError. If the daemon refuses it (no room
        in the arena for its value), that is logged, counted in `stats()`, and raised by the next flush() or close().
        """
        if limit is None and key.__class__ is str and value.__class__ is bytes and amount.__class__ is int:
            encoded = key.encode() if key.isascii() else key_bytes(key)
            size, value_size = len(encoded), len(value)
            if 0 < size <= KEY_SIZE_MAX and value_size <= PAYLOAD_SIZE_MAX and 0 < amount <= U64_MAX:
                link, ledger = self._link, self._ledger
                length = KEY_COMMAND_SIZE + size + value_size
                with link.lock:
                    if link.sealed or ledger.issued - ledger.applied >= ledger.window:
                        link.ready_locked()
                    packed = pack_key(_FIRE, self._indices[self.name], 0, size, length, amount, value_size, 0)
                    ledger.issue(packed + encoded + value)
                    link.wake_if_due(ledger.issued)
                return
        self._issue(self._fire_command(key, value, amount, limit, 0))

    def advance(self, key: Key, watermark: int) -> None:
        """Raise the watermark of a key. Operations that wait for it, or for less, complete. `forget` removes it.

        A watermark that is lower than the present one changes nothing. Watermarks count against this client's quota:
        the next flush() or close() raises a refusal (QuotaExceededError, ArenaFullError).
        """
        self._issue(self._key_command(CommandKind.ADVANCE, key, unsigned("watermark", watermark, U64_MAX)))

    def fail(self, key: Key, *, code: int = 0, value: Payload = b"") -> None:
        """Settle a key as failed; operations whose condition can no longer hold fail with `code` and `value`."""
        self._issue(self._key_command(CommandKind.FAIL, key, unsigned("code", code, U32_MAX), value))

    def cancel_for_key(self, key: Key) -> None:
        """Cancel every operation that watches the key, of all clients."""
        self._issue(self._key_command(CommandKind.CANCEL_FOR_KEY, key))

    def forget(self, key: Key) -> None:
        """Remove the watermark of a key; settles nothing."""
        self._issue(self._key_command(CommandKind.FORGET, key))

    def mark(self) -> Mark:
        """This moment in the history of events, for `register(since=)`. Mark first, then check, then register."""
        link, protocol = self._link, self._protocol
        with link.lock:
            if link.closed:
                link.refuse_closed()
            return protocol.session.mark()

    # encoded, for both faces

    def _issue(self, command: bytes) -> None:
        self._link.issue(command, self.name)

    def _fire_command(self, key: Key, value: Payload, amount: int, limit: int | None, flags: int) -> bytes:
        unsigned("amount", amount, U64_MAX, 1)
        if limit is not None:
            flags |= CommandFlag.LIMITED
            unsigned("limit", limit, U32_MAX, 1)
        return self._key_command(CommandKind.FIRE, key, amount, value, limit or 0, flags)

    def _key_command(
        self, kind: CommandKind, key: Key, amount: int = 0, value: Payload = b"", limit: int = 0, flags: int = 0
    ) -> bytes:
        encoded, body = key_bytes(key), payload_bytes(value, "value")
        length = KEY_COMMAND_SIZE + len(encoded) + len(body)
        index = self._indices[self.name]
        fixed: bytes = pack_key(kind, index, flags, len(encoded), length, amount, len(body), limit)
        return fixed + encoded + body

    def _ask(self, command: bytes, id: Key | None = None) -> Reply:
        """Issue a command that wants an answer. `id` is the id that the command names, if any.

        Raises TimerdUnavailableError, and sends nothing, if the daemon is lost.
        """
        link = self._link
        reply = Reply(link, Subject(id, self.name))
        with link.lock:
            link.refuse_lost()
            link.protocol.incoming.replies[link.issue_locked(command, self.name)] = reply
        return reply

    def _ask_reschedule(self, id: Key, timeout: Timeout) -> Reply:
        """RESCHEDULE_ID."""
        registered_ns, duration_ns, hashed = self._link.now_ns(), timeout_ns(timeout), id_hash(id)
        command = operation_command(
            CommandKind.RESCHEDULE_ID,
            0,
            flags=CommandFlag.WANTS_ANSWER,
            purgatory=self._indices[self.name],
            registered_ns=registered_ns,
            timeout_ns=duration_ns,
            id_hash=hashed,
        )
        reply = self._ask(command, id)
        with self._link.lock:
            mine = self._ledger.ids.find(self._ledger.pending, self.name, hashed)
            if mine is not None:
                mine.move(deadline_after(registered_ns, duration_ns))
        return reply

    def _cancel_id_command(self, id: Key) -> bytes:
        return operation_command(
            CommandKind.CANCEL_ID,
            0,
            flags=CommandFlag.WANTS_ANSWER,
            purgatory=self._indices[self.name],
            id_hash=id_hash(id),
        )
