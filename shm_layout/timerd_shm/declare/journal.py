"""The journal's files, declared once: rows of 64 bytes in blocks of 4 KiB in segments. journal_reader.py reads them.

    DIR/000000000017.segment    header block (SegmentHeader, zeros), then blocks
    DIR/holds/NAME              a consumer's hold: the number of the first segment that it still needs
    DIR/lock                    flocked by the daemon that writes here, never unlinked

A block is a BlockHeader and BLOCK_ROWS rows. Its CRC covers everything behind the CRC, so a reader accepts or refuses
whole blocks. The last block of the newest segment is written again and again while rows come in. Blocks that were not
written yet are zero.

*Row numbers.* The core numbers rows from 0 for each arena incarnation, and a segment's header holds the number of its
first row. So the numbers show missing and repeated rows. A row's position in a segment is its *record*, from 0;
(segment, record) is an Offset.

*Texts.* Keys, clients, groups, purgatories and ids stand in TEXT rows, and other rows name them by the record of their
TEXT row in the same segment (0 = none). So a reader may begin anywhere, and finds a text without the rows before it. A
text may stand in a segment more than once.

The order of rows is the order in which the daemon applied commands and events. Times are CLOCK_MONOTONIC of the
segment's boot; its header and ANCHOR rows hold the wall clock's time as well.

*The end.* A daemon that ends in order writes an END row. The arena's header says how many rows there are
(`journal_rows`), even after a daemon was killed. So a missing last segment is noticed.

A new column is declared here, and written in timerd/purgatory/journal/rows.pxd. If the audit can compute its value,
client/timerd_client/audit compares it. Everything else that shows columns takes them from here, except Spark's view of
operations, which has a selection of columns: client/timerd_spark/source/schema.py.

To change the format: change the class here, raise JOURNAL_VERSION, run `make generate`, rebuild. New fields take the
place of reserved bytes, so that the other fields stay where they are. Then readers can still read the older version:
OLDER says what the older version lacks. Without a new version, the fingerprint makes readers refuse the files.
"""

from enum import IntEnum, IntFlag
from typing import Annotated, NamedTuple

from .fields import U8, U16, U32, U64, Field, fingerprint_of, raw, size_of
from .states import ClientFlag, ClientState, Condition, EventFlag, EventKind, KeyKind, Orphans, Outcome
from .wire import CommandFlag, CommandKind, RegisterFlag

JOURNAL_MAGIC = b"timerdj\x01"
JOURNAL_VERSION = 5
BUFFER_MAGIC = b"timerdb\x01"
ROW_SIZE = 64
BLOCK_SIZE = 4096
BLOCK_ROWS = 63  # the first 64 bytes are the header
TEXT_INLINE = 60
SEGMENT_SIZE_MIN = 64 << 10
SEGMENT_SIZE_MAX = 1 << 30
BUFFER_HEADER_SIZE = 4096
SNAPSHOT_UNFINISHED = 16  # a bit beside the level: rows for what existed when the journal began are still being written
BUFFER_ROWS_MIN = 1024  # more than the largest group of rows that belong together, plus the rest of a segment before it


class JournalLevel(IntEnum):
    """The content of a journal. OUTCOMES: how operations settled. EVENTS: also all that the outcomes follow from."""

    NONE = 0
    OUTCOMES = 1
    EVENTS = 2


class RowKind(IntEnum):
    """The first byte of a row."""

    PAD = 0  # unused: the rest of a block or a segment
    SEGMENT = 1  # record 0 of each segment
    TEXT = 2
    CONTINUED = 3  # more bytes of the TEXT row before it
    ANCHOR = 4  # the wall clock's time
    GAP = 5  # rows were dropped here
    OUTCOME = 6
    REGISTER = 7  # only at level EVENTS, as all kinds below except END
    REGISTERED = 8  # the second half of a registration
    KEY = 9  # one for each key, behind the REGISTERED row
    EVENT = 10
    ACTION = 11  # cancel, reschedule, set_orphans or complete of a pending operation; a call that is planned anew
    CLIENT = 12  # a client has another state, or begins to listen, or no longer listens
    WATERMARK = 13  # a watermark that existed when the journal began
    GROUP = 14  # what happens to an operation of a group
    TURN = 15  # a turn begins: its clock, before its first row
    END = 16  # the daemon ended in order: only rows of a later start follow


class GroupStep(IntEnum):
    """The steps of an operation of a group, besides its settling (OUTCOME)."""

    ADOPTED = 1  # its client has died: it belongs to the group now, pending or settled
    DELIVERED = 2  # its outcome was delivered to a member
    REQUEUED = 3  # the member died, is silent or no longer listens: the outcome goes to another member
    ACKNOWLEDGED = 4  # it is done, as the member that held it reports; for a call, any member may report it
    DROPPED = 5  # the group had no member for as long as outcomes are kept; or a dead letter made room
    BEGAN = 6  # a member is about to run something for a call, or gives the call up
    KEPT = 7  # a call is over, and kept as a dead letter
    CANCELLED = 8  # a call was cancelled, or replaced, after it was due and before it began
    EVICTED = 9  # the arena lacked room, and the ended clients of its maker's user held more than their share


class TextKind(IntEnum):
    """The kind of thing that a TEXT row names."""

    KEY = 1
    CLIENT = 2  # 16 bytes of incarnation, then the name
    GROUP = 3
    PURGATORY = 4
    ID = 5  # the 128-bit hash of an id, as in the id's record


class RowFlag(IntFlag):
    """Flags of OUTCOME, REGISTER and SEGMENT rows."""

    GRANTED = 1  # completed by a limited event
    REDELIVERED = 2
    VALUE_DROPPED = 4
    AT_REGISTRATION = 8  # it settled while it was registered
    SNAPSHOT = 16  # REGISTER: it was pending when the journal began; its mark is not known
    CONTINUES = 32  # SEGMENT: no daemon without a journal has run between the row before it and this one
    START = 64  # SEGMENT: a daemon has attached to the arena; silent clients are live again


class SegmentHeader(NamedTuple):
    """The start of a segment file; the rest of its first 4 KiB is zero."""

    magic: Annotated[bytes, raw(8), "b'timerdj', 1"]
    crc: Annotated[int, U32, "CRC-32 of the header behind this field"]
    version: Annotated[int, U32, "JOURNAL_VERSION"]
    fingerprint: Annotated[int, U32, "CRC-32 of the journal's field table"]
    level: Annotated[int, U32, "JournalLevel"]
    sequence: Annotated[int, U64, "number of the segment in its directory, as in its file's name"]
    first_row: Annotated[int, U64, "row number of its record 0"]
    incarnation: Annotated[int, U64, "of the arena; row numbers and op ids compare only within one"]
    boot_id: Annotated[bytes, raw(16), "the boot; times of CLOCK_MONOTONIC are of this boot"]
    monotonic_ns: Annotated[int, U64, "CLOCK_MONOTONIC when the file was made"]
    wall_ns: Annotated[int, U64, "CLOCK_REALTIME at that moment"]
    first_block: Annotated[int, U32, "blocks before it are absent: the file was removed while it was written"]
    pid: Annotated[int, U32, "of the daemon"]
    instance: Annotated[bytes, raw(32), "name of the instance, zero padded"]
    host: Annotated[bytes, raw(64), "host name, cut to 64 bytes, zero padded"]


class BlockHeader(NamedTuple):
    """The first 64 bytes of a block."""

    crc: Annotated[int, U32, "CRC-32 of the block behind this field"]
    count: Annotated[int, U32, "rows in it, 1 to BLOCK_ROWS; the others are zero"]
    first_row: Annotated[int, U64, "number of its first row"]
    sequence: Annotated[int, U64, "the segment's"]
    incarnation: Annotated[int, U64, "the segment's"]
    reserved: Annotated[bytes, raw(32), "zero"]


# Each column of a row says its type, what its number means (the class of a code or of flags, the TextKind of a text),
# what it is, and how the audit checks it, in a sentence that begins with a word of docs/reference/audit.md: computed,
# nearly computed, bounded, by effect, free. The readers, timerctl, Spark, docs/reference/journal.md and the tests
# take all this from here.
# fmt: off
class SegmentRow(NamedTuple):
    """SEGMENT: record 0 of each segment."""

    kind: Annotated[int, U8, "RowKind"]
    level: Annotated[int, U8, JournalLevel, "JournalLevel", "computed: as in the file's header"]
    flags: Annotated[int, U8, RowFlag, "RowFlag",
        "computed: START in the first row, and where `start` is a new one; CONTINUES in the others, unless a daemon "
        "without a journal ran in between"]
    reserved: Annotated[int, U8, "zero"]
    reserved_word: Annotated[int, U32, "zero"]
    incarnation: Annotated[int, U64, "of the arena", "computed: as in the file's header"]
    monotonic_ns: Annotated[int, U64, "CLOCK_MONOTONIC",
        "bounded by the rows before and behind it, and by the file's header"]
    newest: Annotated[int, U64, "newest event", "computed: the newest EVENT row"]
    start: Annotated[int, U64, "number of the daemon's start on this arena, from 1; with START the number is new",
        "computed: higher with START, else the same; the END row has it, too"]
    kept_ns: Annotated[int, U64, "the retention: how long outcomes of a group without a member are kept",
        "by effect: it gives the deadlines of kept operations, and bounds when a group's outcome is dropped"]
    rest: Annotated[bytes, raw(16), "zero"]


class TextRow(NamedTuple):
    """TEXT, and CONTINUED with its next bytes (where only `kind` and `text` are set)."""

    kind: Annotated[int, U8, "RowKind"]
    text_kind: Annotated[int, U8, "TextKind", "computed: what the naming column is about"]
    length: Annotated[int, U8, "bytes of the whole text; the rest stands in CONTINUED rows behind it",
        "by effect; bytes behind the text are zero"]
    reserved: Annotated[int, U8, "zero"]
    text: Annotated[bytes, raw(TEXT_INLINE), "its first bytes, zero padded",
        "by effect: it is what the caller gave. A client's begins with the incarnation of its CLIENT rows"]


class AnchorRow(NamedTuple):
    """ANCHOR: both clocks at one moment."""

    kind: Annotated[int, U8, "RowKind"]
    reserved_bytes: Annotated[bytes, raw(7), "zero"]
    monotonic_ns: Annotated[int, U64, "CLOCK_MONOTONIC", "computed: the turn's clock"]
    wall_ns: Annotated[int, U64, "CLOCK_REALTIME", "free: the wall clock may be set to any time"]
    rest: Annotated[bytes, raw(40), "zero"]


class GapRow(NamedTuple):
    """GAP: the buffer was full, because the files could not be written or not fast enough."""

    kind: Annotated[int, U8, "RowKind"]
    reserved_bytes: Annotated[bytes, raw(7), "zero"]
    rows: Annotated[int, U64,
        "number of dropped rows; not counted: TURN rows, and texts that the dropped rows would have named",
        "computed: the END row has the sum. A GAP is a finding in any case, and ends the audit"]
    from_ns: Annotated[int, U64, "CLOCK_MONOTONIC of the first dropped row; 0 = before this daemon's start",
        "bounded by the turns before and behind it"]
    to_ns: Annotated[int, U64, "CLOCK_MONOTONIC of the last dropped row", "bounded by the turns before and behind it"]
    rest: Annotated[bytes, raw(32), "zero"]


class OutcomeRow(NamedTuple):
    """OUTCOME: an operation has settled. There is one row for each operation."""

    kind: Annotated[int, U8, "RowKind"]
    outcome: Annotated[int, U8, Outcome, "Outcome",
        "computed from the events, commands and deaths before it. EXPIRED by the wheel: not before its deadline, and "
        "no event came before"]
    settled_key: Annotated[int, U8, "ordinal + 1 of the key that settled it; 0 = no key did",
        "computed: the key of the event or watermark, else 0"]
    flags: Annotated[int, U8, RowFlag, "RowFlag",
        "by effect: VALUE_DROPPED only if the event has a value; the room for a value depends on what the owner has "
        "acknowledged; the other flags are computed"]
    key: Annotated[int, U32, TextKind.KEY, "text: the key that settled it, else its first key",
        "computed: the name of that key, else of the first key"]
    operation: Annotated[int, U64, "op id: generation << 32 | index; unique within the incarnation",
        "computed: exactly one registration has it"]
    registered_ns: Annotated[int, U64, "when register() was called; up to CALL_AHEAD_NS_MAX ahead of its turn",
        "computed: as registered"]
    deadline_ns: Annotated[int, U64, "NO_DEADLINE = none",
        "computed: as registered, rescheduled or planned anew; of a kept operation without a deadline, the time "
        "of the owner's death plus the retention"]
    settled_ns: Annotated[int, U64, "when it settled",
        "computed: the turn's clock. The wheel's lateness is not checked"]
    sequence: Annotated[int, U64,
        "of the event that settled it, else of the newest event that it could have been given",
        "nearly computed: of the event, else of the newest event that had reached the operation. While an event that "
        "came too late is in delivery, that event and the one before are both possible"]
    owner: Annotated[int, U32, TextKind.CLIENT, "text: its client, or its group while no member holds it; 0 = neither",
        "computed: its client, or its group; of a kept operation, its dead client or nobody"]
    error: Annotated[int, U32, "code given to fail()", "computed: the code of the FAIL event, else 0"]
    purgatory: Annotated[int, U32, TextKind.PURGATORY, "text", "computed: as registered"]
    id: Annotated[int, U32, TextKind.ID, "text: its id; 0 = none", "computed: as registered"]


class RegisterRow(NamedTuple):
    """REGISTER: a registration. Its second half is the REGISTERED row behind it; then come its KEY rows."""

    kind: Annotated[int, U8, "RowKind"]
    condition: Annotated[int, U8, Condition, "Condition",
        "by effect, and by `needed`, which is from 1 to the number of keys for AT_LEAST, else 0"]
    needed: Annotated[int, U8, "k of AT_LEAST; else 0",
        "by effect, and by `condition`: from 1 to the number of keys for AT_LEAST, else 0"]
    keys: Annotated[int, U8, "number of KEY rows", "computed: the number of KEY rows that follow"]
    command_flags: Annotated[int, U16, RegisterFlag, "RegisterFlag of the command",
        "by effect; HAS_ID, FOR_GROUP, ORPHANS_GIVEN and the flags of replacing are computed"]
    orphans: Annotated[int, U8, Orphans, "Orphans",
        "by effect, with ORPHANS_GIVEN; else computed: the client's policy, or GROUP for a group"]
    flags: Annotated[int, U8, RowFlag, "RowFlag",
        "by effect: none, or SNAPSHOT. A registration from before the journal (SNAPSHOT) is a finding"]
    operation: Annotated[int, U64, "op id", "computed: all rows of a registration and its outcome have it"]
    registration: Annotated[int, U64, "registration number: watchers settle in this order",
        "bounded by the registration before it, if a start lies between them; else computed: one after the other"]
    command: Annotated[int, U64, "command number", "bounded: it rises with each command of a client"]
    registered_ns: Annotated[int, U64, "when register() was called",
        "computed: its outcome has it; at most CALL_AHEAD_NS_MAX ahead of the turn"]
    deadline_ns: Annotated[int, U64, "NO_DEADLINE = none",
        "by effect: the outcome has it, except after a reschedule or a new plan; not before `registered_ns`"]
    mark_sequence: Annotated[int, U64,
        "newest event of the mark; under SNAPSHOT the newest event that the operation was given", "by effect"]
    mark_command: Annotated[int, U64, "newest own command of the mark; under SNAPSHOT the failed keys, one bit each",
        "by effect"]


class RegisteredRow(NamedTuple):
    """REGISTERED: the second half of a registration."""

    kind: Annotated[int, U8, "RowKind"]
    reserved: Annotated[int, U8, "zero"]
    client: Annotated[int, U16, "slot of the client that registered it; under SNAPSHOT of its owner",
        "computed: the client is live, and has this name; or it is its group"]
    client_generation: Annotated[int, U32, "generation of that slot; 0 = no client's",
        "computed: the client is live, and has this name; or it is its group"]
    operation: Annotated[int, U64, "op id", "computed: as REGISTER"]
    total: Annotated[int, U64, "amount to reach, under TOTAL; under SNAPSHOT the missing part of it",
        "by effect; 0 except under TOTAL"]
    effective_ns: Annotated[int, U64, "its effective time: an operation with a deadline up to this expires",
        "computed: the turn's"]
    newest: Annotated[int, U64, "newest event when it was applied", "computed: the newest EVENT row"]
    progress: Annotated[int, U64, "under SNAPSHOT: satisfied keys, one bit each; else 0", "computed: 0"]
    owner: Annotated[int, U32, TextKind.CLIENT, "text: its client or group",
        "computed: the client is live, and has this name; or it is its group"]
    purgatory: Annotated[int, U32, TextKind.PURGATORY, "text", "computed: its outcome has it"]
    id: Annotated[int, U32, TextKind.ID, "text: its id; 0 = none", "computed: its outcome has it"]
    payload_length: Annotated[int, U32, "bytes of its payload", "free, up to the longest payload"]


class KeyRow(NamedTuple):
    """KEY: a key of a registration."""

    kind: Annotated[int, U8, "RowKind"]
    key_kind: Annotated[int, U8, KeyKind, "KeyKind", "by effect; an event key has the target 0"]
    ordinal: Annotated[int, U8, "position among the operation's keys, from 0", "computed: from 0 on"]
    reserved: Annotated[int, U8, "zero"]
    key: Annotated[int, U32, TextKind.KEY, "text", "by effect; the outcome has one of the keys; no key stands twice"]
    operation: Annotated[int, U64, "op id", "computed: as REGISTER"]
    target: Annotated[int, U64, "watermark to reach; 0 for an event key", "by effect; an event key has the target 0"]
    rest: Annotated[bytes, raw(40), "zero"]


class EventRow(NamedTuple):
    """EVENT: an event has entered the ring."""

    kind: Annotated[int, U8, "RowKind"]
    event_kind: Annotated[int, U8, EventKind, "EventKind",
        "by effect; an ADVANCE raises the watermark, a FORGET removes one, a FAIL's code has 32 bits"]
    flags: Annotated[int, U8, EventFlag, "EventFlag",
        "by effect; LIMITED only with a limit; computed for a requeued event"]
    reserved: Annotated[int, U8, "zero"]
    key: Annotated[int, U32, TextKind.KEY, "text", "by effect; computed for a requeued event"]
    sequence: Annotated[int, U64, "from 1", "computed: one after the other"]
    effective_ns: Annotated[int, U64, "its effective time: it counts for deadlines after this", "computed: the turn's"]
    amount: Annotated[int, U64, "amount of a fire, offset of an advance, code of a fail",
        "by effect; an ADVANCE raises the watermark, a FORGET removes one, a FAIL's code has 32 bits"]
    command: Annotated[int, U64, "its client's command number; under REDELIVERED the op id that was requeued",
        "bounded: it rises with each command of a client; computed for a requeued event: the operation"]
    owner: Annotated[int, U32, TextKind.CLIENT, "text: its client",
        "computed: the client is live, and has this name; of a requeued event, the slot of its owner"]
    limit: Annotated[int, U32, "operations that it may complete, with LIMITED; else 0",
        "by effect; LIMITED only with a limit; computed for a requeued event"]
    purgatory: Annotated[int, U32, TextKind.PURGATORY, "text", "by effect; computed for a requeued event"]
    client_generation: Annotated[int, U32, "generation of its client's slot; 0 = no client's",
        "computed: the client is live, and has this name; of a requeued event, the slot of its owner"]
    client: Annotated[int, U16, "slot of its client",
        "computed: the client is live, and has this name; of a requeued event, the slot of its owner"]
    reserved_half: Annotated[int, U16, "zero"]
    value_length: Annotated[int, U32, "bytes of its value",
        "free, up to the longest value; computed for a requeued event"]


class ActionRow(NamedTuple):
    """ACTION: a command changed a pending operation. When it was cancelled or completed, its OUTCOME row follows.

    An ACTION row may also say that the daemon has planned a call anew, because the wall clock was set. Such a row has
    no client and no command.
    """

    kind: Annotated[int, U8, "RowKind"]
    command_kind: Annotated[int, U8, CommandKind, "CommandKind; 0 = a call is planned anew",
        "by effect, and by the other columns: HAS_ID with the kinds that name an id; kind 0 (a call that is planned "
        "anew) without the columns of a command"]
    flags: Annotated[int, U8, CommandFlag, "CommandFlag of the command",
        "by effect, and by the other columns: HAS_ID with the kinds that name an id; kind 0 (a call that is planned "
        "anew) without the columns of a command"]
    orphans: Annotated[int, U8, Orphans, "Orphans, of SET_ORPHANS; else 0", "by effect, of SET_ORPHANS; else 0"]
    client_generation: Annotated[int, U32, "generation of the slot of the client that sent it",
        "computed: the client is live, has this name, and owns the operation or names it by its id"]
    operation: Annotated[int, U64, "op id",
        "computed: it is pending; with REQUEUE it may be settled; a call that is planned anew is due by the wall clock"]
    applied_ns: Annotated[int, U64, "when it was applied", "computed: the turn's clock"]
    deadline_ns: Annotated[int, U64, "the new deadline, in a row of RESCHEDULE or of a new plan; NO_DEADLINE = none",
        "by effect: the outcome has the last deadline; unchanged except by a reschedule or a new plan"]
    command: Annotated[int, U64, "command number", "bounded: it rises with each command of a client"]
    client: Annotated[int, U16, "slot of that client",
        "computed: the client is live, has this name, and owns the operation or names it by its id"]
    reserved: Annotated[int, U16, "zero"]
    owner: Annotated[int, U32, TextKind.CLIENT, "text: that client",
        "computed: the client is live, has this name, and owns the operation or names it by its id"]
    rest: Annotated[bytes, raw(16), "zero"]


class ClientRow(NamedTuple):
    """CLIENT: a client's state has changed. A start makes silent clients live without a CLIENT row: see SEGMENT."""

    kind: Annotated[int, U8, "RowKind"]
    state: Annotated[int, U8, ClientState, "ClientState",
        "by effect: LIVE or SILENT; the order of the states is computed"]
    orphans: Annotated[int, U8, Orphans, "Orphans of its operations",
        "by effect; the same in all rows of a client, until it returns from a tombstone"]
    flags: Annotated[int, U8, ClientFlag, "ClientFlag",
        "by effect: LISTENS, which a row without a new state changes. Computed: GOODBYE, if no tombstone follows; "
        "KEEPS, only of a silent client whose outcomes are not requeued"]
    client_generation: Annotated[int, U32, "generation of its slot",
        "computed: a slot's generations count up, and each begins when the client before has left. If no other row has "
        "the slot, it may be any slot"]
    at_ns: Annotated[int, U64, "when", "computed: the turn's clock"]
    incarnation_low: Annotated[int, U64, "incarnation of the client, the hash of its proof: low half",
        "computed: the name begins with the incarnation, and stays"]
    incarnation_high: Annotated[int, U64, "high half", "computed: the name begins with the incarnation, and stays"]
    client: Annotated[int, U16, "its slot",
        "nearly computed: a slot's generations count up, and each begins when the client before has left. If no other "
        "row has the slot, it may be any slot"]
    reserved_half: Annotated[int, U16, "zero"]
    owner: Annotated[int, U32, TextKind.CLIENT, "text: the client",
        "computed: the name begins with the incarnation, and stays"]
    pid: Annotated[int, U32, "in the daemon's pid namespace; 0 = not known",
        "by effect; the same in all rows of a client, until it returns from a tombstone"]
    group: Annotated[int, U32, TextKind.GROUP, "text: its group; 0 = none",
        "by effect; the same in all rows of a client, until it returns from a tombstone"]
    rest: Annotated[bytes, raw(16), "zero"]


class WatermarkRow(NamedTuple):
    """WATERMARK: a key's watermark when the journal began."""

    kind: Annotated[int, U8, "RowKind"]
    reserved_bytes: Annotated[bytes, raw(3), "zero"]
    key: Annotated[int, U32, TextKind.KEY, "text", "free: what was there before the journal"]
    watermark: Annotated[int, U64, "highest offset advanced to", "free: what was there before the journal"]
    at_ns: Annotated[int, U64, "when this row was written", "computed: the turn's clock"]
    newest: Annotated[int, U64, "newest event at that time", "computed: the newest EVENT row"]
    purgatory: Annotated[int, U32, TextKind.PURGATORY, "text", "free: what was there before the journal"]
    reserved_word: Annotated[int, U32, "zero"]
    rest: Annotated[bytes, raw(24), "zero"]


class GroupRow(NamedTuple):
    """GROUP: what happens to an operation of a group."""

    kind: Annotated[int, U8, "RowKind"]
    step: Annotated[int, U8, GroupStep, "GroupStep", "computed: which steps follow which, for which member"]
    deliveries: Annotated[int, U8, "times it was delivered, or may have been acted on; 255 = 255 or more",
        "computed: counted"]
    reserved: Annotated[int, U8, "zero"]
    group: Annotated[int, U32, TextKind.GROUP, "text: the group", "computed: the operation's, and the member's"]
    operation: Annotated[int, U64, "op id", "computed: it is known, and settled"]
    at_ns: Annotated[int, U64, "when", "computed: the turn's clock. DROPPED: not before the retention"]
    outcome_number: Annotated[int, U64, "the member's number of this outcome; 0 = it is delivered to no member",
        "computed: a member's outcomes are numbered one by one"]
    command: Annotated[int, U64, "command number, of a step that a client's command takes; 0 = the daemon takes it",
        "bounded: it rises with each command of a client; 0 except in ACKNOWLEDGED, BEGAN, CANCELLED and KEPT"]
    client: Annotated[int, U16, "slot of the member, or of the client that cancels; of ADOPTED, of the owner that died",
        "computed: the member that has the operation, and its name"]
    reserved_half: Annotated[int, U16, "zero"]
    client_generation: Annotated[int, U32, "generation of that slot; 0 = no client's",
        "computed: the member that has the operation, and its name"]
    owner: Annotated[int, U32, TextKind.CLIENT, "text: that client",
        "computed: the member that has the operation, and its name"]
    reserved_word: Annotated[int, U32, "zero"]
    rest: Annotated[bytes, raw(8), "zero"]


class TurnRow(NamedTuple):
    """TURN: the rows behind it, up to the next TURN row, are of one turn. Level EVENTS.

    In each segment, one stands before all rows except SEGMENT and GAP, so a reader may begin with any segment.
    """

    kind: Annotated[int, U8, "RowKind"]
    reserved_bytes: Annotated[bytes, raw(7), "zero"]
    now_ns: Annotated[int, U64, "the turn's clock: the time of everything that the turn does",
        "nearly computed: rows of settlements in the turn have it; without such rows, any time between the turn "
        "before and the turn after"]
    effective_ns: Annotated[int, U64, "the effective time of what the turn reads: `now_ns`, or a time before a gap",
        "by effect: events and registrations have it. In a gap: the time of an earlier turn"]
    newest: Annotated[int, U64, "newest event before its first row", "computed: the newest EVENT row"]
    rest: Annotated[bytes, raw(32), "zero"]


class EndRow(NamedTuple):
    """END: the daemon ended in order. The journal has all that its arena did before this row."""

    kind: Annotated[int, U8, "RowKind"]
    reserved_bytes: Annotated[bytes, raw(7), "zero"]
    at_ns: Annotated[int, U64, "CLOCK_MONOTONIC", "computed: the turn's clock"]
    number: Annotated[int, U64, "the number of this row", "computed: the row's number"]
    newest: Annotated[int, U64, "newest event", "computed: the newest EVENT row"]
    start: Annotated[int, U64, "number of the daemon's start on this arena", "computed: as the newest SEGMENT row"]
    gaps: Annotated[int, U64, "rows that the GAP rows of this arena have counted", "computed: the sum of the GAP rows"]
    rest: Annotated[bytes, raw(16), "zero"]


# fmt: on
class BufferHeader(NamedTuple):
    """The start of the buffer between core and writer: shared memory, so that rows outlive a killed daemon.

    Row n stands at BUFFER_HEADER_SIZE + n % rows * ROW_SIZE; the arena's header says which rows are there.
    """

    magic: Annotated[bytes, raw(8), "b'timerdb', 1"]
    fingerprint: Annotated[int, U32, "CRC-32 of the journal's field table"]
    rows: Annotated[int, U32, "rows for which it has room; a power of two"]
    incarnation: Annotated[int, U64, "of the arena whose rows it holds"]


ROWS: dict[RowKind, type] = {
    RowKind.SEGMENT: SegmentRow,
    RowKind.TEXT: TextRow,
    RowKind.CONTINUED: TextRow,
    RowKind.ANCHOR: AnchorRow,
    RowKind.GAP: GapRow,
    RowKind.OUTCOME: OutcomeRow,
    RowKind.REGISTER: RegisterRow,
    RowKind.REGISTERED: RegisteredRow,
    RowKind.KEY: KeyRow,
    RowKind.EVENT: EventRow,
    RowKind.ACTION: ActionRow,
    RowKind.CLIENT: ClientRow,
    RowKind.WATERMARK: WatermarkRow,
    RowKind.GROUP: GroupRow,
    RowKind.TURN: TurnRow,
    RowKind.END: EndRow,
}


def is_unused(name: str) -> bool:
    """Whether a column of that name is unused bytes, which are zero."""
    return name.startswith(("reserved", "rest"))


def is_shown(column: Field) -> bool:
    """Whether programs see the column: not the row's kind, nor unused bytes."""
    return column.name != "kind" and not is_unused(column.name)


# For each kind of row, the field that holds its time.
TIMES: dict[RowKind, str] = {
    RowKind.SEGMENT: "monotonic_ns",
    RowKind.ANCHOR: "monotonic_ns",
    RowKind.GAP: "to_ns",
    RowKind.OUTCOME: "settled_ns",
    RowKind.REGISTER: "registered_ns",
    RowKind.REGISTERED: "effective_ns",
    RowKind.EVENT: "effective_ns",
    RowKind.ACTION: "applied_ns",
    RowKind.CLIENT: "at_ns",
    RowKind.WATERMARK: "at_ns",
    RowKind.GROUP: "at_ns",
    RowKind.TURN: "now_ns",
    RowKind.END: "at_ns",
}


class Older(NamedTuple):
    """The fields and row kinds that segments of an older version lack. All other fields are where they are today."""

    fields: dict[RowKind, frozenset[str]]  # these were reserved bytes, zero
    kinds: frozenset[RowKind]  # no row is of these kinds


NOTHING_LACKS = Older({}, frozenset())
# The versions that are read as well, by version and fingerprint.
OLDER: dict[tuple[int, int], Older] = {
    # Version 4: no call was planned anew.
    (4, 0xD0128B7A): NOTHING_LACKS,
    # Version 3: as version 4, and ACTION had no COMPLETE.
    (3, 0xD0128B7A): NOTHING_LACKS,
    # Version 2: as version 3, and `effective_ns` was the time at which an event, or a registration, was applied.
    (2, 0x5A2BACC5): Older({RowKind.SEGMENT: frozenset(("start", "kept_ns"))}, frozenset((RowKind.TURN, RowKind.END))),
}
JOURNAL_RECORDS: tuple[type, ...] = (SegmentHeader, BlockHeader, BufferHeader, *dict.fromkeys(ROWS.values()))

assert BLOCK_SIZE == (BLOCK_ROWS + 1) * ROW_SIZE
assert size_of(SegmentHeader) <= BLOCK_SIZE and size_of(BlockHeader) == ROW_SIZE
assert all(size_of(row) == ROW_SIZE for row in ROWS.values()), {row.__name__: size_of(row) for row in ROWS.values()}


def journal_fingerprint() -> int:
    """CRC-32 of the journal's field table."""
    return fingerprint_of(JOURNAL_RECORDS)
