"""The compiled purgatory: arena, wheels, watcher lists, event ring. Bytes and `now_ns` in, bytes out.

It knows neither a clock nor a socket. One thread calls it (the conductor). The work of a turn runs without the
GIL. A method with `budget` touches about that many records (operations, watch nodes, buckets) at most, and says
whether work is left. Work that is left goes on at the next call.
"""

from typing import Final

from _typeshed import ReadableBuffer, WriteableBuffer

APPLIED: Final = 0  # the whole frame was applied (or had been before)
EXPECTED: Final = 1  # its first command is not the next one, or the client has too many unacknowledged answers
UNFINISHED: Final = 2  # applied in part: call resume() until no work is left, then apply() the frame again
MALFORMED: Final = 3  # a command has a wrong length, or names something unknown; the commands before it are applied

NEVER: Final = 0xFFFF_FFFF_FFFF_FFFF

LAYOUT_FINGERPRINT: Final[int]  # of the declarations that the core was compiled from

class Core:
    """The one writer of an arena.

    `memory` is a formatted arena (format_arena) or one that an earlier daemon left. Attaching finishes a transaction
    that was cut off after its commit, makes all derived fields anew, and delivers the newest event to the operations
    that it had not reached. `seed` (16 bytes) is the seed of the tables' hashes; if the arena's hashes have another
    seed, they are made anew. Raises LayoutMismatchError, ArenaNotReadyError, ArenaTruncatedError.
    """

    def __init__(self, memory: WriteableBuffer, now_ns: int, seed: bytes) -> None: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def rehashed(self) -> bool:
        """Whether attaching found hashes of another seed, and made them anew."""
    @property
    def newest(self) -> int:
        """Sequence of the newest event."""
    @property
    def last_turn_ns(self) -> int:
        """The time of the last turn, which an earlier daemon may have made; 0 = there was none."""
    @property
    def tick_ns(self) -> int: ...
    @property
    def redo_replayed(self) -> int:
        """Entries of the transaction that attaching finished; 0 = there was none."""
    def release(self) -> None:
        """Release the memory, so that it can be unmapped. Call no method after it."""

    # clients ---------------------------------------------------------------------------------------------------------
    def open_client(
        self,
        incarnation: bytes,
        session_hash: bytes,
        *,
        name: bytes = b"",
        pid: int = 0,
        start_ticks: int = 0,
        pid_namespace: int = 0,
        orphans: int = 0,
        lease_ns: int = ...,
        takeover_ms: int = ...,
        now_ns: int,
        wall_ns: int = 0,
        group: int = 0,
        listens: bool = False,
        maker_pid: int = 0,
        maker_start_ticks: int = 0,
        uid: int = ...,
    ) -> int:
        """The slot of a client: its own if it is live or silent under this (16-byte) incarnation, else a free one.

        `group` is what group() gave, 0 for none; `listens` says that it takes outcomes of its group. If the client has
        a slot, only its session hash (16 bytes) changes. When no slot is free, the oldest tombstone gives way.
        `maker_pid` is the process that the slot is charged to, as the kernel says; 0 = not known. Raises ArenaFullError
        when all slots are in use, QuotaExceededError (the process has used up its share), NotAMemberError (orphans
        GROUP, or listens, without a group).
        """
    def find_session(self, session_hash: bytes) -> int:
        """Slot of the live or silent client with that session hash, or -1."""
    def find_incarnation(self, incarnation: bytes) -> int:
        """Slot of the live or silent client with that incarnation, or -1."""
    def find_tombstone(self, session_hash: bytes) -> int:
        """Slot of the tombstone of that session, or -1."""
    def is_dying(self, session_hash: bytes) -> bool:
        """Whether the client of that session is dead, and the sweep is not done with it yet: ask again later."""
    def resume_client(
        self,
        slot: int,
        *,
        name: bytes = b"",
        pid: int = 0,
        start_ticks: int = 0,
        pid_namespace: int = 0,
        orphans: int = 0,
        lease_ns: int = ...,
        takeover_ms: int = ...,
        now_ns: int,
        wall_ns: int = 0,
        group: int = 0,
        listens: bool = False,
        maker_pid: int = 0,
        maker_start_ticks: int = 0,
        uid: int = ...,
    ) -> None:
        """Make a tombstone a live client again: same slot, topic, incarnation, session and numbering; no operations.

        Raises SessionGoneError when the slot is no tombstone, QuotaExceededError and NotAMemberError as open_client().
        """
    def close_client(self, slot: int, now_ns: int, *, goodbye: bool = False) -> None:
        """Note that the client is dead. The next calls of resume() treat its operations by its orphans policy.

        CANCEL: they are cancelled. KEEP: they go on, and no client gets their outcomes. GROUP: its group
        adopts them, unacknowledged outcomes too. Outcomes that it held for its group are requeued. An unacknowledged
        grant goes to its group, or is requeued to the next watcher. Then its slot is a tombstone for an hour; after a
        `goodbye` it is free.
        """
    def group(self, name: bytes, pid: int = 0, start_ticks: int = 0, uid: int = ...) -> int:
        """Index + 1 of the group of that name, made for that process (0 = not known) of that user if it is new.

        Raises ArenaFullError, InvalidNameError, and QuotaExceededError: if the process has made half of all groups, if
        all processes that are not known have made three quarters together, or if half of all groups have no member and
        hold operations of the user's ended clients.
        """
    def set_listening(self, slot: int, listens: bool, now_ns: int) -> bool:
        """Let the client take outcomes of its group (no calls), or stop that. A stop requeues the outcomes it holds.

        Returns whether it listens now: a client that has stopped cannot begin again before all these outcomes are
        requeued. Raises NotAMemberError.
        """
    def set_calls(self, slot: int, most: int, purgatory: int, names: list[bytes], now_ns: int) -> int:
        """Let the client hold up to `most` calls of its group at a time; 0 = it takes none.

        It takes only calls of these names (keys of that purgatory), which replace its earlier names. Returns how many
        it takes now: as with set_listening(), a client that has stopped cannot begin again at once. Raises
        NotAMemberError, ArenaFullError, InvalidValueError, InvalidKeyError.
        """
    def give_back(self, slot: int, operations: list[int], now_ns: int) -> list[int]:
        """Requeue those of these calls (op ids) that the client holds and has not begun. Returns their op ids."""
    def silence(self, slot: int, now_ns: int, *, keeps: bool = False) -> None:
        """The client is silent. It gets nothing more of its group, and the calls and outcomes it holds are requeued.

        With `keeps` it keeps what it holds, until this is called without `keeps`, or it is live again, or dead.
        """
    def holds(self, slot: int) -> bool:
        """Whether the client holds outcomes or calls of its group: delivered, and the work is not done."""
    def revive(self, slot: int, now_ns: int) -> None:
        """Something came from a silent client: it is live again."""
    def set_silent_ns(self, slot: int, silent_ns: int) -> None:
        """How long the client has been silent while the daemon was reading: for readers of the arena."""
    def held(self, slot: int, operations: list[int]) -> list[int]:
        """The op ids among these whose outcome the client holds for its group: delivered, and not done."""
    def topic(self, slot: int) -> int:
        """The client's topic: generation << 16 | slot. Frames to it begin with it as 8 little-endian bytes."""
    def heard(self, slot: int, now_ns: int) -> None:
        """Something came from the client."""
    def live_slots(self) -> list[int]:
        """Slots of the clients that are live or silent."""
    def last_command(self, slot: int) -> int:
        """Number of the last command applied for that client."""
    def unknown_waits(self, slot: int, commands: list[int]) -> list[int]:
        """The command numbers among these registrations for which the arena holds no operation and no refusal."""
    def purgatory(self, name: bytes, slot: int = -1) -> int:
        """Index of the purgatory of that name, made if it is new. It is kept while the client of `slot` lives.

        A new one is charged to the process of that client; -1 = to nobody. Raises ArenaFullError, InvalidNameError, and
        QuotaExceededError: if the process has made a quarter of all purgatories, or all processes that are not known
        have made half of them together.
        """
    def watermark(self, purgatory: int, key: bytes) -> tuple[int, int, int] | None:
        """A key's watermark, the index of its record, and its hash; None: it has none."""
    @property
    def is_delivering(self) -> bool:
        """Whether a long event is under way: until its end no command is applied."""
    @property
    def touched(self) -> int:
        """Records that were touched since the start."""

    # a turn ----------------------------------------------------------------------------------------------------------
    def begin_turn(self, now_ns: int, before_gap_ns: int = NEVER) -> None:
        """Start a turn: the turn counter becomes odd, the wheel's time jumps over empty ticks.

        `before_gap_ns`: while a gap is open, the time of the last turn before it. It is the effective time of all
        frames that the turn reads.
        """
    def set_wall_clock(self, ahead_ns: int) -> None:
        """Set how far CLOCK_REALTIME is ahead of CLOCK_MONOTONIC (negative: behind).

        To be called at a start, and when the wall clock was set. `resume` then plans the calls of the wall clock anew,
        over as many turns as that takes.
        """
    def apply(self, slot: int, frame: ReadableBuffer, now_ns: int, budget: int = 65_536) -> int:
        """Apply a COMMANDS frame (its acknowledgements first). Returns APPLIED, EXPECTED, UNFINISHED or MALFORMED."""
    def acknowledge(self, slot: int, outcome: int, answer: int, budget: int = 65_536) -> bool:
        """Free the outcomes and answers up to these numbers; True if some are left for resume()."""
    def resume(self, now_ns: int, budget: int = 65_536) -> bool:
        """Go on with a long event, acknowledgements, dead and silent clients, groups; True if work is left."""
    def advance(self, now_ns: int, budget: int = 65_536) -> bool:
        """Move the wheel to `now_ns`: expire due operations, sweep, deliver to groups; True if work is left."""
    def confirm(self, slot: int) -> None:
        """Let the next reports() say which commands of the client are applied, without waiting for `confirm_ns`."""
    def reports(
        self, now_ns: int, outcomes_max: int = 16_384, bytes_max: int = ..., confirm_ns: int = 0
    ) -> list[tuple[int, bytes]]:
        """(slot, REPORT frame) of each client with something new: applied commands, outcomes, answers, looks.

        At `bytes_max` bytes it ends. The clients that are left come first at the next call. A report of nothing but
        applied commands waits for `confirm_ns`, unless the client has asked for it, or the commands are many.
        """
    @property
    def reports_due_ns(self) -> int:
        """When reports() is to be called again for reports that the last call has put off; NEVER = none."""
    def has_reports(self) -> bool:
        """Whether reports() would return something."""
    def report(self, slot: int, outcome_after: int, answer_after: int, now_ns: int, kind: int = 1) -> bytes:
        """A report with the outcomes and answers that follow these numbers, up to one frame; `kind` is a DownKind."""
    def unacknowledged(self, slot: int) -> bool:
        """Whether the client has outcomes or answers that it has not acknowledged, or looks that it has not taken."""
    def send_looks_again(self, slot: int) -> None:
        """Let the next reports() have all looks of the client, also those that it was sent."""
    def check(self, slot: int, command: int, end: bool) -> tuple[bool, int] | None:
        """Whether the check of that CHECK command has finished, and how many operations its owners completed.

        None: there is none. A check ends when this call finds it finished, or with `end`.
        """
    def take_finished(self) -> bool:
        """Whether a check has finished since the last call."""
    def end_turn(self, now_ns: int) -> int:
        """End a turn: the turn counter becomes even, gauges are published. Returns the records that it touched."""
    def next_wake_ns(self) -> int:
        """When the wheel has work, or a retention ends (CLOCK_MONOTONIC); NEVER if neither."""

    # the journal -----------------------------------------------------------------------------------------------------
    @property
    def journal_rows(self) -> int:
        """Rows ever put in the journal of this arena: the number of the next one. The rows before it are true."""
    @property
    def journal_dropped(self) -> int:
        """Rows that the journal of this arena lacks."""
    def open_journal(self, buffer: WriteableBuffer, level: int, segment_rows: int, written: int, now_ns: int) -> bool:
        """Write rows into `buffer` (BufferHeader, then rows) from now on. Returns whether they continue the rows there.

        Rows up to `written` stand in files. The buffer holds the later ones. `segment_rows` is a multiple
        of BLOCK_ROWS. Raises LayoutMismatchError when the buffer is not this arena's, or does not hold those rows.
        """
    def tend_journal(self, written: int, wall_ns: int = 0, records: int = 4096) -> bool:
        """To be called in each turn. Rows up to `written` stand in files, so their positions in the buffer are free.

        Writes the GAP row when a gap has ended, and with `wall_ns` the row of the wall clock's time. Goes on with rows
        of what there was when the journal began (see DESIGN.md), over `records` records; True if some are left.
        """
    def renew_journal(self) -> None:
        """Begin another segment before the next row: the file of the present one is lost."""
    def end_journal(self, now_ns: int) -> None:
        """Write the END row: this daemon ends in order. Without a journal this does nothing."""

    # a copy of the arena ---------------------------------------------------------------------------------------------
    def begin_copy(self, log: WriteableBuffer) -> None:
        """Between two turns: from now on, log the bytes of a line of the arena before its first change.

        `log` is a Copier, or other memory of zeros (memory/before_images.h has its form). It belongs to the core until
        `end_copy`. Raises InvalidValueError when it is too small, and when this process copies an arena already.
        """
    def end_copy(self) -> None:
        """Stop logging, and release the log. A second call changes nothing."""

    # counters --------------------------------------------------------------------------------------------------------
    def count(self, counter: int, amount: int = 1) -> None:
        """Add to a counter of the daemon (position in DAEMON_COUNTERS)."""
    def set_count(self, counter: int, value: int) -> None:
        """Set a counter of the daemon that is a gauge."""
    def note_turn_cpu(self, cpu_ns: int) -> None:
        """Count a turn in the histogram of the conductor's CPU time; ns."""

    def count_max(self, counter: int, value: int) -> None:
        """Raise a counter of the daemon to `value` if it is less."""
    def take_refusals(self) -> list[tuple[int, int, int, tuple[int, bytes, bool, int, int] | None]]:
        """Why commands were refused since the last call, except refusals by an id: code, limit met, count, holder.

        The holder is the one whose quota was met: the client's slot, its name, whether it is a group, its process (the
        one that first named the group; 0 = not known), the payload and value bytes that it held. None with other codes.
        """
    def log_error(self, code: int, message: bytes, wall_ns: int, count: int = 1) -> None:
        """Note an error that was seen `count` times. Errors of one code and message are one entry with a count."""

# For tests, in the build with -DTIMERD_FAULTS=ON (timerd.core_faults); elsewhere they raise NotSupportedError. ---

def record(limit: int, chance: int = 0) -> None:
    """Keep a copy of the arena at each ordering point from now on, the first `limit` of them; 0 ends it.

    With a `chance` (random bits, not 0) one copy is kept, of a random point: all points are equally likely.
    """

def snapshots() -> list[bytes]:
    """The copies kept since record(). They are dropped here, and no more are made."""

def set_defect(number: int) -> None:
    """Seed a defect, by its position from 1 in timerd_shm.generate.DEFECTS; 0 = none."""
