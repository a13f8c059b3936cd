"""Copies of the arena that are made while turns change it show each byte as it was when the copy began."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

import timerd.core
from support.oracle.copies import LINE, SteppedCopy, random_step
from support.oracle.play import Play
from support.rig.commands import Key, Register
from support.rig.faults import core_faults
from support.rig.harness import Rig, S, fire
from support.suite.tiers import in_tiers
from timerd.arena.copier import CopyOverrunError
from timerd.purgatory.twins import UnknownStoreError, logged, twinned
from timerd_shm.declare.errors import InvalidValueError

TURNS = 200
SEEDS = range(1, 11)


def copies_in_a_random_program(seed: int, core: ModuleType) -> tuple[int, int]:
    """Play one program, and make copies that end some turns later. Returns (complete copies, copies given up)."""
    play, rng = Play(seed, core), random.Random(seed)
    copy: SteppedCopy | None = None
    of = play.rig.core
    whole = overrun = 0
    try:
        for turn in range(TURNS):
            if copy is None and rng.random() < 0.5:
                of, copy = play.rig.core, SteppedCopy(play.rig.core, play.rig.memory, rng.choice((50, 1 << 20)))
            play.step()
            play.compare_all()
            if copy is None or rng.random() < 0.5:
                continue
            if play.rig.core is not of:  # the core was killed, and another core has started on its arena
                copy.close()
                copy = None
                continue
            try:
                if rng.random() < 0.3:
                    copy.finish(random_step(rng, len(copy.before)))
                    copy, whole = None, whole + 1
                else:
                    copy.step(random_step(rng, len(copy.before)))
            except CopyOverrunError:
                assert copy is not None
                copy.close()
                copy, overrun = None, overrun + 1
            except AssertionError as error:
                raise AssertionError(f"seed={seed}, turn={turn}: {error}") from error
    finally:
        if copy is not None:
            copy.close()
    return whole, overrun


@pytest.mark.long
@pytest.mark.parametrize("seed", in_tiers(SEEDS, 2))
def test_a_copy_shows_the_arena_as_it_was_when_it_began(seed: int) -> None:
    whole, overrun = copies_in_a_random_program(seed, timerd.core)
    assert whole > TURNS // 40 and overrun, f"seed={seed}: {whole} whole, {overrun} given up"


@pytest.mark.long
@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
@pytest.mark.parametrize("seed", in_tiers(SEEDS, 1))
def test_a_copy_of_a_core_that_is_killed_and_started_shows_one_turn(seed: int) -> None:
    whole, _ = copies_in_a_random_program(seed, core_faults)
    assert whole, f"seed={seed}"


def test_a_copy_in_a_new_program_each_run(seed: int) -> None:
    copies_in_a_random_program(seed, timerd.core)


def test_a_line_is_logged_once_however_often_it_changes() -> None:
    rig = Rig()
    client = rig.client()
    copy = SteppedCopy(rig.core, rig.memory, images_max=200)
    for _ in range(100):
        rig.do(client, Register((Key(b"k"),), timeout_ns=S), fire(b"k"))
        client.acknowledge()
    copy.finish()


def test_an_overrun_copy_raises_and_the_core_goes_on() -> None:
    rig = Rig()
    client = rig.client()
    copy = SteppedCopy(rig.core, rig.memory, images_max=3)
    rig.do(client, Register((Key(b"k"),), timeout_ns=S))
    with pytest.raises(CopyOverrunError, match="more than 3 lines"):
        copy.finish()
    copy.close()
    rig.do(client, fire(b"k"))
    rig.check()
    SteppedCopy(rig.core, rig.memory).finish()


def test_one_copy_is_made_at_a_time_and_a_released_core_ends_its_copy() -> None:
    one, other = Rig(), Rig()
    copy = SteppedCopy(one.core, one.memory)
    with pytest.raises(InvalidValueError, match="is being made"):
        other.core.begin_copy(bytearray(1 << 20))
    one.core.release()
    SteppedCopy(other.core, other.memory).finish()
    copy.close()


def test_a_log_that_is_too_small_is_refused() -> None:
    rig = Rig()
    with pytest.raises(InvalidValueError, match="no log for an arena"):
        rig.core.begin_copy(bytearray(LINE))


# the step of the build that makes functions log before they store -------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "  __pyx_v_op->bucket = 0;",
        "  (__pyx_v_link[0]) = __pyx_v_found;",
        "  (__pyx_v_a->blocks[(__pyx_v_first - 1)]).refs = 1;",
        "  __pyx_f_6timerd_at(__pyx_v_a, __pyx_v_tail)->next = __pyx_v_own;",
        "  __pyx_v_a->header->newest = 7;",
    ],
)
def test_a_store_through_a_pointer_is_logged(line: str) -> None:
    left, right = line.strip().split(" = ")
    assert logged(line) == f"  TD_LOGGED({left}) = {right}"


@pytest.mark.parametrize(
    "line",
    [
        "  __pyx_v_count = __pyx_v_op->bucket;",
        "  __pyx_t_2 = (__pyx_v_a->ops[__pyx_v_i]).state;",
        "  __pyx_v_v.outcome = OUTCOME_NONE;",
        "  __pyx_v_a->turn.now_ns = __pyx_v_now_ns;",
        "  PyObject *__pyx_t_1 = NULL;",
        "  if (__pyx_t_1) {",
        "  __pyx_v_i++;",
    ],
)
def test_a_store_into_a_variable_is_not_logged(line: str) -> None:
    assert logged(line) == line


@pytest.mark.parametrize(
    "line",
    ["  *__pyx_v_p = 3;", "  __pyx_v_op->bucket++;", "  if (__pyx_t_1) __pyx_v_op->bucket = 3;", "  memmove(a, b, 3);"],
)
def test_a_store_that_the_step_does_not_know_ends_the_build(line: str) -> None:
    with pytest.raises(UnknownStoreError):
        logged(line)


def test_a_function_that_stores_gets_a_twin_and_so_does_each_that_calls_it() -> None:
    text, count = twinned(
        "static int __pyx_f_6timerd_9purgatory_read(int *__pyx_v_p) {\n  return __pyx_v_p[0];\n}\n"
        "static CYTHON_INLINE void __pyx_f_6timerd_9purgatory_set(int *__pyx_v_p) {\n  (__pyx_v_p[0]) = 1;\n}\n"
        "static void __pyx_f_6timerd_9purgatory_call(int *__pyx_v_p) {\n"
        "  __pyx_f_6timerd_9purgatory_set(__pyx_v_p);\n}\n"
        "static int __pyx_pf_6timerd_4core_4Core_do(int *__pyx_v_p) {\n"
        "  __pyx_f_6timerd_9purgatory_call(__pyx_v_p);\n}\n"
    )
    assert count == 2
    assert "  TD_LOGGED((__pyx_v_p[0])) = 1;" in text
    assert "  __pyx_f_6timerd_9purgatory_set_logged(__pyx_v_p);" in text
    assert "  __pyx_f_6timerd_9purgatory_call_either(__pyx_v_p);" in text
    assert "read_logged" not in text
