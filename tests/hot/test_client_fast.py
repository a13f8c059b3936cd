"""The compiled fast path of the client does what its model in Python does, frame by frame and outcome by outcome."""

from __future__ import annotations

import gc
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from hot import clientprogram, modelprogram
from hot import hotmodel as slow
from hot.clientprogram import Program
from support.fakes.lazies import lazy_of
from support.real.trees import ROOT, python_path
from support.suite.tiers import in_tiers
from timerd_client import hot as fast
from timerd_client.conditions import When
from timerd_client.hot.commands import NOTHING
from timerd_client.link.operation import ThreadedOperation
from timerd_client.threaded.purgatory import Purgatory
from timerd_shm.declare.errors import ClosedError, InvalidValueError, TimerdError
from timerd_shm.declare.fields import size_of, struct_of
from timerd_shm.declare.states import Condition
from timerd_shm.declare.wire import OutcomeRecord, ReportHeader

PLAYS = 4  # of the measurement of a handle
PROGRAMS = int(os.environ.get("TIMERD_PROGRAMS", "24"))
PATIENCE_S = 30


# the same as the model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("programs", in_tiers([5, PROGRAMS], 1))
def test_the_hot_path_and_its_model_do_the_same_in_random_programs(programs: int, seed: int) -> None:
    traces = []
    for program, used in ((modelprogram, slow), (clientprogram, fast)):
        words = [sys.executable, str(program.__file__), str(seed), str(programs)]
        environment = os.environ | {"PYTHONPATH": python_path()}
        ran = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        traces.append(ran.stdout.splitlines())
        assert json.loads(traces[-1][0]) == used.__file__
    assert len(traces[0]) == len(traces[1]) == programs + 1
    for number, (model, compiled) in enumerate(zip(traces[0][1:], traces[1][1:], strict=True), start=seed):
        for line, (one, other) in enumerate(zip_longest(json.loads(model), json.loads(compiled))):
            assert one == other, f"line {line} of the trace of clientprogram {number} 1"


def test_a_difference_between_the_traces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(program: Program) -> list[str]:
        for _ in range(60):
            program.step()
        program.end()
        return program.trace

    usual = trace(Program(5))
    assert trace(Program(5)) == usual
    monkeypatch.setattr("timerd_client.protocol.outgoing.COMMANDS_PER_FRAME_MAX", 2)
    assert trace(Program(5)) != usual


def members(module: ModuleType) -> Iterator[tuple[str, list[str] | None]]:
    """The names that hot/ exports, and the public members that its classes have in the model, with their parameters."""
    for name in fast.__all__:
        model, found = getattr(slow, name), getattr(module, name)
        if not isinstance(model, type):
            yield name, parameters(found)
            continue
        for member, value in vars(model).items():
            if not member.startswith("_"):
                one = getattr(found, member, None)
                yield f"{name}.{member}", None if one is None else parameters(one) if callable(value) else []


def parameters(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


def test_the_hot_path_and_its_model_have_the_same_names_and_parameters() -> None:
    assert dict(members(fast)) == dict(members(slow))


def test_register_and_fire_have_the_signatures_of_their_general_methods() -> None:
    for name in ("register", "fire"):
        method = getattr(Program(1).purgatory, name)
        general = inspect.unwrap(method.__func__)
        assert (method.__doc__, method.__name__) == (general.__doc__, name)
        assert inspect.signature(method.__func__) == inspect.signature(general)


def test_the_table_of_pending_operations_behaves_like_a_dict(seed: int) -> None:
    rng = random.Random(seed)
    table, model = fast.Pending(), slow.Pending()
    waiters = [ThreadedOperation(None, number, "k", b"", 0) for number in range(5)]
    before = [sys.getrefcount(waiter) for waiter in waiters]
    first = 1
    for _ in range(3_000):
        numbers = [*model, 0, first, 1 << 63, (1 << 64) - 1, -1, 1 << 64]
        number, waiter = rng.choice(numbers[-40:] + numbers[:40]), rng.choice(waiters)
        match rng.randrange(6):
            case 0 | 1:
                rows = rng.choice((0, 1, 2, 15, 16, 30, 200))
                table.add_all(first, rows, waiter)
                model.add_all(first, rows, waiter)
                first += rows + rng.choice((0, 0, 1, 1 << 20))
            case 2 | 3:
                assert table.pop(number, None) is model.pop(number, None)
            case 4:
                assert table.get(number) is model.get(number) and (number in table) is (number in model)
            case 5:
                model[first] = table[first] = waiter
                first += 1
        assert len(table) == len(model)
    assert list(table) == sorted(model) and list(table.items()) == sorted(model.items())
    if rng.random() < 0.5:  # the other half of the runs ends with pending entries
        for number in [*model]:
            assert table.pop(number, None) is model.pop(number)
        assert len(table) == 0 and list(table) == []
    del table, model, waiter
    grown = [sys.getrefcount(waiter) - count for waiter, count in zip(waiters, before, strict=True)]
    assert all(abs(each) < 50 for each in grown), f"after 3,000 rounds: {grown}"


def test_pending_operations_are_found_up_to_the_last_command_number() -> None:
    end, waiter = 1 << 64, object()
    numbers = [*range(1, 21), *range(end - 40, end)]
    for module in (fast, slow):
        table = module.Pending()
        for first in (end - 40, end - 20, 1):  # the last numbers, and then the first ones, out of order
            table.add_all(first, 20, waiter)
        assert sorted(table) == numbers and len(table) == 60
        assert [number for number in numbers if table.pop(number, None) is waiter] == numbers
        assert len(table) == 0


class Waiter:
    """An object that may have a finalizer."""


def test_an_entry_whose_finalizer_writes_its_slot_again_is_safe() -> None:
    last = object()
    before = sys.getrefcount(last)
    for module in (fast, slow) * 500:
        table = module.Pending()
        weakref.finalize(one := Waiter(), table.__setitem__, 5, last)
        table[5] = one
        del one
        table[5] = object()
        assert table[5] is last and len(table) == 1
        assert table.pop(5) is last and len(table) == 0
        del table
    assert abs(sys.getrefcount(last) - before) < 50, "after 1,000 rounds"


def test_the_ledger_of_commands_behaves_like_a_list(seed: int) -> None:
    rng = random.Random(seed)
    one, other = fast.Ledger(100), slow.Ledger(100)
    for _ in range(2_000):
        assert (one.issued, one.applied, one.kept) == (other.issued, other.applied, other.kept)
        kept = range(other.applied + 1, other.issued + 1)
        command = bytes((rng.randrange(3), rng.randrange(5))) + rng.randbytes(rng.choice((25, 32, 60, 300, 70_000)))
        command, count = rng.choice((NOTHING, command)), rng.randrange(20)
        number = rng.choice(kept) if kept else 0
        does = rng.randrange(8)
        for ledger in (one, other):
            if does < 3:
                assert ledger.issue_all([command] * (count % 3)) == kept.stop
            elif does == 3:
                assert ledger.issue(command) == kept.stop
            elif does == 4 and kept:
                ledger.replace(number, command)
            elif does == 5 and kept:
                ledger.drop(number)
            elif does == 6 and count == 0:
                ledger.begin_after(3)
            elif does == 7:
                ledger.move_purgatories({1: 3, 3: 1})
        if one.issued > one.applied:
            number = rng.randrange(one.applied + 1, one.issued + 1)
            fits = one.fit(number, count + 1, 100_000)
            assert fits == other.fit(number, count + 1, 100_000)
            assert one.join(b"head", number, fits) == other.join(b"head", number, fits)
            assert one.command(number) == other.command(number)
    with pytest.raises(IndexError):
        one.command(one.issued + 1)
    with pytest.raises(IndexError):
        one.join(b"", one.issued, 2)


# what the compiled code alone has ---------------------------------------------------------------------------------


def test_an_operation_is_not_tracked_by_the_garbage_collector() -> None:
    program = Program(1)
    program.protocol.ledger.window = 1 << 20
    gc.collect()
    before = len(gc.get_objects())
    made = [program.purgatory.register(f"key/{number}", timeout=5) for number in range(1_000)]
    assert not gc.is_tracked(made[0])
    assert len(gc.get_objects()) - before < 50


def test_a_class_of_operations_with_fields_of_its_own_keeps_the_collector() -> None:
    class Mine(ThreadedOperation):
        pass

    with pytest.raises(TypeError, match="no Handle without fields"):
        fast.without_collector(Mine)
    with pytest.raises(TypeError, match="no Handle without fields"):
        fast.without_collector(fast.Rows)  # type: ignore[type-var]


def rounded(size: int) -> int:
    """The bytes that Python's allocator takes for an object of the given size."""
    return (size + 15) // 16 * 16


def settling_report(first: int, rows: int, value: bytes) -> bytes:
    """A report in which the operations with these command numbers complete, all with this value."""
    pack = struct_of(OutcomeRecord).pack
    records = [
        pack(first + row, row + 1, row, 2_000, 1_500, 1_000, 6, 1, 0, 0, len(value), 0, 0, 0, 1, 1, 1, 0)
        for row in range(rows)
    ]
    return bytes(size_of(ReportHeader)) + b"".join(records) + value


def test_a_handle_takes_at_most_200_bytes_while_it_is_pending() -> None:
    """Three things count, rounded up as Python's allocator does: the object (80 bytes), its key of 17 characters (80),
    to which nothing else refers, and its share of the table of pending operations (28), which is largest just after
    the table has grown. The payload does not count, because the caller has it. Nor does the command, which is
    acknowledged.

    A settled handle takes 160 bytes and its key: the object, and one block for its record and a value of 8 bytes.
    """
    program = Program(1)
    ledger, register, payload = program.protocol.ledger, program.purgatory.register, bytes(100)
    count = 3 * (4_096 * 3 // 4) + 3
    ledger.window = 4 * count

    def play() -> tuple[float, float, list[ThreadedOperation]]:
        """Bytes that are allocated for a pending handle, and for a settled one."""
        made: list[ThreadedOperation] = []
        start = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            made.append(register(f"request/{number:09}", timeout=5, payload=payload))
        ledger.drop(ledger.issued)
        pending = tracemalloc.get_traced_memory()[0] - start - sys.getsizeof(made)
        report = settling_report(made[0].command, count, b"8 bytes.")
        fast.settle_all(ledger.pending, [], report, count, 0, 77, lambda *unclaimed: None, {})
        del report
        register("another", timeout=5)  # so the table, which is empty, shrinks
        settled = tracemalloc.get_traced_memory()[0] - start - sys.getsizeof(made)
        assert len(ledger.pending) <= PLAYS and all(one.done() for one in made)
        return pending / count, settled / count, made

    tracemalloc.start()
    try:
        play()  # allocates what is allocated only once: the memory for commands
        # Threads that other tests have left may allocate meanwhile. So the least of several figures counts.
        played = [play() for _ in range(PLAYS - 1)]
        pending, settled, made = min(each[0] for each in played), min(each[1] for each in played), played[0][2]
    finally:
        tracemalloc.stop()
    key = sys.getsizeof(made[0].keys[0])
    assert sys.getsizeof(made[0]) == rounded(80)
    pending, settled = (size - key for size in (pending, settled))  # without the key, whose size CPython 3.12 changed
    assert 105 < pending <= 200 - rounded(key)
    assert 155 < settled <= 160 + 1


def test_a_long_value_of_one_event_is_one_object_for_all_its_operations() -> None:
    program = Program(1)
    made = [program.purgatory.register("key", timeout=5) for _ in range(3)]
    program.exchange()
    program.purgatory.fire("key", value=bytes(1_000))
    program.exchange()
    values = [one._settlement[1] for one in made]
    assert [len(value) for value in values] == [1_000] * 3
    assert values[0] is made[0]._settlement[1], "reading makes no copy"


def test_dropped_operations_are_released_when_they_settle() -> None:
    program = Program(1)
    payload = b"the payload of this test"
    before = sys.getrefcount(payload)
    for _ in range(1_000):
        program.purgatory.register("key", timeout=5, payload=payload)
    assert sys.getrefcount(payload) - before > 950
    program.exchange()
    program.purgatory.fire("key")
    program.exchange()
    assert abs(sys.getrefcount(payload) - before) < 50


def test_a_call_waits_for_the_holder_of_the_lock() -> None:
    program = Program(1)
    link = program.link
    made: list[ThreadedOperation] = []
    caller = threading.Thread(target=lambda: made.append(program.purgatory.register("key", timeout=5)))
    with link.lock:
        issued = program.protocol.ledger.issued
        caller.start()
        caller.join(0.05)
        assert (program.protocol.ledger.issued, made) == (issued, [])
        program.protocol.ledger.issue(NOTHING)
    caller.join(PATIENCE_S)
    assert [one.command for one in made] == [issued + 2] == [program.protocol.ledger.issued]


def test_calls_of_many_threads_have_a_number_each() -> None:
    program = Program(1)
    program.protocol.ledger.window = 1 << 20
    interval = sys.getswitchinterval()
    made: list[list[ThreadedOperation]] = [[] for _ in range(4)]

    def call(mine: list[ThreadedOperation]) -> None:
        for number in range(2_000):
            mine.append(program.purgatory.register(f"{number}", timeout=5, payload=b"payload"))
            program.purgatory.fire("other")

    threads = [threading.Thread(target=call, args=(mine,)) for mine in made]
    sys.setswitchinterval(1e-6)
    try:
        issued = program.protocol.ledger.issued
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(interval)
    assert program.protocol.ledger.issued - issued == 16_000
    numbers = sorted(operation.command for mine in made for operation in mine)
    assert len(set(numbers)) == len(numbers) == 8_000
    assert [number for number in program.protocol.ledger.pending] == numbers
    for mine in made:
        for number, operation in enumerate(mine):
            assert program.protocol.ledger.command(operation.command).endswith(f"{number}".encode() + b"payload")


def test_a_closed_client_refuses_calls() -> None:
    program = Program(1)
    program.link.sealed = True
    with pytest.raises(ClosedError):
        program.purgatory.register("key", timeout=5)
    with pytest.raises(ClosedError):
        program.purgatory.fire("key")


@pytest.mark.parametrize("parts", [(), (Condition.AT_LEAST,), (Condition.AT_LEAST, 1)])
def test_a_condition_of_too_few_parts_raises_and_is_not_read_beyond_its_end(parts: tuple[int, ...]) -> None:
    """The class checks its arguments, but tuple.__new__ makes a condition without this check."""
    purgatory = Program(1).purgatory
    for register, keys in ((purgatory.register, ["k", "j"]), (purgatory.register_many, [["k", "j"]])):
        with pytest.raises((TimerdError, IndexError, TypeError)):
            cast(Callable[..., object], register)(keys, timeout=1, when=tuple.__new__(When, parts))


def test_a_payload_that_is_neither_true_nor_false_is_refused_by_name() -> None:
    """An array of numpy is an example."""

    class Array:
        def __bool__(self) -> bool:
            raise ValueError("the truth value of an array is ambiguous")

    for payload in (Array(), 0, "", None):
        with pytest.raises(InvalidValueError, match="a payload is bytes"):
            Program(1).purgatory.register("k", timeout=1, payload=cast(bytes, payload))


def test_a_mark_of_a_released_arena_raises_and_reads_no_memory() -> None:
    program = Program(1)
    words = memoryview(bytearray(64)).cast("Q")
    program.protocol.ledger.use_arena(words, 3)
    words.release()
    with pytest.raises(ValueError, match="released"):
        program.protocol.ledger.newest()
    with pytest.raises(ValueError, match="released"):
        program.purgatory.register("key", timeout=5)


# where it is not built --------------------------------------------------------------------------------------------


def test_a_tree_that_was_never_compiled_says_what_was_not_built_and_the_remedy(tmp_path: Path) -> None:
    for package in ("shm_layout/timerd_shm", "client/timerd_wire", "client/timerd_client"):
        left_out = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / package, tmp_path / Path(package).name, ignore=left_out)
    libraries = [path for path in sys.path if "site-packages" in path]
    program = f"import sys; sys.path[:0] = {[str(tmp_path), *libraries]}; import timerd_client"
    ran = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True)
    said = "No module named 'timerd_client.hot.calls': it was not built; install a wheel, or run `make build`"
    assert f"ImportError: {said}" in ran.stderr


# a call that waits -------------------------------------------------------------------------------------------------


CALLS_OF_A_PURGATORY: dict[str, Callable[[Purgatory], object]] = {
    "fire": lambda p: p.fire("k"),
    "fire with a limit": lambda p: p.fire("k", limit=1),
    "fire_many": lambda p: p.fire_many(["k"]),
    "advance": lambda p: p.advance("k", 1),
    "fail": lambda p: p.fail("k"),
    "cancel_for_key": lambda p: p.cancel_for_key("k"),
    "forget": lambda p: p.forget("k"),
    "register": lambda p: p.register("k", timeout=1),
    "register with an id": lambda p: p.register("k", timeout=1, id="i"),
    "register_many": lambda p: p.register_many(["k"], timeout=1),
}


@pytest.mark.parametrize("call", CALLS_OF_A_PURGATORY)
@pytest.mark.parametrize("while_it", ("waits for room", "waits for the lock"))
def test_a_call_that_waited_uses_the_index_that_its_purgatory_has_then(call: str, while_it: str) -> None:
    """Meanwhile another arena gives "fetch" another index. The old index may be that of another purgatory there."""
    program = Program(1)
    program.exchange()
    link, ledger, indices = program.link, program.protocol.ledger, program.protocol.session.purgatories
    indices["fetch"] = 2
    purgatory = Purgatory(cast(Any, lazy_of(link)), "fetch", ThreadedOperation)
    if while_it == "waits for room":
        room, ledger.window = ledger.window, 0

        def make_room() -> None:
            indices["fetch"], ledger.window = 1, room

        link.sender.make_room = make_room  # type: ignore[method-assign]
        CALLS_OF_A_PURGATORY[call](purgatory)
    else:
        link.lock.acquire()
        thread = threading.Thread(target=CALLS_OF_A_PURGATORY[call], args=(purgatory,))
        thread.start()
        thread.join(0.05)  # time for the call to reach the lock
        indices["fetch"] = 1
        link.lock.release()
        thread.join(PATIENCE_S)
    assert ledger.command(ledger.issued)[1] == 1
