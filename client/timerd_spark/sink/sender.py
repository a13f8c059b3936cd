"""Sends the registrations and events of a task. Each is acknowledged, and is made once even if the task runs again.

A registration is idempotent by its id: the daemon refuses the id of a pending or a settled operation that it knows.

An event has no id, so it is fired under a *claim*: an operation whose id is the event's opId, in a purgatory of claims
("default-claims"). If the claim is new, this task fires: the event and a second event, which completes the claim, go
out in one frame. A frame arrives whole or not at all, and it is applied whole, even over several turns
(tests/core/test_frames.py). If the task dies before the frame, its claim is cancelled (orphans="cancel"), and another
attempt may replace a cancelled claim. A completed claim proves that its event was fired. So a task that is killed at
any point loses nothing and repeats nothing. docs/howto/spark-write.md lists the exceptions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import timerd_client as td
from timerd_client.errors import ArenaFullError, OperationExistsError, QuotaExceededError, TimerdUnavailableError
from timerd_shm.declare.limits import NAME_SIZE_MAX
from timerd_shm.declare.states import Outcome

from .options import REGISTER, WriteOptions

CONNECT_TIMEOUT_S = 10.0
FLUSH_TIMEOUT_S = 30.0
REGISTRATIONS = 512  # in flight at once
EVENTS = 256  # in one frame, with their claims
FRAME_BYTES = 1 << 20  # of values in a frame, which may have four times as many bytes in all
CLIENT_OPERATIONS = 20_000  # of one client, which keeps a handle for each
CLAIMS_SUFFIX = "-claims"
CLAIM_PAUSE_S = 0.02


class Row(NamedTuple):
    """The registration or event of a row. `timeout` is in seconds, and None for an event."""

    op_id: str | bytes
    key: str | bytes
    body: bytes
    timeout: float | None


class Counts(NamedTuple):
    """Counts of rows: new rows, and rows whose id was known."""

    added: int
    known: int


def known_ids(batch: td.Batch) -> dict[int, OperationExistsError]:
    """The rows whose ids the daemon knows, with the daemon's errors. Raises any other refusal."""
    known: dict[int, OperationExistsError] = {}
    for row in batch.refused():
        outcome = row.outcome()
        error = None if outcome is None else outcome.error
        if isinstance(error, OperationExistsError):
            known[row.index] = error
        elif error is not None:
            raise error
    return known


def connected(options: WriteOptions) -> td.Client:
    """A client. Its operations outlive it, but for the claims of claim(). Raises TimerdUnavailableError."""
    return options.sidecar.connect(
        name="spark-sink",
        timeout=CONNECT_TIMEOUT_S,
        group=options.group,
        orphans="group" if options.group else "keep",
    )


def chunks(rows: Iterable[Row], size: int, limit: int = FRAME_BYTES) -> Iterator[list[Row]]:
    """Rows in lists of `size` rows at most, whose bodies have `limit` bytes at most together. A larger row is alone."""
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
    """Register or fire all rows. Returns when the daemon has acknowledged the last row. Raises the daemon's refusals.

    When a client has reached its quota, or has sent CLIENT_OPERATIONS rows, another client sends the rest: the
    operations of an ended client count for no client's quota.
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
    batch = client.purgatory(options.purgatory, timeout=CONNECT_TIMEOUT_S).register_many_wait(
        [row.key for row in rows],
        timeout=[row.timeout for row in rows],
        payloads=[row.body for row in rows],
        ids=[row.op_id for row in rows],
        receipt_timeout=FLUSH_TIMEOUT_S,
    )
    known = len(known_ids(batch))
    return Counts(len(rows) - known, known)


def fire(client: td.Client, options: WriteOptions, rows: Sequence[Row]) -> Counts:
    """Fire an event for each row whose id the daemon does not know."""
    events = client.purgatory(options.purgatory, timeout=CONNECT_TIMEOUT_S)
    claims = client.purgatory(claims_of(options.purgatory), timeout=CONNECT_TIMEOUT_S)
    rows_by_id = {row.op_id: row for row in rows}
    mine = claim(claims, list(rows_by_id))
    if mine:
        pairs = (((events, rows_by_id[id].key, rows_by_id[id].body), (claims, id, b"")) for id in mine)
        together = [event for pair in pairs for event in pair]
        refused = client.fire_together_wait(together, timeout=FLUSH_TIMEOUT_S)
        client.flush(timeout=FLUSH_TIMEOUT_S)
        fire_later(together[position] for position in refused)
    return Counts(len(mine), len(rows) - len(mine))


def claims_of(purgatory: str) -> str:
    """The name of the purgatory for the claims of a purgatory. A long name is cut, and gets a hash to stay unique."""
    if len(purgatory) + len(CLAIMS_SUFFIX) <= NAME_SIZE_MAX:
        return purgatory + CLAIMS_SUFFIX
    suffix = f"-{blake2b(purgatory.encode(), digest_size=4).hexdigest()}{CLAIMS_SUFFIX}"
    return purgatory[: NAME_SIZE_MAX - len(suffix)] + suffix


def fire_later(events: Iterable[tuple[td.Purgatory, str | bytes, bytes]]) -> None:
    """Fire events that the full arena has refused, once there is room. Raises ArenaFullError after FLUSH_TIMEOUT_S."""
    end = time.monotonic() + FLUSH_TIMEOUT_S
    for purgatory, key, value in events:
        while True:
            try:
                purgatory.fire_wait(key, value=value)
                break
            except ArenaFullError:
                if time.monotonic() > end:
                    raise
                time.sleep(CLAIM_PAUSE_S)


def claim(claims: td.Purgatory, op_ids: Sequence[str | bytes]) -> list[str | bytes]:
    """Claim events. Returns the ids of the events that this task has to fire; the others were fired before.

    If another attempt holds a claim, this waits until the claim completes, or until the daemon has cancelled it because
    that attempt has ended. Raises TimerdUnavailableError after FLUSH_TIMEOUT_S.
    """
    end = time.monotonic() + FLUSH_TIMEOUT_S
    mine: list[str | bytes] = []
    while op_ids:
        batch = claims.register_many_wait(
            op_ids,
            timeout=None,  # if a claim expired before the end of its attempt, the event would be lost
            ids=op_ids,
            if_exists="replace_cancelled",
            orphans="cancel",
            receipt_timeout=FLUSH_TIMEOUT_S,
        )
        known = known_ids(batch)
        pending = []
        for row, op_id in enumerate(op_ids):
            error = known.get(row)
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
