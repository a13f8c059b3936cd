"""Random programs on the compiled core and the simple model give the same outcomes and answers, and a sound arena.

Clients die, fall silent, come back, requeue grants, and leave their operations to groups. The model does not know which
member gets a group's outcome. It demands that each outcome is delivered unchanged, to one member at a time, until it is
done.

The message of a failure has its seed: `run(seed)` plays this program again.
"""

from __future__ import annotations

from types import ModuleType

import pytest

import timerd.core
from support.oracle.play import Play
from support.rig.faults import core_faults
from support.suite.tiers import in_tiers
from timerd_shm.declare.errors import ErrorCode

TURNS = 300
SEEDS = range(1, 11)


def run(seed: int, core: ModuleType = timerd.core, turns: int = TURNS, knobs: dict[str, int] | None = None) -> Play:
    """Play one program."""
    play = Play(seed, core, more=knobs)
    for turn in range(turns):
        try:
            play.step()
            play.compare_all()
        except AssertionError as error:
            raise AssertionError(f"seed={seed}, turn={turn}: {error}") from error
    play.everything_is_delivered_at_the_end()
    return play


@pytest.mark.long
@pytest.mark.parametrize("seed", in_tiers(SEEDS, 2))
def test_the_core_does_what_the_model_does(seed: int) -> None:
    play = run(seed)
    print(
        f"seed {seed}: {play.steps} commands in {TURNS} turns; {play.deaths} deaths, {play.returns} came back; "
        f"{play.rig.arena.count('requeued')} requeued, {len(play.deliveries)} delivered to groups, {play.done} done"
    )
    assert play.steps > TURNS, f"seed={seed}: only {play.steps} commands"


def test_the_core_does_what_the_model_does_in_a_new_program_each_run(seed: int) -> None:
    run(seed)


@pytest.mark.long
@pytest.mark.parametrize(
    "knobs", [{"watermarks": 2}, {"nodes": 8}, {"watermarks": 3, "nodes": 16, "quota_operations": 64}], ids=str
)
@pytest.mark.parametrize("seed", in_tiers(SEEDS[:2], 1))
def test_with_few_watermarks_and_nodes_the_core_refuses_the_commands_that_the_model_refuses(
    seed: int, knobs: dict[str, int]
) -> None:
    play = run(seed, knobs=knobs)
    codes = {answer.code for _, model in play.sides + play.dead for answer in model.answers}
    assert codes & {ErrorCode.QUOTA_EXCEEDED, ErrorCode.ARENA_FULL}


@pytest.mark.long
@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
@pytest.mark.parametrize("seed", in_tiers(SEEDS[:6], 2))
def test_a_core_killed_at_any_instruction_does_what_the_model_does(seed: int) -> None:
    """The same programs. In many turns the core is killed at a random ordering point, and a new core goes on."""
    play = run(seed, core_faults)
    print(f"seed {seed}: {play.steps} commands, {play.crashes} crashes in {TURNS} turns")
    assert play.crashes > TURNS // 20, f"seed={seed}: only {play.crashes} crashes"
