"""The journal has exactly one row for each settling, even after kills at any instruction. An audit recomputes each."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.oracle.journalplay import JournaledPlay, no_row_is_lost_or_written_twice, play
from support.oracle.modelstate import Settling
from support.rig.commands import Key, KeyAct, Mark, Register
from support.rig.faults import core_faults
from support.rig.harness import START_NS, Rig, S, advance, cancel, cancel_for_key, fail, fire
from support.rig.journals import SEGMENT_ROWS, JournaledRig, outcomes
from support.rig.rules import (
    a_limited_event_is_taken_once,
    a_silent_member_keeps_what_it_holds,
    delivered_to_one_at_a_time,
    done_by_a_former_holder_is_refused,
    grant_of_a_dead_owner_is_requeued,
)
from support.rig.situations import SITUATIONS
from timerctl.journal.rows import RowFormat
from timerd_client.audit.audited import Audited
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.fields import size_of
from timerd_shm.declare.journal import JournalLevel, RowKind
from timerd_shm.declare.limits import GROUP_KEPT_NS
from timerd_shm.declare.states import Condition, EventFlag, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandFlag, CommandHeader, RegisterFlag
from timerd_shm.generate import DEFECTS
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import JournalError

HASHES = {hashlib.blake2b(b"incarnation %d" % number, digest_size=16).digest(): number for number in range(1, 100)}

FLAGS_AT = size_of(CommandHeader) + 2  # where a frame has the flags of its first command


def outcomes_in(directory: Path) -> list[tuple[object, ...]]:
    """The OUTCOME rows, with texts instead of numbers. The owner is None if the row has no owner."""
    found: list[tuple[object, ...]] = []
    with JournalReader(directory) as reader:
        for row in reader.rows():
            record = row.record
            if record.kind == RowKind.OUTCOME:
                owner = reader.text(record.owner)
                found.append(
                    (
                        record.outcome,
                        record.settled_key,
                        record.registered_ns,
                        record.deadline_ns,
                        record.settled_ns,
                        record.error,
                        reader.text(record.key),
                        reader.text(record.purgatory),
                        reader.text(record.id),
                        HASHES.get(owner[:16], owner) if owner else None,
                    )
                )
    assert not reader.damage, reader.damage
    return found


def expected(settled: Settling) -> tuple[object, ...]:
    op, event = settled.op, settled.event
    return (
        settled.state,
        0 if settled.ordinal is None else settled.ordinal + 1,
        op.registered_ns,
        op.deadline_ns,
        settled.settled_ns,
        event.amount if event and event.kind == EventKind.FAIL else 0,
        op.keys[settled.ordinal or 0].name,
        (b"default", b"other")[op.purgatory],
        op.id,
        op.group or op.client.name + 1,
    )


def audited(made: JournaledPlay) -> Audited:
    """The audit of a program's journal."""
    assert isinstance(made.rig, JournaledRig)
    return made.rig.audit()


def without_owner(rows: list[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    return Counter(row[:-1] for row in rows)


@pytest.mark.long
@pytest.mark.parametrize("level", [JournalLevel.OUTCOMES, JournalLevel.EVENTS])
@pytest.mark.parametrize("seed", range(1, 3))
def test_each_settled_operation_has_exactly_one_row_with_the_models_fields(
    tmp_path: Path, seed: int, level: JournalLevel
) -> None:
    made = play(seed, tmp_path, level=level)
    rows, wanted = outcomes_in(tmp_path), [expected(settled) for settled in made.model.settled]
    assert without_owner(rows) == without_owner(wanted)
    owned = Counter(row for row in rows if row[-1] is not None)
    assert not owned - Counter(wanted)
    assert len(owned) > len(rows) // 2


@pytest.mark.long
@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
@pytest.mark.parametrize("seed", range(11, 14))
def test_an_audit_computes_every_outcome_again_over_kills_at_any_instruction(tmp_path: Path, seed: int) -> None:
    made = play(seed, tmp_path, core_faults)
    assert made.crashes
    assert without_owner(outcomes_in(tmp_path)) == without_owner([expected(settled) for settled in made.model.settled])
    found = audited(made)
    assert not found.wrong, f"seed={seed}: {found.wrong[:5]}"
    print(f"seed {seed}: {found.outcomes} outcomes audited, {made.crashes} crashes")


@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
def test_crash_copies_have_the_journal_buffer_although_an_earlier_core_is_released_late(tmp_path: Path) -> None:
    before, rig = (JournaledRig(tmp_path / name, core=core_faults) for name in ("before", "now"))
    client = rig.client()
    before.core.release()  # as the garbage collector does with a core of an earlier test
    core_faults.record(100)
    rig.do(client, fire(b"a"))
    copies = core_faults.snapshots()
    assert copies
    assert {len(copy) for copy in copies} == {len(rig.memory) + len(rig.buffer)}


def test_an_audit_of_a_new_program_each_run_finds_no_error(tmp_path: Path, seed: int) -> None:
    assert not (found := audited(play(seed, tmp_path))).wrong, f"seed={seed}: {found.wrong[:5]}"


@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
# Situations with a silent client are left out, because a start makes the client live.
@pytest.mark.parametrize("name", [name for name in SITUATIONS if "silent" not in name])
def test_a_crash_at_any_ordering_point_loses_no_row_and_writes_none_twice(tmp_path: Path, name: str) -> None:
    no_row_is_lost_or_written_twice(tmp_path, name)


TOLD_WRONGLY: dict[str, Callable[[Rig], None]] = {
    "LIMIT_NOT_LOWERED": a_limited_event_is_taken_once,
    "DELIVERED_TO_TWO_MEMBERS": delivered_to_one_at_a_time,
    "TAKEN_OVER_AT_ONCE": a_silent_member_keeps_what_it_holds,
    "ACKNOWLEDGED_BY_FORMER_HOLDER": done_by_a_former_holder_is_refused,
}


@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
@pytest.mark.parametrize("defect", TOLD_WRONGLY)
def test_an_audit_finds_the_effects_of_a_seeded_defect(tmp_path: Path, defect: str) -> None:
    for name, number in (("sound", 0), ("defect", DEFECTS.index(defect) + 1)):
        rig = JournaledRig(tmp_path / name, core=core_faults)
        core_faults.set_defect(number)
        with suppress(AssertionError):
            TOLD_WRONGLY[defect](rig)
        core_faults.set_defect(0)
        rig.tend()
        assert bool(rig.audit().wrong) == bool(number)


def test_a_journal_of_two_successive_arenas_is_audited_arena_by_arena(tmp_path: Path) -> None:
    for incarnation in (7, 8):
        rig = JournaledRig(tmp_path, incarnation=incarnation)
        client = rig.client()
        rig.do(client, Register((Key(b"k"),), timeout_ns=S), Register((Key(b"other"),), timeout_ns=S), fire(b"k"))
        rig.turn(rig.now_ns + 2 * S)
        rig.end()
    found = audit_journal(tmp_path)
    assert (found.wrong, found.outcomes) == ([], 4)


def test_a_journal_without_its_first_segment_is_not_audited(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    client = rig.client()
    for number in range(SEGMENT_ROWS // 2):
        rig.do(client, Register((Key(b"%d" % number),), timeout_ns=S), fire(b"%d" % number))
    rig.end()
    first, *others = sorted(tmp_path.glob("*.segment"))
    assert others and not audit_journal(tmp_path).wrong
    first.unlink()
    with pytest.raises(JournalError, match=rf"begins with row {SEGMENT_ROWS}, and an audit needs it from row 0"):
        audit_journal(tmp_path)


@pytest.mark.parametrize("kept_ns", [60 * S, GROUP_KEPT_NS])
def test_an_audit_uses_the_daemons_deadline_of_a_kept_operation_without_a_deadline(
    tmp_path: Path, kept_ns: int
) -> None:
    rig = JournaledRig(tmp_path, group_retention=kept_ns)
    client = rig.client(Orphans.KEEP)
    rig.do(client, Register((Key(b"k"),)))
    rig.close(client)
    rig.turn(rig.now_ns + kept_ns)
    (expired,) = outcomes(rig.rows())
    assert expired.record.outcome == Outcome.EXPIRED and expired.record.deadline_ns == START_NS + kept_ns
    assert not (found := rig.audit()).wrong, found.wrong


def test_a_journal_has_the_target_of_a_watermark_that_failed_before_a_late_registration(tmp_path: Path) -> None:
    """Formerly, the target was 0 in the journal: the audit let the earlier advance to 3 complete the operation."""
    rig = JournaledRig(tmp_path)
    client = rig.client()
    for act in (advance(b"p0", 3), fail(b"p0", 7)):
        rig.do(client, act)
    rig.do(client, Register((Key(b"k"), Key(b"p0", 5)), mark=Mark(0, 0), mark_by_sequence=True))
    rig.do(client, fire(b"k"))
    rig.turn()
    targets = [row.record.target for row in rig.rows() if row.record.kind == RowKind.KEY]
    found = rig.audit()
    assert (targets, found.outcomes, found.wrong) == ([0, 5], 1, [])


@pytest.mark.parametrize("flags", [RegisterFlag.CALL, 1 << 15, RegisterFlag.CALL | 1 << 14])
def test_flags_that_a_client_sets_without_effect_are_no_findings_of_an_audit(tmp_path: Path, flags: int) -> None:
    # Formerly, one client could make the audit fail for all, though the daemon had done nothing wrong.
    rig = JournaledRig(tmp_path)
    client = rig.client()
    for number, command, added in ((1, Register((Key(b"k"),)), flags), (2, cancel(1), CommandFlag.FREES_ID | 1 << 7)):
        frame = bytearray(client.frame([(number, command)]))
        frame[FLAGS_AT] |= added & 0xFF
        frame[FLAGS_AT + 1] |= added >> 8
        client.issued += 1
        assert rig.apply(client, bytes(frame)) == rig.module.APPLIED
    rig.turn()
    found = rig.audit()
    assert (found.outcomes, found.wrong) == (1, [])


def test_a_requeued_event_names_the_operation_that_it_came_from(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    grant_of_a_dead_owner_is_requeued(rig)
    rig.tend()
    rows = rig.rows()
    event = next(
        row.record for row in rows if row.record.kind == RowKind.EVENT and row.record.flags & EventFlag.REDELIVERED
    )
    first, second = outcomes(rows)
    assert event.command == first.record.operation
    assert (event.sequence, event.client_generation) == (second.record.sequence, 0)
    assert not rig.audit().wrong


def test_a_journal_shows_the_deliveries_of_a_groups_operation(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    done_by_a_former_holder_is_refused(rig)
    rig.tend()
    with JournalReader(tmp_path) as reader:
        teller = RowFormat(reader)
        lines = [teller.line(row)[14:] for row in reader.rows()]
    behind = lines.index("completed     k  after 0 ns  (workers)") + 1
    assert [line for line in lines[behind:] if line] == [
        "delivered     operation 0x100000000 of workers  (client-1)",
        "client        client-1 is silent",
        "requeued      operation 0x100000000 of workers  (client-1)",
        "delivered     operation 0x100000000 of workers  (client-2)",
        "client        client-1 is live",
        "acknowledged  operation 0x100000000 of workers  (client-2)",
    ]


def test_a_journal_shows_that_a_silent_client_keeps_what_it_holds(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    a_silent_member_keeps_what_it_holds(rig)
    rig.tend()
    with JournalReader(tmp_path) as reader:
        teller = RowFormat(reader)
        lines = [teller.line(row)[14:] for row in reader.rows()]
    assert [line for line in lines if line.startswith("client        client-1 is")] == [
        "client        client-1 is live",
        "client        client-1 is silent, and keeps what it holds",
        "client        client-1 is live",
    ]
    assert not rig.audit().wrong


@pytest.mark.parametrize("orphans", list(Orphans))
@pytest.mark.parametrize(
    "event", [fire(b"k"), fire(b"k", limit=1), fire(b"k", limit=5), fail(b"k", 7), cancel_for_key(b"k")], ids=str
)
@pytest.mark.parametrize("budget", [3, 7, 12])
def test_a_client_may_die_between_two_turns_of_one_event(
    tmp_path: Path, orphans: Orphans, event: KeyAct, budget: int
) -> None:
    """The event reaches some operations after their owner's death. Only those that a group adopts may get a grant."""
    rig = JournaledRig(tmp_path)
    dying, other, firing = rig.client(orphans, group=b"g"), rig.client(group=b"g", listens=True), rig.client()
    for _ in range(8):
        rig.do(dying, Register((Key(b"k"),), timeout_ns=S))
        rig.do(other, Register((Key(b"k"), Key(b"l")), timeout_ns=S))
    rig.do(dying, Register((Key(b"k"),), timeout_ns=S, condition=Condition.TOTAL, total=2))
    died: list[bool] = []

    def die() -> None:
        if not died:
            died.append(True)
            rig.clients.remove(dying)
            rig.core.close_client(dying.slot, rig.now_ns)

    rig.budget, rig.cut = budget, die  # type: ignore[method-assign]
    rig.do(firing, event)
    assert died or event.limit, "the event was delivered within one turn, so nobody died between two"
    rig.do(firing, fire(b"k", limit=2), fire(b"l"), fire(b"k"))
    rig.turn(rig.now_ns + 2 * S)
    rig.check()
    rig.end()
    assert audit_journal(tmp_path).wrong == []
