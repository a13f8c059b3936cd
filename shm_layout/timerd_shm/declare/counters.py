"""Every counter, declared once: its name, its unit, and a sentence with its meaning.

A counter's id is its position; new counters are added at the end. The names also stand in the arena (region
COUNTER_LABELS), so that an older timerctl prints a newer daemon's counters. A new arena begins with all counters at 0.
"""

from __future__ import annotations

from typing import NamedTuple


class Counter(NamedTuple):
    """One 64-bit counter. A gauge also goes down, and a start rebuilds it."""

    name: str
    unit: str
    about: str
    gauge: bool = False


PURGATORY_COUNTERS: tuple[Counter, ...] = (
    Counter("registered", "ops", "operations registered: those that have settled, plus `pending`"),
    Counter("completed", "ops", "operations whose condition held before their deadline"),
    Counter("expired", "ops", "operations that reached their deadline first"),
    Counter("cancelled", "ops", "operations withdrawn by their owner, by key, by id or as orphans"),
    Counter("failed", "ops", "operations whose condition could no longer hold"),
    Counter("rejected", "commands", "commands refused, except those in refused_by_id: `timerctl errors` says why"),
    Counter("events", "events", "fire, advance, fail, cancel_for_key and forget, as applied"),
    Counter("pending", "ops", "operations that have not settled", gauge=True),
    Counter("watched", "watchers", "entries of watcher lists; exact: a settled operation leaves at once", gauge=True),
    Counter("rescheduled", "ops", "deadlines moved"),
    Counter("replayed", "ops", "operations settled by an event that had overtaken their registration"),
    Counter("granted", "ops", "operations completed by a limited event"),
    Counter("values_dropped", "ops", "outcomes delivered without their value: the receiver's byte quota was used up"),
    Counter("refused_by_id", "commands", "commands refused because their id exists, or is not pending"),
)

DAEMON_COUNTERS: tuple[Counter, ...] = (
    Counter("clients", "clients", "connected clients", gauge=True),
    Counter("turns", "turns", "turns of the conductor"),
    Counter("bucket_visits", "buckets", "wheel buckets emptied or swept"),
    Counter("empty_wakeups", "wakeups", "turns that the timer started and that found nothing to do"),
    Counter("cascaded", "ops", "operations moved to a lower level of the wheel"),
    Counter("commands", "commands", "commands applied"),
    Counter("commands_skipped", "commands", "commands received again and skipped, because they had been applied"),
    Counter("commands_out_of_order", "frames", "frames answered with `expected n`: something before them was lost"),
    Counter("frames_in", "frames", "frames received"),
    Counter("frames_out", "frames", "frames published or answered"),
    Counter("frames_malformed", "frames", "frames refused, or connections closed, because of a breach of the protocol"),
    Counter("frames_unknown_session", "frames", "frames of a session that this daemon does not know"),
    Counter("records_touched", "records", "operations, watchers and buckets visited; a turn's bound counts these"),
    Counter("records_touched_max", "records", "the most records touched in one turn", gauge=True),
    Counter("turn_ns_max", "ns", "the longest turn", gauge=True),
    Counter("turns_cut", "turns", "turns that left work for the next one because their bound was reached"),
    Counter("gaps", "gaps", "turns that started more than a second late: the daemon was stopped or starved"),
    Counter("redo_replayed", "transactions", "transactions of a killed daemon that the next start finished"),
    Counter("events_evicted", "events", "events that left the ring; a mark before them may be too old"),
    Counter("replays_too_old", "ops", "registrations refused because events after their mark were overwritten"),
    Counter("outcomes_acknowledged", "outcomes", "outcomes whose record was freed by an acknowledgement"),
    Counter("announcements", "frames", "reminders of outcomes that were not acknowledged in time"),
    Counter("asked_again", "frames", "requests by clients for outcomes or answers that they missed"),
    Counter(
        "orphans_cancelled",
        "ops",
        "operations cancelled because their owner died, or their group had no member",
    ),
    Counter("ids_forgotten", "ids", "settled ids forgotten: they were too old, or room was short"),
    Counter("starts", "starts", "daemons that attached to this arena"),
    Counter("busy_ns", "ns", "time spent in turns"),
    Counter("orphans_adopted", "ops", "operations of dead owners that their group took over"),
    Counter("requeued", "ops", "operations whose owner did not take the grant, which went to the next watcher"),
    Counter("group_outcomes_delivered", "outcomes", "deliveries of groups' outcomes to a member"),
    Counter("group_outcomes_requeued", "outcomes", "outcomes of groups requeued: their member died, or takes none now"),
    Counter("group_outcomes_dropped", "outcomes", "outcomes dropped: their group had no member while they were kept"),
    Counter("clients_silenced", "clients", "clients that sent nothing for a lease; live again at their next frame"),
    Counter("clients_died", "clients", "clients that ended without a goodbye, or were silent for an hour"),
    Counter("tombstones_resumed", "clients", "clients that were dead, and came back to their numbering"),
    Counter("liveness_refused", "connections", "connections to NAME.live refused: no known session, or too many"),
    Counter("journal_rows_dropped", "rows", "rows that the journal lacks: writing its files failed, or was too slow"),
    Counter("journal_failures", "failures", "failed attempts to write the journal's files; `timerctl errors` says why"),
    Counter(
        "journal_thread_dead",
        "threads",
        "1 = the thread that writes the journal has ended: restart the daemon",
        gauge=True,
    ),
    Counter(
        "sweeps_recounted",
        "clients",
        "ended clients with wrong counts: two sweeps found nothing that they held",
    ),
    Counter(
        "outlets_shut",
        "connections",
        "connections for outcomes that were closed: their client sent more than its one subscription",
    ),
    Counter("calls_ended_process", "calls", "calls that ran in a process when it ended"),
    Counter("dead_letters", "calls", "calls that are over and kept: given up, out of retries, or served by nobody"),
    Counter(
        "dead_letters_dropped",
        "calls",
        "dead letters dropped for newer ones (raise --dead-letters), for a registration or for a new group",
    ),
    Counter(
        "group_outcomes_evicted",
        "outcomes",
        "outcomes dropped to make room: ended clients of one user held more than the share of one client",
    ),
    # insert new counters above this line; ids are positions
)


def index_of(counters: tuple[Counter, ...], name: str) -> int:
    """Position of the named counter; raises KeyError."""
    for index, counter in enumerate(counters):
        if counter.name == name:
            return index
    raise KeyError(f"no counter {name!r}")
