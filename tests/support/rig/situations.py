"""The situations, one for each way in which the truth of an arena changes.

`SITUATIONS[name](rig)` prepares a situation on a rig and returns its act. The act may be repeated: a frame that is sent
twice is applied once. test_redo lets the core crash at every ordering point of every act. test_journal reads the rows
that the acts have written.
"""

from __future__ import annotations

from support.rig.acts import (
    GROUP,
    HOUR,
    ID,
    LONG,
    SLOTS_APART,
    Situation,
    acknowledge,
    applied,
    batch,
    close,
    come_back,
    full_ring,
    grant_is_requeued,
    late,
    leave,
    new_purgatory,
    observe,
    open_again,
    open_client,
    owned,
    owner_of_grant_dies,
    replace_a_settled_id_at_once,
    situation,
    tombstone_ends,
    tombstone_gives_way,
    watch,
    wheel,
)
from support.rig.commands import Key, Mark, OperationAct, Register
from support.rig.groupacts import (
    call,
    call_begins,
    call_is_done,
    call_is_due,
    call_is_followed,
    call_is_given_up,
    call_is_planned_anew,
    call_is_served_by_nobody,
    call_that_runs_is_made_again,
    due_call_is_cancelled,
    due_call_is_replaced,
    due_calls_make_room,
    falls_silent,
    falls_silent_and_keeps,
    given_up_call_is_done,
    gives_back,
    group_outcome_is_delivered,
    group_outcome_is_done,
    group_outcome_is_dropped,
    group_outcome_is_received,
    group_record_is_used_again,
    handler,
    handles,
    holder_dies,
    last_of_a_group_dies,
    letter_is_dropped,
    letter_is_retried,
    maker_ends,
    member_begins_to_listen,
    new_group,
    open_member,
    outcomes_make_room,
    owner_of_a_group_dies,
    running_call_ends_its_process,
    sends_frames_again,
    stops_listening,
    work,
)
from support.rig.harness import (
    MS,
    advance,
    ask_owners,
    cancel,
    cancel_for_key,
    complete,
    fail,
    fire,
    forget,
    looked,
    reschedule,
)
from timerd_shm.declare.layout import BATCH_MAX
from timerd_shm.declare.states import CallPhase, Condition, Orphans
from timerd_shm.declare.wire import CommandKind

WATCHERS = (
    watch(b"k"),
    watch(b"k", b"l", needed=2),
    watch(b"l", b"k"),
    watch(b"k", condition=Condition.TOTAL, total=5),
    watch(b"k", condition=Condition.TOTAL, total=500),
    watch(b"k", b"w", condition=Condition.ALL_SETTLED),
    watch(b"k", payload=b"p" * 500, id=ID),
    watch(b"other"),
)
OFFSETS = tuple(watch(b"p", target=target) for target in (5, 3, 9, 4, 20, 5))
TOTALS = tuple(watch(b"k", condition=Condition.TOTAL, total=total) for total in (10, 20, 30))
WITH_PAYLOADS = tuple(watch(key, payload=b"p" * 100) for key in (*SLOTS_APART[::2], b"other"))
START = Mark(0, 0)

SITUATIONS: dict[str, Situation] = {
    "register": situation(watch(b"k")),
    "register: keys, payload, id": situation(watch(b"k", b"l", LONG, payload=b"p" * 400, id=ID, wants_answer=True)),
    "register: known keys": situation(watch(b"k", b"l"), before=WATCHERS),
    "register: no deadline": situation(Register((Key(b"k"),))),
    "register: timeout 0": situation(watch(b"k", timeout_ns=0)),
    "register: watermark reached": situation(watch(b"p", target=7, payload=b"p" * 200), before=(advance(b"p", 9),)),
    "register: watermark of one key": situation(
        Register((Key(b"p", 7), Key(b"k")), timeout_ns=HOUR, needed=2), before=(advance(b"p", 9),)
    ),
    "register: overtaken": situation(watch(b"k", mark=START), others=(fire(b"k", value=b"v" * 300),)),
    "register: overtaken twice, total": situation(
        watch(b"k", condition=Condition.TOTAL, total=8, mark=START), others=(fire(b"k", 3), fire(b"k", 4))
    ),
    "register: overtaken by a limited event": situation(
        *(watch(b"k", mark=START) for _ in range(3)), others=(fire(b"k", limit=2),)
    ),
    "register: overtaken by fail": situation(watch(b"k", mark=START), others=(fail(b"k", 6, value=b"gone"),)),
    "register: too old": situation(watch(b"e", mark=START), others=full_ring(b"")),
    "register: observes, overtaken by an event that is used up": situation(
        observe(b"k", LONG, mark=START),
        before=(watch(b"k"),),
        others=(fire(b"k", limit=1, value=b"v" * 200), fail(LONG, 6)),
    ),
    "register: refused": situation(watch(b"k", b"k")),
    "register: id exists": situation(watch(b"l", id=ID), before=WATCHERS),
    "register: id kept": situation(watch(b"l", id=ID, if_exists="keep"), before=WATCHERS),
    "register: id replaced": situation(watch(b"l", id=ID, if_exists="replace"), before=WATCHERS),
    "register: settled id replaced": situation(
        watch(b"l", id=ID, if_exists="replace"), before=(watch(b"k", id=ID), fire(b"k"))
    ),
    "register: settled id replaced at once": replace_a_settled_id_at_once,
    "register: cancelled id replaced": situation(
        watch(b"l", id=ID, if_exists="replace cancelled"), before=(watch(b"k", id=ID), cancel(1))
    ),
    "register: changed id replaced": situation(
        watch(b"l", id=ID, payload=b"pew", if_exists="replace changed", total=3), before=WATCHERS
    ),
    "register: id of another sort exists": situation(
        watch(b"l", id=ID, payload=b"new", if_exists="replace changed", total=3), before=WATCHERS
    ),
    "register: unchanged id exists": situation(
        watch(b"l", id=ID, payload=b"pp", if_exists="replace changed", total=2), before=WATCHERS
    ),
    "register: overtaken, by a mark that is another's": situation(
        watch(b"k", mark=START, mark_by_sequence=True, orphans=Orphans.KEEP), before=(fire(b"k"),)
    ),
    "register: a mark of another arena": situation(watch(b"k", mark_of_other_arena=True)),
    "a batch of registrations": batch(*(watch(b"k%d" % (n % 11)) for n in range(BATCH_MAX))),
    "a batch of registrations with payloads": batch(
        *(watch(b"k%d" % (n % 11), payload=b"p" * (n * 7)) for n in range(BATCH_MAX)), before=full_ring(b"old" * 30)
    ),
    "a batch of cancels": batch(
        *(cancel(n) for n in (2, 8, 1, 7, 3)), before=tuple(watch(b"k%d" % n) for n in range(9))
    ),
    "a batch of fires": batch(
        *(fire(key) for key in SLOTS_APART), before=tuple(watch(key) for key in (*SLOTS_APART[::2], b"other"))
    ),
    "a batch of fires with values": batch(*(fire(key, value=b"v" * 8) for key in SLOTS_APART), before=WITH_PAYLOADS),
    "a batch of fires with values, the ring evicts": batch(
        *(fire(key, value=b"v" * 8) for key in SLOTS_APART), before=(*full_ring(b"old" * 30), *WITH_PAYLOADS)
    ),
    "fire: no watcher": situation(fire(b"nobody", wait=True)),
    "fire: one": situation(fire(b"k", value=b"v" * 300), before=(watch(b"k", payload=b"p" * 300),)),
    "fire: overdue watchers": late(
        fire(b"k", limit=2, value=b"v"),
        before=(
            *(watch(b"k", timeout_ns=5 * MS, id=ID), watch(b"k"), watch(b"k", b"l", timeout_ns=MS, needed=2)),
            *(watch(b"k", timeout_ns=MS), watch(b"k"), watch(b"k", timeout_ns=MS)),
        ),
    ),
    "advance: overdue watchers": late(
        advance(b"p", 9),
        before=(watch(b"p", target=4, timeout_ns=5 * MS), watch(b"p", target=5), watch(b"p", target=6, timeout_ns=MS)),
    ),
    "fire: every condition": situation(fire(b"k", 5, value=b"v", wait=True), before=WATCHERS),
    "fire: long key": situation(fire(LONG, value=b"v"), before=(watch(LONG), watch(LONG, b"k", needed=2))),
    "fire: totals": situation(fire(b"k", 10), fire(b"k", 10), fire(b"k", 10), before=TOTALS),
    "fire: limited": situation(fire(b"k", 5, limit=2, wait=True), before=WATCHERS),
    "fire: limited, some left": situation(fire(b"k", 5, limit=9), before=WATCHERS),
    "fire: observed, limited": situation(
        fire(b"k", 5, value=b"v", limit=1, wait=True),
        before=(*WATCHERS, observe(b"k", b"l", LONG), observe(b"k", timeout_ns=HOUR), observe(b"l"), observe(b"k")),
    ),
    "advance: observed": situation(advance(b"p", 5), before=(*OFFSETS, observe(b"p"), observe(b"p", b"k"))),
    "fire: the ring evicts": situation(fire(b"k", value=b"new" * 99), before=(*full_ring(b"old" * 99), *WATCHERS)),
    "fire: twelve watchers": situation(fire(b"k", value=b"v"), before=tuple(watch(b"k", b"l") for _ in range(12))),
    "advance: new": situation(advance(b"p", 7)),
    "advance: some": situation(advance(b"p", 5, value=b"v" * 200, wait=True), before=OFFSETS),
    "advance: higher and lower": situation(advance(b"p", 4), advance(b"p", 2), advance(b"p", 9), before=OFFSETS),
    "fail: events": situation(fail(b"k", 6, value=b"not leader", wait=True), before=WATCHERS),
    "fail: watermarks": situation(fail(b"p", 6), before=OFFSETS),
    "fail: totals": situation(fail(b"k", 6), before=TOTALS),
    "cancel_for_key": situation(cancel_for_key(b"k", wait=True), before=WATCHERS),
    "cancel_for_key: watermarks": situation(cancel_for_key(b"p"), before=OFFSETS),
    "forget": situation(forget(b"p"), before=(advance(b"p", 2), *OFFSETS)),
    "forget: the last of its key": situation(forget(LONG, wait=True), before=(advance(LONG, 2),)),
    "cancel": situation(cancel(2), before=WATCHERS),
    "cancel: id and payload": situation(cancel(7, wait=True), before=WATCHERS),
    "cancel: settled": situation(cancel(1, wait=True), before=(watch(b"k"), fire(b"k"))),
    "cancel by id": situation(OperationAct(CommandKind.CANCEL_ID, id=ID, wants_answer=True), before=WATCHERS),
    "cancel by id: unknown": situation(OperationAct(CommandKind.CANCEL_ID, id=ID)),
    "reschedule": situation(reschedule(1, 5 * MS, wait=True), before=WATCHERS),
    "reschedule by id": situation(OperationAct(CommandKind.RESCHEDULE_ID, id=ID, timeout_ns=9 * MS), before=WATCHERS),
    "set orphans": situation(
        OperationAct(CommandKind.SET_ORPHANS, 1, orphans=Orphans.KEEP, wants_answer=True), before=WATCHERS
    ),
    "register: its owner looks at once": situation(
        owned(b"k", LONG, mark=START, id=ID), others=(fire(b"k"), fire(b"k", limit=1), fail(LONG, 6))
    ),
    "fire: owners look": situation(
        fire(b"k", value=b"v", wait=True),
        before=(*WATCHERS, owned(b"k", LONG), owned(b"l"), observe(b"k"), owned(b"k")),
    ),
    "fire: limited, owners do not look": situation(fire(b"k", limit=1), before=(owned(b"k"), watch(b"k"))),
    "cancel_for_key: an owner's": situation(cancel_for_key(b"k", wait=True), before=(owned(b"k", LONG), owned(b"l"))),
    "check": situation(ask_owners(b"k"), before=(owned(b"k", LONG), *WATCHERS, owned(b"l"), owned(b"k"))),
    "looked": situation(looked(1, 1, wait=True), before=(owned(b"k", LONG), fire(b"k"))),
    "looked: at an older event": situation(looked(1, 1), before=(owned(b"k", LONG), fire(b"k"), fail(LONG, 6))),
    "complete": situation(complete(1, 1, wait=True), before=(owned(b"k", LONG, id=ID, payload=b"p" * 300), fire(b"k"))),
    "complete: without a look": situation(complete(2), before=(owned(b"k"), owned(b"k"))),
    "complete: late": late(complete(1, wait=True), before=(owned(b"k", LONG, timeout_ns=5 * MS),)),
    "complete: not its owner's": situation(complete(1, wait=True), before=(watch(b"k"),)),
    "expire: one": wheel(watch(b"k", LONG, needed=2, timeout_ns=5 * MS, id=ID), after_ns=6 * MS),
    "expire: many in one tick": wheel(*(watch(b"k", timeout_ns=70 * MS) for _ in range(6)), after_ns=70 * MS),
    "expire: several ticks": wheel(*(watch(b"k", timeout_ns=n * 40 * MS) for n in range(5)), after_ns=500 * MS),
    "acknowledge: one": acknowledge(1),
    "acknowledge: many": acknowledge(6),
    "open a client": open_client,
    "open a client again": open_again,
    "close a client: cancel": close(Orphans.CANCEL),
    "close a client: keep": close(Orphans.KEEP),
    "a new purgatory": new_purgatory,
    "an owner of a group dies": owner_of_a_group_dies,
    "the last of a group dies": last_of_a_group_dies,
    "a holder dies": holder_dies,
    "a member begins to listen": member_begins_to_listen,
    "stops listening": stops_listening,
    "register for the group": lambda rig: applied(rig, rig.client(group=GROUP), work(b"k", LONG)),
    "a group's outcome: delivered": group_outcome_is_delivered,
    "a group's outcome: received": group_outcome_is_received,
    "a group's outcome: done": group_outcome_is_done(True),
    "a group's outcome: done, not received": group_outcome_is_done(False),
    "a group's outcome: dropped": group_outcome_is_dropped,
    "a maker ends": maker_ends,
    "outcomes make room": outcomes_make_room,
    "due calls make room": due_calls_make_room,
    "a call: registered": lambda rig: applied(rig, handler(rig, b"job"), call(timeout_ns=HOUR, id=ID)),
    "a call: of a schedule, by the wall clock": lambda rig: applied(
        rig, handler(rig, b"job"), call(timeout_ns=HOUR, id=ID, scheduled=True, wall_ns=HOUR)
    ),
    "a call: planned anew": call_is_planned_anew(),
    "a call: planned anew by a caller": call_is_planned_anew(rescheduled=True),
    "a call: due": call_is_due,
    "a call: followed": call_is_followed(),
    "a call: followed by one that is due": call_is_followed(timeout_ns=0),
    "a call: followed when it is over": call_is_followed(over=True),
    "a call: done, and its id is free": call_is_done(known=True),
    "a call: done, its id is another's": call_is_done(known=False, received=False),
    "a call: registered, to run alone": lambda rig: applied(rig, handler(rig, b"job"), call(id=ID, alone=True)),
    "a call: begins": call_begins(),
    "a call: its on_failure begins": call_begins(CallPhase.ON_FAILURE),
    "a call: begins where it is not held": call_begins(held=False),
    "a call: given up": call_is_given_up,
    "a call: ends its process": running_call_ends_its_process,
    "a call: a dead letter": given_up_call_is_done(followed=False),
    "a call: a dead letter, and followed": given_up_call_is_done(followed=True),
    "a call: served by nobody": call_is_served_by_nobody,
    "a dead letter: retried": letter_is_retried,
    "a dead letter: dropped": letter_is_dropped,
    "a due call: cancelled": due_call_is_cancelled(delivered=False),
    "a due call: cancelled, though it is delivered": due_call_is_cancelled(delivered=True),
    "a due call: replaced": due_call_is_replaced(timeout_ns=HOUR),
    "a due call: replaced by one that is due": due_call_is_replaced(timeout_ns=0),
    "a call that runs: made again": call_that_runs_is_made_again(timeout_ns=HOUR),
    "a call that runs: made again, due": call_that_runs_is_made_again(timeout_ns=0),
    "handles other names": handles(b"other", b"more"),
    "handles nothing more": handles(most=0),
    "gives back a call": gives_back,
    "falls silent": falls_silent,
    "falls silent, and keeps what it holds": falls_silent_and_keeps,
    "sends frames again": sends_frames_again,
    "requeue at a death: two watchers": owner_of_grant_dies(LONG, watchers=3),
    "requeue at a death: no watcher": owner_of_grant_dies(b"k", watchers=0),
    "requeue: a watcher": grant_is_requeued(watchers=2),
    "requeue: no watcher": grant_is_requeued(watchers=0),
    "leave a tombstone": leave(goodbye=False),
    "say goodbye": leave(goodbye=True),
    "come back from a tombstone": come_back,
    "a tombstone ends": tombstone_ends,
    "a tombstone gives way": tombstone_gives_way,
    "open a member": open_member,
    "a new group": new_group,
    "a group's record is used again": group_record_is_used_again,
}
# Acts that are a series of transactions. After a crash between two of these, the arena is neither as before the act nor
# as after it, and the next turn goes on with the series.
SERIES = {
    "a call: ends its process",
    "a call: a dead letter",
    "a call: a dead letter, and followed",
    "register: overtaken by a limited event",
    "fire: totals",
    "fire: the ring evicts",
    "a batch of fires with values, the ring evicts",
    "advance: higher and lower",
    "expire: many in one tick",
    "expire: several ticks",
    "acknowledge: one",
    "acknowledge: many",
    "close a client: cancel",
    "close a client: keep",
    "an owner of a group dies",
    "the last of a group dies",
    "a holder dies",
    "a member begins to listen",
    "stops listening",
    "a group's outcome: delivered",
    "a maker ends",
    "outcomes make room",
    "due calls make room",
    "a call: planned anew",
    "a call: due",
    "requeue at a death: two watchers",
    "requeue at a death: no watcher",
    "requeue: a watcher",
    "leave a tombstone",
    "say goodbye",
    "a tombstone gives way",
    "open a member",
    "a group's record is used again",
}
