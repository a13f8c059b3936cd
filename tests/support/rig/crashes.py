"""A crash at each ordering point of a situation: the arenas that these crashes would leave, and a start on each."""

from __future__ import annotations

from functools import lru_cache

from support.oracle.truth import Truth, truth
from support.rig.acts import Act
from support.rig.arenas import violations
from support.rig.faults import core_faults
from support.rig.harness import BUDGET, Rig
from support.rig.situations import SERIES, SITUATIONS
from timerd_shm.declare.layout import REDO_OFFSET, REGIONS_OFFSET

POINTS_MAX = 20_000


def record(rig: Rig, act: Act) -> list[bytes]:
    """The distinct arenas that a crash would leave while `act` runs."""
    core_faults.record(POINTS_MAX)
    try:
        act(rig)
    finally:
        copies = core_faults.snapshots()
    assert len(copies) < POINTS_MAX, f"more than {POINTS_MAX} ordering points"
    return list(dict.fromkeys(copies))


def known(rig: Rig) -> bytes:
    """The bytes from which a daemon goes on: its arena without the redo slot. A start makes the slot count as empty."""
    return b"".join((rig.memory[:REDO_OFFSET], bytes(REGIONS_OFFSET - REDO_OFFSET), rig.memory[REGIONS_OFFSET:]))


@lru_cache(maxsize=64)
def look(arena: bytes) -> tuple[list[str], Truth]:
    """The violations in an arena, and its promises. They are cached, because many crashes leave the same arena."""
    return violations(arena), truth(arena)


def resume(rig: Rig) -> Rig:
    while rig.core.resume(rig.now_ns, BUDGET):
        pass
    return rig


def recovers_from_a_crash_at_every_point(name: str) -> int:
    """Play a situation. Returns the number of points. Points from which a start makes the same arena are tried once."""
    rig = Rig(core=core_faults, dead_letters=1)
    act = SITUATIONS[name](rig)
    before = truth(rig.memory)
    copies = record(rig, act)
    after = truth(rig.memory)
    assert copies, f"{name}: truth changed without an ordering point, by bare stores"
    rig.check()
    seen = set[bytes]()
    for point, copy in enumerate(copies):
        again = rig.clone(copy)
        started = known(again)
        if started in seen:
            again.core.release()
            continue
        seen.add(started)
        where = f"{name}, point {point} of {len(copies)}"
        found, _ = look(started)
        assert not found, f"{where}: {found}"
        found, resumed = look(known(resume(again)))
        assert not found, f"{where}, resumed: {found}"
        if name not in SERIES:
            assert resumed in (before, after), (
                f"{where}: {differences(resumed, after)} and {differences(resumed, before)}"
            )
        act(again)
        found, ended = look(known(again))
        assert ended == after, f"{where}, sent again: {differences(ended, after)}"
        assert not found, f"{where}, sent again: {found}"
        again.core.release()
    return len(copies)


def differences(found: dict[str, object], wanted: dict[str, object]) -> str:
    return "; ".join(f"{part}: {found[part]} != {wanted[part]}" for part in wanted if found[part] != wanted[part])
