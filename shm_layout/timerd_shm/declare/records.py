"""The records of the arena, field by field, with the role of each field after a crash.

layout.py says where the records lie, and what an index, a link and "index + 1" are. states.py says what the number of a
state, kind or flag means.
"""

from typing import Annotated, NamedTuple

from .fields import DERIVED, HINT, SETTLEMENT, STATISTIC, U8, U16, U32, U64, raw

KEY_INLINE = 16
EVENT_KEY_INLINE = 48
BLOCK_DATA = 112
HISTOGRAM_SUB_BITS = 4  # 16 steps in each power of two: at most 6.25 % wide
HISTOGRAM_BUCKETS = 976


class ArenaHeader(NamedTuple):
    """The first bytes of an arena. `layout_version` is stored last, with release order: until then it reads 0."""

    magic: Annotated[bytes, raw(8), "b'timerd', 0, 1"]
    layout_version: Annotated[int, U64, "0 while the arena is being made"]
    fingerprint: Annotated[int, U32, "CRC-32 of the field table that the daemon was built with"]
    header_size: Annotated[int, U32, "where the regions begin, in bytes"]
    incarnation: Annotated[int, U64, "random; numbers compare only within one incarnation"]
    size: Annotated[int, U64, "bytes of the whole arena"]
    seed_check: Annotated[int, U64, "check value of the seed (ARENA.seed) of all hashes; 0: they are being made anew"]
    boot_id: Annotated[bytes, raw(16), "the boot; times of CLOCK_MONOTONIC are of this boot"]
    tick_ns: Annotated[int, U64, "width of a bucket of level 0"]
    instance: Annotated[bytes, raw(32), "name of the instance, zero padded"]
    created_wall_ns: Annotated[int, U64, "CLOCK_REALTIME when the arena was made"]
    pid: Annotated[int, U32, "the daemon that has attached; 0 after a clean end", DERIVED]
    region_count: Annotated[int, U32, "rows of the region table"]
    start_ticks: Annotated[int, U64, "field 22 of the daemon's /proc/PID/stat: differs for a recycled pid", DERIVED]
    attached_ns: Annotated[int, U64, "CLOCK_MONOTONIC when this daemon attached", DERIVED]
    newest: Annotated[int, U64, "sequence of the newest event; workers read it for their marks"]
    tail: Annotated[int, U64, "sequence of the oldest event in the ring"]
    purgatories_floor: Annotated[int, U64, "the largest sequence that an event of a reclaimed purgatory may have"]
    ids_floor_ns: Annotated[int, U64, "ids that settled before it may have been forgotten"]
    registrations: Annotated[int, U64, "newest registration number", DERIVED]
    turn: Annotated[int, U64, "odd while a turn runs: a seqlock for readers of several words", STATISTIC]
    turn_at_ns: Annotated[int, U64, "CLOCK_MONOTONIC of the newest turn", STATISTIC]
    wheel_tick: Annotated[int, U64, "the wheel's own time: every tick up to it has been processed", DERIVED]
    unfinished: Annotated[int, U64, "sequence of the event that is still being delivered; 0 = none", DERIVED]
    ring_bytes: Annotated[int, U64, "bytes of values and long keys that the ring holds", DERIVED]
    ring_bytes_max: Annotated[int, U64, "limit of ring_bytes"]
    quota_operations: Annotated[int, U32, "operations a client may hold, pending or unacknowledged"]
    quota_watermarks: Annotated[int, U32, "watermarks a client may set"]
    quota_bytes: Annotated[int, U64, "bytes of payloads, values and long keys that a client may hold"]
    quota_outcomes: Annotated[int, U32, "unacknowledged outcomes a client may have"]
    quota_answers: Annotated[int, U32, "unacknowledged refusals and answers a client may have"]
    quota_nodes: Annotated[
        int, U32, "watch nodes of NODES that a client may hold: keys of its operations after the first"
    ]
    quota_clients: Annotated[int, U32, "client slots that one process may have"]
    quota_ids: Annotated[int, U32, "pending operations with ids that a client may hold"]
    reserved: Annotated[int, U32, "zero"]
    ids_kept_ns: Annotated[int, U64, "how long a settled id is remembered"]
    group_kept_ns: Annotated[int, U64, "how long a group's outcome is kept while the group has no member"]
    letters_max: Annotated[int, U64, "dead letters that a group keeps"]
    newest_letter: Annotated[int, U64, "number of the newest dead letter; 0 = there was none"]
    schedule_kept_ns: Annotated[int, U64, "how long a schedule's call is kept while no member handles it"]
    wall_ahead_ns: Annotated[
        int, U64, "CLOCK_REALTIME less CLOCK_MONOTONIC, modulo 2**64, by which calls are planned; 0 = not known"
    ]
    journal_rows: Annotated[int, U64, "rows that were put in the journal: the number of the next one"]
    journal_segment: Annotated[int, U64, "row with which the journal's present segment begins"]
    journal_gaps: Annotated[int, U64, "dropped rows that GAP rows have counted"]
    journal_level: Annotated[int, U64, "JournalLevel of the daemon that has attached; SNAPSHOT_UNFINISHED"]
    journal_written: Annotated[int, U64, "rows that stand in the journal's files", STATISTIC]
    redo_count: Annotated[int, U64, "entries of a committed transaction that are being stored; 0 = none"]


class RedoEntry(NamedTuple):
    """One word of the transaction in the redo slot. Its value is absolute, so storing it again changes nothing."""

    offset: Annotated[int, U64, "where the word lies, in bytes from the start of the arena"]
    value: Annotated[int, U64, "what the word becomes"]


class RegionRecord(NamedTuple):
    """Where the records of one kind lie."""

    offset: Annotated[int, U64, "bytes from the start of the arena"]
    record_size: Annotated[int, U32, "bytes of a record"]
    count: Annotated[int, U32, "records in the region"]
    high_water: Annotated[int, U32, "records that were ever used: the rest is zero"]
    in_use: Annotated[int, U32, "records in use now", DERIVED]
    free_head: Annotated[int, U32, "first free record (index + 1)", DERIVED]
    free_link: Annotated[int, U32, "offset in a record of the field that chains free ones"]


class OpRecord(NamedTuple):
    """A delayed operation, with the watch node of its first key in its last 64 bytes.

    Its op id is generation << 32 | index. The first key's node has the operation's index; further nodes lie in NODES.
    """

    state: Annotated[int, U8, "OpState"]
    outcome: Annotated[int, U8, "Outcome"]
    settled_key: Annotated[int, U8, "ordinal + 1 of the key whose event settled it; 0 = no key did"]
    deliveries: Annotated[int, U8, "how often it was delivered to a member of its group; 255 = that often or more"]
    generation: Annotated[int, U32, "raised on each use of the record"]
    settled_ns: Annotated[int, U64, "CLOCK_MONOTONIC", SETTLEMENT]
    registered_ns: Annotated[int, U64, "CLOCK_MONOTONIC when register() was called"]
    seen: Annotated[
        int, U64, "sequence of the newest event that it was given; once it has settled, that of its outcome's mark"
    ]
    progress: Annotated[
        int,
        U64,
        "satisfied keys, one bit each; under TOTAL the missing part of the amount; under OBSERVE the event's amount; "
        "under OWNER the newest event at which the owner is to look; in a settled call the time since which it runs, "
        "0 = it does not run",
    ]
    keys: Annotated[int, U8, "number of watch keys"]
    needed: Annotated[int, U8, "k of AT_LEAST"]
    purgatory: Annotated[int, U8, "index of its purgatory"]
    condition: Annotated[int, U8, "Condition"]
    orphans: Annotated[int, U8, "Orphans; its owner can change it"]
    flags: Annotated[int, U8, "OpFlag"]
    group: Annotated[int, U16, "the group (index + 1) that owns it, by registration or adoption; 0 = a client does"]
    command: Annotated[int, U64, "command number of its registration: client and daemon name it by this number"]
    registration: Annotated[int, U64, "registration number: watchers settle in this order"]
    id_record: Annotated[int, U32, "its id (index + 1); 0 = none"]
    payload: Annotated[int, U32, "first block of its payload (index + 1)"]
    value: Annotated[int, U32, "first block of the value that settled it (index + 1)", SETTLEMENT]
    tag: Annotated[int, U32, "its tag in the table of handles, if it has an entry there", DERIVED]
    failed: Annotated[
        int,
        U64,
        "failed keys, one bit each; under OBSERVE the EventKind; under OWNER the newest event at which the owner "
        "has looked; in a settled call how long it may run, in ns, 0 = for ever",
    ]
    outcome_number: Annotated[
        int,
        U64,
        "numbered per client, from 1; 0 = no client has it now. Of a dead letter: the letter's number",
        SETTLEMENT,
    ]
    client: Annotated[int, U16, "slot of its owner, or of the member that now holds it for its group"]
    bucket: Annotated[int, U16, "wheel bucket it is in (index + 1)", DERIVED]
    client_generation: Annotated[int, U32, "generation of that slot; 0 = no client's: kept, or waiting in its group"]
    deadline_ns: Annotated[int, U64, "CLOCK_MONOTONIC; NO_DEADLINE = none"]
    error: Annotated[
        int,
        U32,
        "code given to fail(); in a settled call its CallPhase, and from bit 8 on how many processes it has ended",
        SETTLEMENT,
    ]
    prefetch_hint: Annotated[int, U32, "operation (index + 1) that joined the same list some positions later", HINT]
    next: Annotated[int, U32, "link: bucket list while pending, its client's or group's outcomes when settled", DERIVED]
    prev: Annotated[int, U32, "link", DERIVED]
    first_node: Annotated[bytes, raw(64), "the WatchNode of its first key", HINT]


class WatchNode(NamedTuple):
    """One key of one operation, with the key's name.

    A node's index counts first the nodes that lie in operation records, and after them the records of NODES.

    A node waits in its key's list or heap until the key is satisfied or failed for the operation. Event watchers of a
    key stand in a list, a circle, in order of registration. Watermark watchers of a key stand in a leftist heap by
    (target, registration): `prev` is the first child; `next` is the sibling, or in the last child the parent. The key
    table leads to the node that stands first in a list, or at the top of a heap.
    """

    hash: Annotated[int, U64, "keyed hash of purgatory and name"]
    target: Annotated[
        int,
        U64,
        "watermark to reach; 0 in an event key; in the key that is a call's name the time when the call is due, "
        "CLOCK_REALTIME, 0 = by its deadline alone; in a failed key the code given to fail()",
    ]
    op: Annotated[int, U32, "its operation (index)"]
    next_of_op: Annotated[int, U32, "next node of the same operation (index + 1)"]
    purgatory: Annotated[int, U8, "index of its purgatory"]
    name_length: Annotated[int, U8, "bytes of the name"]
    ordinal: Annotated[int, U8, "position of the key among the operation's keys, from 0"]
    kind: Annotated[int, U8, "KeyKind"]
    rank: Annotated[int, U8, "heap: length of the shortest way down", DERIVED]
    place: Annotated[int, U8, "Place", DERIVED]
    account: Annotated[
        int,
        U16,
        "in the first node of a group's operation, or of one without an owner: the account (index + 1) that pays for "
        "it; else 0",
    ]
    name: Annotated[bytes, raw(KEY_INLINE), "the name, if it fits"]
    name_blob: Annotated[int, U32, "first block of a name that is longer than KEY_INLINE (index + 1)"]
    chain: Annotated[
        int, U32, "of a node that stands first: next node of the same slot of the key table (index + 1)", DERIVED
    ]
    next: Annotated[int, U32, "list: link; heap: sibling or parent (index + 1)", DERIVED]
    prev: Annotated[int, U32, "list: link; heap: first child (index + 1)", DERIVED]


class WatermarkRecord(NamedTuple):
    """A watermark of a key. Keys without a watermark need no record of their own."""

    hash: Annotated[int, U64, "keyed hash of purgatory and name"]
    watermark: Annotated[int, U64, "highest offset advanced to"]
    used: Annotated[int, U8, "1 while it is set"]
    purgatory: Annotated[int, U8, "index of its purgatory"]
    setter: Annotated[int, U16, "client slot that the watermark is charged to"]
    setter_generation: Annotated[int, U16, "low half of that slot's generation"]
    name_length: Annotated[int, U8, "bytes of the name"]
    reserved: Annotated[int, U8, "zero"]
    name: Annotated[bytes, raw(KEY_INLINE), "the name, if it fits"]
    name_blob: Annotated[int, U32, "first block of a name that is longer than KEY_INLINE (index + 1)"]
    unused: Annotated[int, U32, "zero"]
    chain: Annotated[
        int, U32, "next of the same slot of the watermark table, or of the free records (index + 1)", DERIVED
    ]
    prefetch_hint: Annotated[int, U32, "a free record (index + 1) some positions further on", HINT]


class Block(NamedTuple):
    """A piece of a payload, value or long key. Only the first block of a chain has refs and length."""

    next: Annotated[int, U32, "next block of the chain (index + 1)"]
    length: Annotated[int, U32, "bytes in the whole chain"]
    refs: Annotated[int, U32, "operations and ring records that name the chain", DERIVED]
    reserved: Annotated[int, U32, "zero"]
    data: Annotated[bytes, raw(BLOCK_DATA), "the bytes"]


class ClientRecord(NamedTuple):
    """A client: a process and connection with its own numbering."""

    state: Annotated[int, U8, "ClientState"]
    orphans: Annotated[int, U8, "Orphans of its operations unless a registration says otherwise"]
    name_length: Annotated[int, U8, "bytes of its name"]
    flags: Annotated[int, U8, "ClientFlag"]
    generation: Annotated[int, U32, "raised on each use of the slot, but not when a tombstone is resumed"]
    incarnation_low: Annotated[int, U64, "hash of a secret that the client made (timerd_wire/proof.py), low half"]
    incarnation_high: Annotated[int, U64, "high half"]
    session_low: Annotated[int, U64, "SHA-256 of its session, first 8 bytes: the secret itself is nowhere in the arena"]
    session_high: Annotated[int, U64, "the next 8"]
    last_command: Annotated[int, U64, "number of its last command that was applied"]
    next_outcome: Annotated[int, U64, "number that its next outcome gets"]
    acknowledged: Annotated[int, U64, "outcomes up to this number are acknowledged"]
    answers_acknowledged: Annotated[int, U64, "answers up to this command number are acknowledged"]
    pid: Annotated[int, U32, "in the daemon's pid namespace; 0 = not known"]
    group: Annotated[int, U16, "the group it is a member of (index + 1); 0 = none, as in a tombstone"]
    calls: Annotated[int, U16, "most calls of its group that it holds at a time; 0 = it takes none"]
    start_ticks: Annotated[int, U64, "field 22 of /proc/PID/stat: differs for a recycled pid"]
    pid_namespace: Annotated[int, U64, "inode of its pid namespace"]
    connected_wall_ns: Annotated[int, U64, "CLOCK_REALTIME of its hello"]
    name: Annotated[bytes, raw(32), "its name, for people"]
    last_frame_ns: Annotated[int, U64, "CLOCK_MONOTONIC of its last frame", STATISTIC]
    silent_ns: Annotated[int, U64, "time it has been silent while the daemon was reading", STATISTIC]
    lease_ns: Annotated[int, U64, "how long it may be silent"]
    next: Annotated[int, U32, "link: head of its settled operations, in order of outcome number", DERIVED]
    prev: Annotated[int, U32, "link: tail", DERIVED]
    answers_next: Annotated[int, U32, "link: head of its answers, in order of command number", DERIVED]
    answers_prev: Annotated[int, U32, "link: tail", DERIVED]
    pending: Annotated[int, U32, "its own pending operations", DERIVED]
    unacknowledged: Annotated[int, U32, "its own settled operations", DERIVED]
    answers: Annotated[int, U32, "its unacknowledged answers", DERIVED]
    watermarks: Annotated[int, U32, "watermarks charged to it", DERIVED]
    bytes_held: Annotated[int, U64, "bytes of payloads, values and long keys charged to it", DERIVED]
    died_ns: Annotated[int, U64, "CLOCK_MONOTONIC when it was found dead"]
    held: Annotated[int, U16, "outcomes (not calls) of its group that it holds: delivered, and not done", DERIVED]
    calls_held: Annotated[int, U16, "calls of its group that it holds: delivered, and not done", DERIVED]
    takeover_ms: Annotated[int, U32, "how long a silent client whose process runs keeps outcomes and calls"]
    names: Annotated[int, U32, "first block of the names that it handles (index + 1): the unkeyed hash of each, a U64"]
    nodes: Annotated[int, U32, "watch nodes of its own operations", DERIVED]
    maker_start_ticks: Annotated[int, U64, "field 22 of the /proc/PID/stat of the process in maker_pid"]
    maker_pid: Annotated[int, U32, "process that said hello, as the kernel says: it pays for the slot; 0 = not known"]
    ids: Annotated[int, U32, "ids of its own pending operations", DERIVED]
    purgatories: Annotated[int, U64, "the purgatories that it has named, a bit each: it knows their indices"]
    ids_next: Annotated[int, U32, "link: head of the remembered ids that it pays for, oldest first", DERIVED]
    ids_prev: Annotated[int, U32, "link: tail", DERIVED]


class LevelRecord(NamedTuple):
    """Which buckets of a level hold something: bit b is bucket b."""

    occupied_low: Annotated[int, U64, "buckets 0..63", DERIVED]
    occupied_high: Annotated[int, U64, "buckets 64..127", DERIVED]


class BucketRecord(NamedTuple):
    """A bucket of the wheel: the head of a list of operations. Bucket b of level l is record l * BUCKETS + b."""

    next: Annotated[int, U32, "link: first operation", DERIVED]
    prev: Annotated[int, U32, "link: last operation", DERIVED]
    count: Annotated[int, U32, "operations in it", DERIVED]
    reserved: Annotated[int, U32, "zero"]


class EventRecord(NamedTuple):
    """An event in the ring, at sequence modulo the ring's size; valid while tail <= sequence <= newest."""

    sequence: Annotated[int, U64, "from 1"]
    effective_ns: Annotated[int, U64, "its effective time: it counts for deadlines after this (DESIGN.md, rule 4)"]
    key_hash: Annotated[int, U64, "keyed hash of purgatory and key"]
    previous: Annotated[int, U64, "sequence of the event before it in the same hash slot"]
    amount: Annotated[int, U64, "amount of a fire, offset of an advance, code of a fail"]
    command: Annotated[int, U64, "its client's command number"]
    client: Annotated[int, U16, "its client's slot"]
    kind: Annotated[int, U8, "EventKind"]
    purgatory: Annotated[int, U8, "index of its purgatory"]
    client_generation: Annotated[int, U32, "generation of that slot"]
    left: Annotated[int, U32, "operations that a limited event may still complete"]
    completed: Annotated[int, U32, "operations it has completed, cancelled or failed"]
    flags: Annotated[int, U8, "EventFlag"]
    key_length: Annotated[int, U8, "bytes of the key"]
    reserved: Annotated[int, U16, "zero"]
    value: Annotated[int, U32, "first block of its value (index + 1)"]
    key_blob: Annotated[int, U32, "first block of a key longer than EVENT_KEY_INLINE (index + 1)"]
    reserved_word: Annotated[int, U32, "zero"]
    key: Annotated[bytes, raw(EVENT_KEY_INLINE), "the key, if it fits"]


class SlotRecord(NamedTuple):
    """A hash slot of the ring: it never forgets its newest sequence, so a mark is never too old for a quiet key."""

    newest: Annotated[int, U64, "sequence of the newest event of the slot; 0 = none yet"]


class KeyTableRecord(NamedTuple):
    """Two heads of chains of watch nodes that stand first (two, because records are multiples of 8 bytes)."""

    even: Annotated[int, U32, "first watch node (index + 1)", DERIVED]
    odd: Annotated[int, U32, "first watch node (index + 1)", DERIVED]


class WatermarkTableRecord(NamedTuple):
    """Two heads of chains of watermarks."""

    even: Annotated[int, U32, "first watermark (index + 1)", DERIVED]
    odd: Annotated[int, U32, "first watermark (index + 1)", DERIVED]


class HandleRecord(NamedTuple):
    """An entry of the hash table (open addressing) in which an owner's cancel finds its operation."""

    tag: Annotated[int, U32, "hash of client and command number: its low bits say where probing begins", DERIVED]
    op: Annotated[int, U32, "operation (index + 1); 0 = free", DERIVED]


class IdRecord(NamedTuple):
    """An id given by a user, while its operation is pending and for a time after it settled."""

    hash_low: Annotated[int, U64, "128-bit hash of purgatory and id, low half"]
    hash_high: Annotated[int, U64, "high half"]
    state: Annotated[int, U8, "IdState"]
    outcome: Annotated[int, U8, "Outcome of the settled operation"]
    purgatory: Annotated[int, U8, "index of its purgatory"]
    reserved: Annotated[int, U8, "zero"]
    op: Annotated[int, U32, "LIVE: its operation (index + 1); SETTLED: the client slot that pays for it (index + 1)"]
    settled_ns: Annotated[int, U64, "CLOCK_MONOTONIC"]
    call: Annotated[int, U32, "the newest call of this id that is due and not done (index + 1); 0 = none"]
    running: Annotated[int, U32, "the call of this id that a member holds (index + 1); 0 = none"]
    next: Annotated[int, U32, "link: list of the remembered ids of a client slot, oldest first", DERIVED]
    prev: Annotated[int, U32, "link", DERIVED]
    chain: Annotated[int, U32, "next id of the same slot of the id table (index + 1)", DERIVED]
    chain_hash: Annotated[int, U32, "keyed hash of purgatory and id: its slot of the id table", DERIVED]


class IdTableRecord(NamedTuple):
    """Two heads of id chains."""

    even: Annotated[int, U32, "first id (index + 1)", DERIVED]
    odd: Annotated[int, U32, "first id (index + 1)", DERIVED]


class AnswerRecord(NamedTuple):
    """A refusal, or the answer to a command that wants one, until it is acknowledged."""

    command: Annotated[int, U64, "the command it answers"]
    client: Annotated[int, U16, "slot of the client"]
    used: Annotated[int, U8, "1 while kept"]
    reserved: Annotated[int, U8, "zero"]
    code: Annotated[int, U32, "ErrorCode; 0 = done"]
    value: Annotated[int, U64, "as in WireAnswer: a count, the limit that was met, or how an operation has settled"]
    next: Annotated[int, U32, "link", DERIVED]
    prev: Annotated[int, U32, "link", DERIVED]


class GroupRecord(NamedTuple):
    """A named set of clients. An outcome of the group is delivered to one live member.

    A record that has neither a member nor an operation is used for the next new group.
    """

    state: Annotated[int, U8, "1 while in use"]
    name_length: Annotated[int, U8, "bytes of the name"]
    reserved: Annotated[int, U16, "zero"]
    members: Annotated[int, U32, "its clients that are live or silent", DERIVED]
    name: Annotated[bytes, raw(32), "its name"]
    empty_since_ns: Annotated[int, U64, "CLOCK_MONOTONIC when its last member left"]
    next: Annotated[int, U32, "link: head of its settled operations (not calls) that no member holds now", DERIVED]
    prev: Annotated[int, U32, "link: tail", DERIVED]
    calls_next: Annotated[int, U32, "link: head of its calls that are due and that no member holds now", DERIVED]
    calls_prev: Annotated[int, U32, "link: tail", DERIVED]
    pending: Annotated[int, U32, "its pending operations", DERIVED]
    endless: Annotated[int, U32, "its pending operations without a deadline", DERIVED]
    unacknowledged: Annotated[int, U32, "its settled operations, held by a member or not, and dead letters", DERIVED]
    nodes: Annotated[int, U32, "watch nodes of its operations", DERIVED]
    letters_next: Annotated[int, U32, "link: head of its dead letters, in order of their numbers", DERIVED]
    letters_prev: Annotated[int, U32, "link: tail", DERIVED]
    letters: Annotated[int, U32, "its dead letters", DERIVED]
    reserved_word: Annotated[int, U32, "zero"]
    bytes_held: Annotated[int, U64, "bytes of payloads, values and long keys charged to it", DERIVED]
    maker_pid: Annotated[int, U32, "process that first named the group, as the kernel says; 0 = not known"]
    ids: Annotated[int, U32, "ids of its pending operations", DERIVED]
    maker_start_ticks: Annotated[int, U64, "field 22 of that process's /proc/PID/stat"]


class UserRecord(NamedTuple):
    """A user of the host who has, or has had, clients. Index 0 stands for all users without a record.

    A record is used for another user when its user has no client, and no operation that an ended client has made.
    """

    state: Annotated[int, U8, "1 while in use"]
    reserved: Annotated[int, U8, "zero"]
    reserved_half: Annotated[int, U16, "zero"]
    uid: Annotated[int, U32, "as the kernel says; UID_UNKNOWN in index 0"]


class AccountRecord(NamedTuple):
    """The charges for operations of groups, and for those without an owner, by who made them.

    Account `slot` is that of a client. Account `clients + user * groups + group` is that of a user's ended clients, for
    one group. Account `clients + users * groups + user` is that of the operations that a user's ended clients have left
    without an owner (orphans="keep"). All accounts of a user's ended clients have one share together.
    """

    user: Annotated[int, U32, "of a client's account: the client's user (index)"]
    pending: Annotated[int, U32, "pending operations", DERIVED]
    outcomes: Annotated[int, U32, "settled operations, held by a member or not, and dead letters", DERIVED]
    nodes: Annotated[int, U32, "watch nodes of these operations", DERIVED]
    ids: Annotated[int, U32, "pending operations that have an id", DERIVED]
    reserved: Annotated[int, U32, "zero"]
    bytes_held: Annotated[int, U64, "bytes of their payloads, values and long keys", DERIVED]


class PurgatoryRecord(NamedTuple):
    """A named set of watchers. Index 0 is "default". The record of an empty purgatory may be used for another name."""

    state: Annotated[int, U8, "1 while in use"]
    name_length: Annotated[int, U8, "bytes of the name"]
    reserved: Annotated[int, U16, "zero"]
    maker_pid: Annotated[int, U32, "process that first named it, as the kernel says; 0 = not known"]
    name: Annotated[bytes, raw(32), "its name"]
    maker_start_ticks: Annotated[int, U64, "field 22 of that process's /proc/PID/stat"]
    born: Annotated[int, U64, "sequence of the newest event when it was made"]


class CounterRecord(NamedTuple):
    """One counter."""

    value: Annotated[int, U64, "see counters.py", STATISTIC]


class HistogramRecord(NamedTuple):
    """A log-linear histogram of nanoseconds (see histogram.py)."""

    count: Annotated[int, U64, "values recorded", STATISTIC]
    sum: Annotated[int, U64, "their sum", STATISTIC]
    max: Annotated[int, U64, "the largest", STATISTIC]
    reserved: Annotated[int, U64, "zero"]
    buckets: Annotated[bytes, raw(8 * HISTOGRAM_BUCKETS), "64-bit counts", STATISTIC]


class CounterLabel(NamedTuple):
    """Name and unit of a counter, so that a tool needs no table of its own."""

    scope: Annotated[int, U32, "1 = of each purgatory, 2 = of the daemon"]
    index: Annotated[int, U32, "position in its scope"]
    name: Annotated[bytes, raw(32), "name, zero padded"]
    unit: Annotated[bytes, raw(16), "unit, zero padded"]


class ErrorRecord(NamedTuple):
    """A distinct error: how often it was seen, first when and last when."""

    code: Annotated[int, U32, "ErrorCode", STATISTIC]
    reserved: Annotated[int, U32, "zero"]
    count: Annotated[int, U64, "times it was seen", STATISTIC]
    first_wall_ns: Annotated[int, U64, "CLOCK_REALTIME", STATISTIC]
    last_wall_ns: Annotated[int, U64, "CLOCK_REALTIME", STATISTIC]
    message: Annotated[bytes, raw(224), "UTF-8, zero padded; never a payload, a value or a session", STATISTIC]
