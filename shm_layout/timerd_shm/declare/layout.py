"""The arena, declared once: its parts, its regions, and the records in them (records.py).

    0                header (ArenaHeader)
    REDO_OFFSET      redo slot: REDO_MAX entries (RedoEntry); their count is in the header
    REGIONS_OFFSET   region table (RegionRecord), one row for each Region
    HEADER_SIZE      the regions themselves, each on a multiple of 4096

Everything is little endian. An *index* counts records of a region from 0; a field that names a record holds index + 1,
so that 0 is "none". A *link* is an offset from the start of the arena in units of 8 bytes (LINK_UNIT) and names a pair
(next, prev): list heads are pairs too, so unlinking needs no head. Links of 32 bits reach 32 GiB.

To change the format: change the class in records.py or states.py, raise LAYOUT_VERSION, run `make generate`, rebuild,
and add a golden arena of the old version to the tests if that version was released. Without the new version, the
fingerprint (CRC-32 of the field table and the rules of the conditions) makes the daemon and its clients refuse the
arena.
"""

import zlib
from enum import IntEnum

from .fields import fingerprint_of, offset_of, size_of
from .records import (
    AccountRecord,
    AnswerRecord,
    ArenaHeader,
    Block,
    BucketRecord,
    ClientRecord,
    CounterLabel,
    CounterRecord,
    ErrorRecord,
    EventRecord,
    GroupRecord,
    HandleRecord,
    HistogramRecord,
    IdRecord,
    IdTableRecord,
    KeyTableRecord,
    LevelRecord,
    OpRecord,
    PurgatoryRecord,
    RedoEntry,
    RegionRecord,
    SlotRecord,
    UserRecord,
    WatchNode,
    WatermarkRecord,
    WatermarkTableRecord,
)
from .states import RULES

MAGIC = b"timerd\x00\x01"
LAYOUT_VERSION = 10
HEADER_SIZE = 4096
REDO_OFFSET = 1024
REDO_MAX = 96
BATCH_MAX = 16  # commands, or due operations, in a transaction; up to 16 events may be written ahead of `newest`
REGIONS_OFFSET = 2560
REGION_ALIGN = 4096
LINK_UNIT = 8

LEVELS = 7  # 64 ** 7 ticks of 100 us are 13.9 years: more than the longest timeout
SPAN = 64  # buckets in one turn of a level
BUCKETS = 2 * SPAN  # two spans: operations that are swept early enter the next span, never the current one
LEVEL_BITS = 6

HANDLE_LANE_BITS = 4
HANDLE_LANES = 1 << HANDLE_LANE_BITS  # neighbouring commands of a client share a home line of this many entries

PURGATORY_COUNTERS_MAX = 32
DAEMON_COUNTERS_MAX = 64


class Region(IntEnum):
    """The regions, in the order in which they lie in the arena."""

    OPS = 0
    NODES = 1
    WATERMARKS = 2
    BLOCKS = 3
    CLIENTS = 4
    LEVELS = 5
    BUCKETS = 6
    EVENTS = 7
    SLOTS = 8
    KEY_TABLE = 9
    WATERMARK_TABLE = 10
    HANDLES = 11
    IDS = 12
    ID_TABLE = 13
    ANSWERS = 14
    GROUPS = 15
    PURGATORIES = 16
    PURGATORY_COUNTERS = 17
    DAEMON_COUNTERS = 18
    HISTOGRAMS = 19
    COUNTER_LABELS = 20
    ERRORS = 21
    USERS = 22
    ACCOUNTS = 23


class Histogram(IntEnum):
    """Histograms of each purgatory: record `purgatory * len(Histogram) + member`."""

    EXPIRY_LATENESS = 0
    WAIT = 1


class DaemonHistogram(IntEnum):
    """Histograms of the daemon: the last records of the region."""

    TURN_CPU = 0


REGION_RECORDS: dict[Region, type] = {
    Region.OPS: OpRecord,
    Region.NODES: WatchNode,
    Region.WATERMARKS: WatermarkRecord,
    Region.BLOCKS: Block,
    Region.CLIENTS: ClientRecord,
    Region.LEVELS: LevelRecord,
    Region.BUCKETS: BucketRecord,
    Region.EVENTS: EventRecord,
    Region.SLOTS: SlotRecord,
    Region.KEY_TABLE: KeyTableRecord,
    Region.WATERMARK_TABLE: WatermarkTableRecord,
    Region.HANDLES: HandleRecord,
    Region.IDS: IdRecord,
    Region.ID_TABLE: IdTableRecord,
    Region.ANSWERS: AnswerRecord,
    Region.GROUPS: GroupRecord,
    Region.PURGATORIES: PurgatoryRecord,
    Region.PURGATORY_COUNTERS: CounterRecord,
    Region.DAEMON_COUNTERS: CounterRecord,
    Region.HISTOGRAMS: HistogramRecord,
    Region.COUNTER_LABELS: CounterLabel,
    Region.ERRORS: ErrorRecord,
    Region.USERS: UserRecord,
    Region.ACCOUNTS: AccountRecord,
}
# The wheel's regions. Their numbers of records follow from LEVELS and BUCKETS, and a check of an arena compares them.
FIXED_COUNTS: dict[Region, int] = {Region.LEVELS: LEVELS, Region.BUCKETS: LEVELS * BUCKETS}
# The regions whose records are allocated one by one, and for each the field that chains its free records. The next
# field of the record is a hint of what to load: the record some positions further on in the chain.
FREE_LINKS: dict[Region, str] = {
    Region.OPS: "next",
    Region.NODES: "chain",
    Region.WATERMARKS: "chain",
    Region.BLOCKS: "next",
    Region.IDS: "next",
    Region.ANSWERS: "next",
}
RECORDS: tuple[type, ...] = (ArenaHeader, RedoEntry, RegionRecord, *dict.fromkeys(REGION_RECORDS.values()))

assert size_of(ArenaHeader) <= REDO_OFFSET, f"the header has {size_of(ArenaHeader)} bytes"
assert REDO_OFFSET + REDO_MAX * size_of(RedoEntry) <= REGIONS_OFFSET
assert REGIONS_OFFSET + len(Region) * size_of(RegionRecord) <= HEADER_SIZE
assert (size_of(OpRecord), size_of(WatchNode), size_of(WatermarkRecord)) == (192, 64, 56)
assert LEVELS * BUCKETS < 1 << 16, "OpRecord.bucket holds index + 1"
assert (size_of(Block), size_of(EventRecord), size_of(ClientRecord)) == (128, 128, 256)
assert offset_of(OpRecord, "first_node") + size_of(WatchNode) == size_of(OpRecord)


def free_link(region: Region) -> int:
    """Offset of the field that chains the free records of a region; 0 where none are chained."""
    link = FREE_LINKS.get(region)
    return offset_of(REGION_RECORDS[region], link) if link else 0


def fingerprint() -> int:
    """CRC-32 of the field table (names, types, offsets and record sizes, in order), and of the conditions' rules."""
    rules = ";".join(
        f"{condition}:{r.progress.name},{r.completes},{r.fails},{r.takes_needed},{not r.no_watermarks}"
        for condition, r in RULES.items()
    )
    return zlib.crc32(rules.encode(), fingerprint_of(RECORDS))
