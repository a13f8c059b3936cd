"""numpy accepts some rows without an Audit. An Audit of the other rows still finds that a journal is falsified."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from support.rig.commands import Key, Register
from support.rig.harness import MS, S, cancel, fire
from support.rig.journals import JournaledRig
from support.spark.falsify import changed, of_kind, record_of, rows_for_audit
from support.suite.tiers import in_tiers
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.fields import fields
from timerd_shm.declare.journal import ROWS, RowKind
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import Orphans, Outcome
from timerd_spark.reports import audit_tasks
from timerd_spark.reports.audit_plain import accepted
from timerd_spark.reports.audit_rows import FRAGMENT, join_fragments, pack
from timerd_spark.reports.audit_tasks import Task
from timerd_spark.source.schema import TEXTS

Rows = list[dict[str, Any]]
FORGED, AGREED, MOVED, TWICE, UNORDERED = 250, 100, 8, 40, 20
VARIED = ("command_flags", "orphans", "mark_sequence", "mark_command", "outcome", "sequence", "settled_ns")
OF_OPERATIONS = (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY, RowKind.OUTCOME, RowKind.ACTION)


class Judged(NamedTuple):
    """The judgement of a journal's rows."""

    accepted: set[int]  # numbers of the rows that no Audit gets
    found: set[Any]  # what an Audit finds in the other rows
    wanted: set[Any]  # what an Audit finds in all rows


def plain_program(directory: Path, rng: random.Random) -> Rows:
    """Operations with one key: they complete, expire and are cancelled; several clients use each key again and again.

    One of the keys gets limited events, too. Some operations have two keys, and so are not plain. One client dies, and
    another client begins.
    """
    rig = JournaledRig(directory)
    clients = [rig.client(name=b""), rig.client(), rig.client()]  # most programs give their client no name
    for at in range(120):
        if at == 90:
            rig.turn(rig.now_ns + MS)
            rig.close(clients.pop())
            clients.append(rig.client(Orphans.KEEP))
        if at % 30 == 0:  # a cancellation that is plain, whatever the seed
            rig.turn(rig.now_ns + MS)
            clients[0].issue(cancel(clients[0].issue(Register((Key(b"cancelled%d" % at),), timeout_ns=60 * MS))))
            rig.turn(rig.now_ns + MS)
        client, number = rng.choice(clients), rng.randrange(12)
        key = b"k%d" % number
        if rng.random() < 0.5:
            timeout_ns, orphans = rng.choice((MS, 5 * MS, 60 * MS, 0)), rng.choice((None, None, Orphans.KEEP))
            mark, by_sequence = client.mark() if rng.random() < 0.4 else None, rng.random() < 0.5
            keys = (Key(b"one"), Key(b"other")) if rng.random() < 0.08 else (Key(key),)
            register = Register(keys, timeout_ns=timeout_ns, orphans=orphans, mark=mark)
            command = client.issue(replace(register, mark_by_sequence=by_sequence and mark is not None))
            if rng.random() < 0.2:
                client.issue(cancel(command))
        else:
            client.issue(fire(key, limit=1) if number == 11 and rng.random() < 0.6 else fire(key))
        if rng.random() < 0.5:
            rig.turn(rig.now_ns + rng.randrange(3 * MS))
    rig.turn(rig.now_ns + 100 * MS)
    rig.end()
    assert not audit_journal(directory).wrong
    rows: Rows = rows_for_audit(directory).to_pylist()
    return rows


def judged(rows: Rows, schema: pa.Schema) -> Judged:
    packed = pa.Table.from_batches(pack(pa.Table.from_pylist(rows, schema).to_batches()))
    fragments = packed.filter(pc.equal(packed["kind"], FRAGMENT))
    fragments = fragments.sort_by([("operation", "ascending"), ("row", "ascending")])
    joined = pa.Table.from_batches(join_fragments(fragments.to_batches()), packed.schema)
    packed = pa.concat_tables([packed.filter(pc.greater(packed["kind"], 0)), joined]).sort_by("row")
    mask = accepted(packed)
    found, wanted = findings_of(packed.filter(pa.array(~mask))), findings_of(packed)
    return Judged(set(packed["row"].filter(pa.array(mask)).to_pylist()), found, wanted)


def findings_of(packed: pa.Table) -> set[Any]:
    """The findings of an Audit in packed rows."""
    task = Task(("h", "i"), is_first=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_tasks, "HELD_MAX", 0)
        for rows in packed.to_batches(max_chunksize=50):
            task.take(rows)
        return set(task.findings())


@pytest.fixture
def rows(tmp_path: Path, rng: random.Random) -> Rows:
    return plain_program(tmp_path, rng)


@pytest.fixture
def schema(rows: Rows, tmp_path: Path) -> pa.Schema:
    return rows_for_audit(tmp_path).schema


def lies(rows: Rows, plain: set[int], rng: random.Random) -> Iterator[tuple[str, Rows]]:
    """Falsify each field and text of each kind of row, with several values; in an accepted row if there is one."""
    registers = {record_of(row).operation for row in of_kind(rows, RowKind.REGISTER) if row["row"] in plain}
    for kind in sorted({RowKind(row["bytes"][0]) for row in rows}):
        those = of_kind(rows, kind)
        if kind in OF_OPERATIONS:
            those = [row for row in those if record_of(row).operation in registers] or those
        else:
            those = [row for row in those if row["row"] in plain] or those
        for field in fields(ROWS[kind]):
            if field.name in ("kind", *TEXTS):
                continue
            for one in some_of_each(those, rng) if field.name in VARIED else [rng.choice(those)]:
                value, many = getattr(record_of(one), field.name), 1 << (8 * field.storage.size)
                if isinstance(value, bytes):
                    others: set[Any] = {b"\1" + value[1:]}
                else:
                    others = {value ^ 1, (value + 1) % many, max(value - 1, 0), 0, 3, many - 1, rng.randrange(many)}
                for other in others - {value}:
                    lie = changed(one, **{field.name: other})
                    yield f"{kind.name}.{field.name} = {other!r}", [lie if row is one else row for row in rows]
        for text in TEXTS:
            for other in ("other", "", None):
                one = rng.choice(those)
                if one[text] != other:
                    yield (
                        f"{kind.name}.{text} = {other!r}",
                        [{**row, text: other} if row is one else row for row in rows],
                    )


def some_of_each(rows: Rows, rng: random.Random) -> Rows:
    """A registration with each set of flags, an outcome of each kind, and one other row."""
    by: dict[int, Rows] = {}
    for row in rows:
        record = record_of(row)
        by.setdefault(getattr(record, "command_flags", 0) << 8 | getattr(record, "outcome", 0), []).append(row)
    return [rng.choice(those) for those in by.values()]


def forged(rows: Rows, rng: random.Random) -> Iterator[tuple[str, Rows]]:
    """Forge outcomes that are consistent in themselves, but do not follow from the events: another outcome and place.

    Most are at the first event after the registration: the outcome is on the wrong side of this event, or contradicts
    it.
    """
    registered = {record_of(row).operation: row for row in of_kind(rows, RowKind.REGISTER)}
    settled = [row for row in of_kind(rows, RowKind.OUTCOME) if record_of(row).operation in registered]
    for _ in range(FORGED):
        outcome = rng.choice(settled)
        o = record_of(outcome)
        own = [row for row in of_kind(rows, RowKind.ACTION) if record_of(row).operation == o.operation]
        others = [row for row in rows if row is not outcome and row not in own]
        begin = others.index(registered[o.operation]) + 3
        events = [
            at for at, row in enumerate(others) if row["bytes"][0] == RowKind.EVENT and row["key"] == outcome["key"]
        ]
        behind = [at for at in events if at >= begin]
        state = rng.choice((Outcome.COMPLETED, Outcome.EXPIRED, o.outcome))
        event = behind[0] if behind and rng.random() < 0.8 else rng.choice(events or [begin])
        near = [at for at in (event, event + 1, event + 2) if at >= begin]
        place = rng.choice(near) if near and rng.random() < 0.6 else rng.randrange(begin, len(others))
        turns = [record_of(row).now_ns for row in others[:place] if row["bytes"][0] == RowKind.TURN]
        now_ns = turns[-1] if turns else 0
        sequence = record_of(others[event]).sequence if events else o.sequence
        sequence = max(sequence - (state == Outcome.EXPIRED), 0)
        by = int(state == Outcome.COMPLETED)
        told = changed(outcome, outcome=state, settled_key=by, settled_ns=now_ns, sequence=sequence)
        put = [changed(row, applied_ns=now_ns) for row in own] if state == Outcome.CANCELLED else []
        lie = [*others[:place], *put, told, *others[place:]]
        at = f"operation {o.operation} {Outcome(state).name} at place {place} by {sequence}"
        yield at, numbered_anew(lie, rows)


def moved(rows: Rows, rng: random.Random) -> Iterator[tuple[str, Rows]]:
    """Move rows of clients, so that commands of a client are before its beginning or after its end."""
    for one in of_kind(rows, RowKind.CLIENT):
        for _ in range(MOVED):
            others = [row for row in rows if row is not one]
            place = rng.randrange(len(others))
            yield f"{record_of(one)} at place {place}", numbered_anew([*others[:place], one, *others[place:]], rows)


def unordered(rows: Rows, rng: random.Random) -> Iterator[tuple[str, Rows]]:
    """In rows of each kind that has the number of a command, change this number, so that the numbers do not rise."""
    numbered = [row for kind in (RowKind.REGISTER, RowKind.EVENT, RowKind.ACTION) for row in of_kind(rows, kind)]
    of_several = [row for row in of_kind(rows, RowKind.REGISTER) if record_of(row).keys > 1]
    for one in (*of_several, *rng.sample(numbered, UNORDERED)):
        for by in (-10_000, -3, -1, 1, 3):
            lie = changed(one, command=max(record_of(one).command + by, 0))
            yield f"command of row {one['row']} {by:+}", [lie if row is one else row for row in rows]


def forgotten(rows: Rows, rng: random.Random) -> Iterator[tuple[str, Rows]]:
    """Leave out outcomes, such as those of a dead client's operations; and give one number to two operations."""
    settled = of_kind(rows, RowKind.OUTCOME)
    for one in settled:
        yield f"no outcome of {record_of(one).operation}", numbered_anew([row for row in rows if row is not one], rows)
    registered = of_kind(rows, RowKind.REGISTER)
    for _ in range(TWICE):
        first, again = (
            record_of(row).operation for row in sorted(rng.sample(registered, 2), key=lambda row: row["row"])
        )
        lie = []
        for row in rows:
            if row["bytes"][0] in OF_OPERATIONS and record_of(row).operation == again:
                if row["bytes"][0] in (RowKind.OUTCOME, RowKind.ACTION):
                    continue
                row = {**changed(row, operation=first), "operation": first}
            lie.append(row)
        yield f"operation {again} has the number {first}", numbered_anew(lie, rows)


def numbered_anew(lie: Rows, rows: Rows) -> Rows:
    """The rows in this order, with the numbers of the true rows. The last row keeps its number: its bytes state it."""
    numbers = [row["row"] for row in rows]
    return [{**row, "row": number} for row, number in zip(lie[:-1], numbers, strict=False)] + lie[-1:]


def agreed(rows: Rows, rng: random.Random) -> Iterator[tuple[str, Rows]]:
    """Change the time of a call, its deadline, or both, in all rows of the operation, so that these rows agree."""
    for _ in range(AGREED):
        one = record_of(rng.choice(of_kind(rows, RowKind.REGISTER)))
        names = rng.choice((["registered_ns"], ["deadline_ns"], ["registered_ns", "deadline_ns"]))
        by = rng.choice((-one.registered_ns, -MS, -1, 1, 300 * MS, 3 * S, one.deadline_ns - one.registered_ns))
        values = {name: min(max(getattr(one, name) + by, 0), NO_DEADLINE) for name in names}
        lie = []
        for row in rows:
            is_own = row["bytes"][0] in OF_OPERATIONS and record_of(row).operation == one.operation
            its = {name: value for name, value in values.items() if is_own and hasattr(record_of(row), name)}
            lie.append(changed(row, **its) if its else row)
        yield f"operation {one.operation}: {values}", lie


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("every", "lies_least", "liars_least"), in_tiers([(8, 12, 0), (1, 251, 6)], 1))
def test_accepted_rows_have_no_finding_whatever_is_falsified(
    every: int, lies_least: int, liars_least: int, rows: Rows, schema: pa.Schema, rng: random.Random
) -> None:
    """`make test` judges every eighth lie, from a random one on; `make test-long` judges all."""
    truth = judged(rows, schema)
    assert not truth.found and not truth.wanted
    plain = [len([row for row in of_kind(rows, kind) if row["row"] in truth.accepted]) for kind in
             (RowKind.REGISTER, RowKind.OUTCOME, RowKind.ACTION)]  # fmt: skip
    assert min(plain) > 0 and sum(plain) > 40, plain
    owners = {row["owner"] for row in of_kind(rows, RowKind.OUTCOME) if row["row"] in truth.accepted}
    assert "" in owners and len(owners) > 1, owners
    wrong = 0
    for what, those in islice(lies(rows, truth.accepted, rng), rng.randrange(every), None, every):
        lie = judged(those, schema)
        assert lie.found or not lie.wanted, (what, lie.wanted)
        wrong += bool(lie.wanted)
    assert wrong >= lies_least, wrong
    for liars in (forged, agreed, moved, forgotten, unordered):
        wrong = 0
        for what, those in islice(liars(rows, rng), rng.randrange(every), None, every):
            lie = judged(those, schema)
            assert lie.found or not lie.wanted, (what, lie.wanted)
            wrong += bool(lie.wanted)
        assert wrong >= liars_least, (liars, wrong)


@pytest.mark.long
def test_rows_that_are_missing_repeated_or_moved_are_found(rows: Rows, schema: pa.Schema, rng: random.Random) -> None:
    for one in rng.sample(rows, 60):
        for times in (0, 2):
            lie = judged([row for row in rows for _ in range(times if row is one else 1)], schema)
            assert lie.found or not lie.wanted, (one["row"], times, lie.wanted)
    for kind in {RowKind(row["bytes"][0]) for row in rows}:
        for _ in range(40 if kind == RowKind.CLIENT else 12):  # two rows change places
            one, other = rng.choice(of_kind(rows, kind)), rng.choice(rows)
            places = {one["row"]: other["row"], other["row"]: one["row"]}
            moved = [{**row, "row": places.get(row["row"], row["row"])} for row in rows]
            lie = judged(sorted(moved, key=lambda row: row["row"]), schema)
            assert lie.found or not lie.wanted, (places, lie.wanted)
