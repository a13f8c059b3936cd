"""What numpy accepts without an Audit: only what an Audit would accept, whatever is falsified."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from commands import Key, Register
from falsify import changed, of_kind, record_of, rows_for_audit
from harness import MS, cancel, fire
from journals import JournaledRig
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.fields import fields
from timerd_shm.declare.journal import ROWS, RowKind
from timerd_spark.reports import audit_rows
from timerd_spark.reports.audit_plain import accepted
from timerd_spark.reports.audit_rows import FRAGMENT, Task, join_fragments, pack
from timerd_spark.source.schema import TEXTS

Rows = list[dict[str, Any]]
OF_OPERATIONS = (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY, RowKind.OUTCOME, RowKind.ACTION)


class Judged(NamedTuple):
    """What becomes of a journal's rows."""

    accepted: set[int]  # numbers of the rows that no Audit gets
    found: set[Any]  # what an Audit finds in the others
    wanted: set[Any]  # what an Audit finds in all of them


def plain_program(directory: Path, rng: random.Random) -> Rows:
    """Operations of one key: they complete, expire and are cancelled; several clients use each key again and again."""
    rig = JournaledRig(directory)
    clients = [rig.client() for _ in range(3)]
    for _ in range(120):
        client, key = rng.choice(clients), b"k%d" % rng.randrange(12)
        if rng.random() < 0.5:
            number = client.issue(Register((Key(key),), timeout_ns=rng.choice((MS, 5 * MS, 60 * MS, 0))))
            if rng.random() < 0.2:
                client.issue(cancel(number))
        else:
            client.issue(fire(key))
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
    """What an Audit finds in packed rows."""
    task = Task(("h", "i"), is_first=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_rows, "HELD_MAX", 0)
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
    """Each field and each text of each kind of row, with several other values, in a row that is accepted if one is."""
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
            one, many = rng.choice(those), 1 << (8 * field.storage.size)
            value = getattr(record_of(one), field.name)
            if isinstance(value, bytes):
                others: set[Any] = {b"\1" + value[1:]}
            else:
                others = {value ^ 1, (value + 1) % many, max(value - 1, 0), 0, 2, 3, many - 1, rng.randrange(many)}
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


@pytest.mark.timeout(240)
def test_what_is_accepted_has_no_finding_whatever_is_falsified(
    rows: Rows, schema: pa.Schema, rng: random.Random
) -> None:
    truth = judged(rows, schema)
    assert not truth.found and not truth.wanted
    plain = [len([row for row in of_kind(rows, kind) if row["row"] in truth.accepted]) for kind in
             (RowKind.REGISTER, RowKind.EVENT, RowKind.OUTCOME, RowKind.ACTION)]  # fmt: skip
    assert min(plain) > 0 and sum(plain) > 60, plain
    wrong = 0
    for what, those in lies(rows, truth.accepted, rng):
        lie = judged(those, schema)
        assert lie.found or not lie.wanted, (what, lie.wanted)
        wrong += bool(lie.wanted)
    assert wrong > 250, wrong


def test_rows_that_are_gone_twice_or_elsewhere_are_found_as_by_an_audit_of_all(
    rows: Rows, schema: pa.Schema, rng: random.Random
) -> None:
    for one in rng.sample(rows, 60):
        for times in (0, 2):
            lie = judged([row for row in rows for _ in range(times if row is one else 1)], schema)
            assert lie.found or not lie.wanted, (one["row"], times, lie.wanted)
    for kind in {RowKind(row["bytes"][0]) for row in rows}:
        for _ in range(12):  # two rows change places
            one, other = rng.choice(of_kind(rows, kind)), rng.choice(rows)
            places = {one["row"]: other["row"], other["row"]: one["row"]}
            moved = [{**row, "row": places.get(row["row"], row["row"])} for row in rows]
            lie = judged(sorted(moved, key=lambda row: row["row"]), schema)
            assert lie.found or not lie.wanted, (places, lie.wanted)
