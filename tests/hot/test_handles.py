"""The state of a handle of `register`: how its operation has settled, its id, its callbacks."""

from __future__ import annotations

import gc
import random
import sys
from functools import partial
from typing import Any

import pytest

from hot.clientprogram import Program
from timerd_client import hot
from timerd_client.hot.ids import Ids
from timerd_client.link.operation import ThreadedOperation
from timerd_client.outcome import Outcome, State
from timerd_client.waiter import local
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.fields import fields, size_of, struct_of
from timerd_shm.declare.wire import OutcomeRecord, ReportHeader

NUMBER, ARENA = 9, 77
USUAL = OutcomeRecord(NUMBER, 3, 5 << 32, 2_000, 1_500, 1_000, 6, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0)
LENGTHS = (0, 1, 7, 8, 9, 39, 40, 41, 253, 254, 255, 256, 65_536)


def operation_of(number: int = NUMBER) -> ThreadedOperation:
    return ThreadedOperation(None, number, "k", b"", 0)


def settled_by(record: OutcomeRecord, heap: bytes = b"") -> tuple[ThreadedOperation, bytes]:
    """An operation that a report with this record has settled, and the bytes of the record."""
    operation, row = operation_of(record.command), struct_of(OutcomeRecord).pack(*record)
    pending, ready = hot.Pending(), list[Any]()
    pending[record.command] = operation
    hot.settle_all(pending, ready, bytes(size_of(ReportHeader)) + row + heap, 1, 0, ARENA, lambda *unclaimed: None, {})
    assert operation.done() and not ready and not pending
    return operation, row


# how it has settled ----------------------------------------------------------------------------------------------


def assert_keeps(record: OutcomeRecord, heap: bytes, value: bytes) -> None:
    operation, row = settled_by(record, heap)
    for _ in range(2):  # a second read gives the same
        assert operation._settlement == (row, value, ARENA, None), record
    into = bytearray(4 + len(row))
    assert hot.copy_records([operation], into, 4) and into == bytes(4) + row, record


@pytest.mark.parametrize("field", [field.name for field in fields(OutcomeRecord) if field.name != "command"])
def test_each_field_of_a_record_is_kept_at_any_size(field: str) -> None:
    size = next(each.storage.size for each in fields(OutcomeRecord) if each.name == field)
    heap = b"0123456789"
    for bits in range(8 * size + 1):
        for number in {(1 << bits) - 1, 1 << bits} - {1 << 8 * size}:
            record = USUAL._replace(value_length=4)._replace(**{field: number})
            value = heap[record.heap_offset : record.heap_offset + record.value_length]
            assert_keeps(record, heap, value)


def test_values_of_any_length_are_kept(seed: int) -> None:
    rng = random.Random(seed)
    for length in LENGTHS:
        value, before = rng.randbytes(length), rng.randbytes(rng.randrange(4))
        assert_keeps(USUAL._replace(heap_offset=len(before), value_length=length), before + value + b"behind", value)
        outcome = settled_by(USUAL._replace(value_length=length), value)[0].outcome()
        assert outcome is not None and (outcome.state, outcome.value) == (State.COMPLETED, value)


def test_the_first_settlement_counts() -> None:
    refused = local(ClosedError("the test"))
    operation, row = settled_by(USUAL)
    assert not operation.settle(NUMBER, refused)
    assert operation._settlement == (row, b"", ARENA, None)
    operation = operation_of()
    assert operation._settlement is None and operation.outcome() is None
    assert operation.settle(NUMBER, refused) is False
    assert operation._settlement == refused and not hot.copy_records([operation], bytearray(96), 0)
    outcome = operation.outcome()
    assert outcome is not None and outcome.error is refused.error


def test_an_outcome_outlives_its_handle() -> None:
    outcomes: list[Outcome | None] = []
    for length in LENGTHS:
        outcomes.append(settled_by(USUAL._replace(value_length=length), bytes(length))[0].outcome())
    assert [len(outcome.value) for outcome in outcomes if outcome is not None] == [*LENGTHS]
    assert {outcome.wait_ns for outcome in outcomes if outcome is not None} == {1_000}


def test_an_operation_that_its_callback_refers_to_is_released_when_it_settles() -> None:
    program, payload, seen = Program(1), b"the payload of this test", list[bool]()

    def note(operation: ThreadedOperation, _: object) -> None:
        seen.append(operation.done())

    before = sys.getrefcount(payload)
    gc.disable()  # counts of references alone release it
    try:
        for _ in range(100):
            operation = program.purgatory.register("key", timeout=5, payload=payload)
            operation.add_done_callback(partial(note, operation))
        del operation
        assert sys.getrefcount(payload) - before >= 100
        program.exchange()
        program.purgatory.fire("key")
        program.exchange()
        assert seen == [True] * 100
        assert sys.getrefcount(payload) - before < 10
    finally:
        gc.enable()


def test_a_class_derived_from_an_operation_may_have_attributes() -> None:
    class Mine(ThreadedOperation):
        def __init__(self, number: int, payload: bytes) -> None:
            super().__init__(None, number, "k", payload, 0)
            self.myself = self

    payload = b"the payload of this test"
    before = sys.getrefcount(payload)
    for number in range(1, 1_001):
        mine = Mine(number, payload)
        assert mine.settle(number, local(ClosedError("the test"))) is False and mine.outcome() is not None
    assert mine.myself is mine
    del mine
    gc.collect()
    assert sys.getrefcount(payload) - before < 50


# ids -------------------------------------------------------------------------------------------------------------


def test_an_id_names_its_operation_while_the_operation_is_pending() -> None:
    program = Program(1)
    register = program.purgatory.register
    first = register("key", timeout=5, id="id")
    assert register("key", timeout=5, id="id", if_exists="keep") is first
    assert register("key", timeout=5, id=b"id", if_exists="keep") is first
    assert register("key", timeout=5, id="other", if_exists="keep") is not first
    program.link.protocol.ledger.pending.pop(first.command)
    assert first.settle(first.command, local(ClosedError("the test"))) is False
    second = register("key", timeout=5, id="id", if_exists="keep")
    assert second is not first
    third = register("key", timeout=5, id="id", if_exists="replace")
    assert register("key", timeout=5, id="id", if_exists="keep") is third


def test_an_id_names_no_operation_whose_number_was_used_again() -> None:
    program = Program(1)
    ledger, register = program.protocol.ledger, program.purgatory.register
    first = register("key", timeout=5, id="id")
    program.protocol._begin_anew(program.now)
    while ledger.issued < first.command:
        register("key", timeout=5)
    assert ledger.pending.get(first.command) is not None and first.done()
    kept = register("key", timeout=5, id="id", if_exists="keep")
    assert kept.command == ledger.issued and kept is not first


def test_ids_of_settled_operations_are_forgotten(seed: int) -> None:
    rng = random.Random(seed)
    ids, pending, most = Ids(), dict[int, object](), 0
    for number in range(1, 20_001):
        pending[number] = object()
        ids.add(pending, "default", number.to_bytes(16, "little"), number)
        if len(pending) > 700:
            del pending[rng.choice([*pending][:100])]
        most = max(most, len(ids))
    assert most <= 2_048, f"{most} entries, of which {len(pending)} are pending"
    for number in range(1, 20_001):
        assert ids.find(pending, "default", number.to_bytes(16, "little")) is pending.get(number)
        assert ids.find(pending, "other", number.to_bytes(16, "little")) is None
