"""Sends the registrations and events of a task: each is acknowledged, and made once, also when the task is run again.

A registration is idempotent by its id: the daemon refuses an id that it knows, of a pending or a settled operation.

An event has no id, so it is fired under a *claim*: an operation whose id is the event's opId, in a purgatory of claims
("default-claims"). If the claim is new, this task fires: the event and a second event, which completes the claim, go
out in one frame. A frame arrives whole or not at all, and it is applied whole, even over several turns
(tests/core/test_frames.py). If the task dies before, its claim is cancelled (orphans="cancel"), and another attempt
may replace a cancelled claim. A completed claim says that its event was fired. So a task that is killed at any point
loses nothing and repeats nothing. SPARK.md lists what is not covered.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import timerd_client as td
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import Reply
from timerd_client.threaded.purgatory import Purgatory
from timerd_shm.declare.errors import ArenaFullError, OperationExistsError, QuotaExceededError, TimerdUnavailableError
from timerd_shm.declare.limits import NAME_SIZE_MAX
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import CommandFlag, CommandKind
from timerd_wire.refusals import Subject

from .options import REGISTER, WriteOptions

CONNECT_TIMEOUT_S = 10.0
FLUSH_TIMEOUT_S = 30.0
REGISTRATIONS = 512  # in flight at once
EVENTS = 256  # and their claims, in one frame
FRAME_BYTES = 1 << 20  # of values; a frame may have four times as much
CLIENT_OPERATIONS = 20_000  # of one client, which keeps a handle of each
CLAIMS_SUFFIX = "-claims"
CLAIM_PAUSE_S = 0.02


class Row(NamedTuple):
    """The registration or event of a row. `timeout` is in seconds, of a registration."""

    op_id: str | bytes
    key: str | bytes
    body: bytes
    timeout: float | None


class Counts(NamedTuple):
    """Counts of rows: new ones, and ones whose id was known."""

    added: int
    known: int


class Event(NamedTuple):
    """An event to be fired. Only a value needs room in the arena, so only an event with a value can be refused."""

    purgatory: Purgatory
    key: str | bytes
    value: bytes = b""

    def command(self) -> bytes:
        flags = CommandFlag.WANTS_ANSWER if self.value else 0
        return self.purgatory._key_command(CommandKind.FIRE, self.key, 1, self.value, flags=flags)


class PipelinedPurgatory(Purgatory):
    """A purgatory in which register(wait=True) does not wait: the answers are read after many registrations."""

    def _registered(self, operation: ThreadedOperation) -> None:
        pass

    def answers(self, operations: Sequence[ThreadedOperation]) -> Iterator[OperationExistsError | None]:
        """For each registration None, or the error that its id is known. Raises any other refusal."""
        for operation in operations:
            try:
                operation.accepted(FLUSH_TIMEOUT_S)
            except OperationExistsError as error:
                yield error
            else:
                yield None

    def fire_together(self, events: Sequence[Event]) -> list[Event]:
        """Fire events in one frame, and wait for the answers to those with values. Returns those without room."""
        link = self._threaded
        commands = [event.command() for event in events]
        replies: dict[int, Reply] = {}
        with link.lock:
            link.ready_locked()
            for position, (event, command) in enumerate(zip(events, commands, strict=True)):
                number = link.protocol.ledger.issue(command)
                if event.value:
                    replies[position] = Reply(link, Subject(None, event.purgatory.name))
                    link.protocol.incoming.replies[number] = replies[position]
            link.wake_if_due(link.protocol.ledger.issued)
        return [events[position] for position, reply in replies.items() if not self._has_room(reply)]

    def _has_room(self, reply: Reply) -> bool:
        try:
            self._answer(reply, FLUSH_TIMEOUT_S)
        except ArenaFullError:
            return False
        return True


def pipelined_purgatory(client: td.Client, name: str) -> PipelinedPurgatory:
    """A purgatory of a client, made if it does not exist. Raises the errors of Client.purgatory()."""
    client.purgatory(name, timeout=CONNECT_TIMEOUT_S)
    return PipelinedPurgatory(client._threaded, name)


def connected(options: WriteOptions) -> td.Client:
    """A client. Its registrations outlive the client. Raises TimerdUnavailableError."""
    return options.sidecar.connect(
        name="spark-sink",
        timeout=CONNECT_TIMEOUT_S,
        group=options.group,
        orphans="group" if options.group else "keep",
    )


def chunks(rows: Iterable[Row], size: int, limit: int = FRAME_BYTES) -> Iterator[list[Row]]:
    """Rows in lists: `size` rows at most, with bodies of `limit` bytes at most together, or one row."""
    chunk: list[Row] = []
    held = 0
    for row in rows:
        if chunk and (len(chunk) == size or held + len(row.body) > limit):
            yield chunk
            chunk, held = [], 0
        chunk.append(row)
        held += len(row.body)
    if chunk:
        yield chunk


def send(options: WriteOptions, rows: Iterable[Row]) -> Counts:
    """Register or fire all rows. Returns when the daemon has acknowledged the last. Raises the daemon's refusals.

    When a client has reached its quota, the next client goes on: the operations of an ended client count for no quota.
    """
    send_part, size = (register, REGISTRATIONS) if options.action == REGISTER else (fire, EVENTS)
    total = Counts(0, 0)
    parts = chunks(rows, size)
    part = next(parts, None)
    while part is not None:
        before = total
        with connected(options) as client:
            try:
                while part is not None and sum(total) - sum(before) < CLIENT_OPERATIONS:
                    counts = send_part(client, options, part)
                    total = Counts(total.added + counts.added, total.known + counts.known)
                    part = next(parts, None)
            except QuotaExceededError:
                if total == before:
                    raise
    return total


def register(client: td.Client, options: WriteOptions, rows: Sequence[Row]) -> Counts:
    """Register an operation for each row whose id the daemon does not know."""
    purgatory = pipelined_purgatory(client, options.purgatory)
    asked = [
        purgatory.register(row.key, timeout=row.timeout, payload=row.body, id=row.op_id, wait=True) for row in rows
    ]
    known = sum(error is not None for error in purgatory.answers(asked))
    return Counts(len(rows) - known, known)


def fire(client: td.Client, options: WriteOptions, rows: Sequence[Row]) -> Counts:
    """Fire an event for each row whose id the daemon does not know."""
    events = pipelined_purgatory(client, options.purgatory)
    claims = pipelined_purgatory(client, claims_of(options.purgatory))
    rows_by_id = {row.op_id: row for row in rows}
    mine = claim(claims, list(rows_by_id))
    if mine:
        pairs = ((Event(events, rows_by_id[id].key, rows_by_id[id].body), Event(claims, id)) for id in mine)
        refused = claims.fire_together([event for pair in pairs for event in pair])
        client.flush(FLUSH_TIMEOUT_S)
        fire_later(refused)
    return Counts(len(mine), len(rows) - len(mine))


def claims_of(purgatory: str) -> str:
    """The name of the purgatory for the claims of a purgatory. A long name is cut, and a hash keeps names different."""
    if len(purgatory) + len(CLAIMS_SUFFIX) <= NAME_SIZE_MAX:
        return purgatory + CLAIMS_SUFFIX
    suffix = f"-{blake2b(purgatory.encode(), digest_size=4).hexdigest()}{CLAIMS_SUFFIX}"
    return purgatory[: NAME_SIZE_MAX - len(suffix)] + suffix


def fire_later(events: Iterable[Event]) -> None:
    """Fire the events that had no room, as soon as there is room. Raises ArenaFullError after FLUSH_TIMEOUT_S."""
    end = time.monotonic() + FLUSH_TIMEOUT_S
    for event in events:
        while True:
            try:
                event.purgatory.fire_wait(event.key, value=event.value)
                break
            except ArenaFullError:
                if time.monotonic() > end:
                    raise
                time.sleep(CLAIM_PAUSE_S)


def claim(claims: PipelinedPurgatory, op_ids: Sequence[str | bytes]) -> list[str | bytes]:
    """Claim events. Returns the ids of those that this task has to fire; the others were fired before.

    If another attempt holds a claim, this waits until the claim completes, or until the daemon has cancelled it because
    that attempt has ended. Raises TimerdUnavailableError after FLUSH_TIMEOUT_S.
    """
    end = time.monotonic() + FLUSH_TIMEOUT_S
    mine: list[str | bytes] = []
    while op_ids:
        asked = [
            claims.register(
                op_id,
                timeout=None,  # a claim that expired before its attempt ended would lose the event
                id=op_id,
                if_exists="replace_cancelled",
                orphans="cancel",
                wait=True,
            )
            for op_id in op_ids
        ]
        pending = []
        for op_id, error in zip(op_ids, claims.answers(asked), strict=True):
            if error is None:
                mine.append(op_id)
            elif error.settled != Outcome.COMPLETED:
                pending.append(op_id)
        op_ids = pending
        if op_ids:
            if time.monotonic() > end:
                raise TimerdUnavailableError(
                    f"another attempt holds the claims of {len(op_ids)} events (the first opId is {op_ids[0]!r}), and "
                    f"has neither fired them nor ended within {FLUSH_TIMEOUT_S:g} s"
                )
            time.sleep(CLAIM_PAUSE_S)
    return mine
