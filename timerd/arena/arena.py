"""Makes an arena, or opens the one that is there. From then on only the core writes it.

    plan_arena      sizes of the regions, from the capacity
    format_arena    the bytes of an empty arena: header, region table, labels; the layout version last
    open_or_create  POSIX shared memory or a file, whichever the configuration says; attached if it fits, else refused

An arena that is made anew is always a new object under the old name: a worker that still maps the old one keeps it, and
finds by the incarnation that it is another (an arena that shrinks under a reader would be a SIGBUS).
"""

from __future__ import annotations

import fcntl
import grp
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import posix_ipc
from timerd.config.config import KNOBS, Config, dashed, sizes_of
from timerd_shm.declare import layout
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS
from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    ArenaTruncatedError,
    InstanceRunningError,
    InvalidConfigError,
    LayoutMismatchError,
    ResourceLimitError,
)
from timerd_shm.declare.fields import fields, offset_of, size_of, struct_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import (
    ANSWERS_PER_CLIENT_MAX,
    CAPACITY_MIN,
    CLIENTS_MAX,
    GROUP_KEPT_NS,
    GROUPS_MAX,
    OUTCOMES_PER_CLIENT_MAX,
    PURGATORIES_MAX,
    REPLAY_WALK_MAX,
    RING_EVENTS_DEFAULT,
    RING_EVENTS_MIN,
    RING_VALUE_BYTES,
    SETTLED_IDS_KEPT_NS,
    TICK_NS_DEFAULT,
)
from timerd_shm.declare.records import ArenaHeader, ClientRecord, CounterLabel, PurgatoryRecord, RegionRecord
from timerd_shm.host.paths import SHM_DIRECTORY, ArenaPlace, InstancePaths
from timerd_shm.host.process import boot_id, process_start_ticks

from . import pages

ANSWERS_DEFAULT = 16_384
ERRORS_DEFAULT = 64
LABELS = layout.PURGATORY_COUNTERS_MAX + layout.DAEMON_COUNTERS_MAX
PURGATORY_DEFAULT = b"default"
ATTACHED = "attached"
# Words of the header that a configuration may change in an arena that is there.
CONFIGURED = (
    "ring_bytes_max",
    "ids_kept_ns",
    "group_kept_ns",
    "quota_operations",
    "quota_watermarks",
    "quota_bytes",
    "quota_outcomes",
    "quota_answers",
    "quota_nodes",
    "quota_keys",
)
# The regions whose number of records is a knob, and which; the capacity comes first, as others are made from it.
SIZED_BY = {
    Region.OPS: "capacity",
    Region.NODES: "nodes",
    Region.KEYS: "keys",
    Region.BLOCKS: "blocks",
    Region.IDS: "ids",
    Region.EVENTS: "ring_events",
    Region.CLIENTS: "clients",
}
VERSION_WORD = offset_of(ArenaHeader, "layout_version") // 8


class ArenaPlan(NamedTuple):
    """What an arena is to be: its regions in order, its size in bytes, and the words of its header that are chosen."""

    capacity: int
    regions: tuple[RegionRecord, ...]
    size: int
    tick_ns: int
    ring_bytes_max: int
    ids_kept_ns: int
    group_kept_ns: int
    quota_operations: int
    quota_watermarks: int
    quota_bytes: int
    quota_outcomes: int
    quota_answers: int
    quota_nodes: int
    quota_keys: int

    def in_words(self) -> str:
        """What the arena takes, in a sentence."""
        size = self.size / (1 << 20)
        return f"an arena of {self.capacity:,} operations takes {size:,.0f} MiB of memory, all of it from the start"


def plan_arena(
    capacity: int,
    *,
    nodes: int | None = None,
    keys: int | None = None,
    blocks: int | None = None,
    ids: int | None = None,
    ring_events: int = RING_EVENTS_DEFAULT,
    ring_bytes: int = RING_VALUE_BYTES,
    answers: int | None = None,
    clients: int = CLIENTS_MAX,
    groups: int = GROUPS_MAX,
    purgatories: int = PURGATORIES_MAX,
    errors: int = ERRORS_DEFAULT,
    tick_ns: int = TICK_NS_DEFAULT,
    ids_kept_ns: int = SETTLED_IDS_KEPT_NS,
    group_kept_ns: int = GROUP_KEPT_NS,
    quota_operations: int | None = None,
    quota_watermarks: int | None = None,
    quota_bytes: int | None = None,
    quota_outcomes: int = OUTCOMES_PER_CLIENT_MAX,
    quota_answers: int = ANSWERS_PER_CLIENT_MAX,
    quota_nodes: int | None = None,
    quota_keys: int | None = None,
) -> ArenaPlan:
    """Sizes for `capacity` operations; what is None is made from it. All are numbers of records unless they say bytes.

    The default capacity stays under 62 MiB, so that it fits a container's 64 MiB of /dev/shm.
    """
    assert ring_events & (ring_events - 1) == 0, f"ring_events={ring_events} is not a power of two"
    nodes, keys, blocks, ids, quota_operations, quota_bytes, quota_watermarks, quota_nodes, quota_keys = sizes_of(
        Config(
            capacity=capacity,
            nodes=nodes,
            keys=keys,
            blocks=blocks,
            ids=ids,
            quota_operations=quota_operations,
            quota_bytes=quota_bytes,
            quota_watermarks=quota_watermarks,
            quota_nodes=quota_nodes,
            quota_keys=quota_keys,
        )
    )
    answers = min(ANSWERS_DEFAULT, 4 * capacity) if answers is None else answers
    answers += clients  # one is kept back for each, so that nobody can use up all
    counts: dict[Region, int] = {
        Region.OPS: capacity,
        Region.NODES: nodes,
        Region.KEYS: keys,
        Region.BLOCKS: blocks,
        Region.CLIENTS: clients,
        Region.LEVELS: layout.LEVELS,
        Region.BUCKETS: layout.LEVELS * layout.BUCKETS,
        Region.EVENTS: ring_events,
        Region.SLOTS: ring_events,
        Region.KEY_TABLE: power_of_two(keys),  # two heads a record
        Region.HANDLES: power_of_two(2 * max(capacity, 8)),  # at most half full; 16 make one probing group
        Region.IDS: ids,
        Region.ID_TABLE: power_of_two(max(ids // 2, 1)),
        Region.ANSWERS: answers,
        Region.GROUPS: groups,
        Region.PURGATORIES: purgatories,
        Region.PURGATORY_COUNTERS: purgatories * layout.PURGATORY_COUNTERS_MAX,
        Region.DAEMON_COUNTERS: layout.DAEMON_COUNTERS_MAX,
        Region.HISTOGRAMS: purgatories * len(layout.Histogram),
        Region.COUNTER_LABELS: LABELS,
        Region.ERRORS: errors,
    }
    regions: list[RegionRecord] = []
    offset = layout.HEADER_SIZE
    for region, record in layout.REGION_RECORDS.items():
        link = layout.free_link(region)
        regions.append(RegionRecord(offset, size_of(record), counts[region], 0, 0, 0, link))
        offset += aligned(layout.records_apart(region, counts[region], capacity) * size_of(record))
    return ArenaPlan(
        capacity,
        tuple(regions),
        offset,
        tick_ns,
        ring_bytes,
        ids_kept_ns,
        group_kept_ns,
        quota_operations,
        quota_watermarks,
        quota_bytes,
        quota_outcomes,
        min(quota_answers, answers),
        quota_nodes,
        quota_keys,
    )


def plan_of(config: Config) -> ArenaPlan:
    """The plan that a configuration asks for."""
    return plan_arena(
        config.capacity,
        nodes=config.nodes,
        keys=config.keys,
        blocks=config.blocks,
        ids=config.ids,
        ring_events=config.ring_events,
        ring_bytes=config.ring_bytes,
        clients=config.clients,
        tick_ns=config.tick,
        ids_kept_ns=config.settled_ids_kept,
        group_kept_ns=config.group_retention,
        quota_operations=config.quota_operations,
        quota_watermarks=config.quota_watermarks,
        quota_bytes=config.quota_bytes,
        quota_outcomes=config.quota_outcomes,
        quota_answers=config.quota_answers,
        quota_nodes=config.quota_nodes,
        quota_keys=config.quota_keys,
    )


def format_arena(
    view: memoryview,
    plan: ArenaPlan,
    *,
    instance: str = "default",
    boot: bytes = bytes(16),
    incarnation: int | None = None,
    hash_seed: int | None = None,
    wall_ns: int = 0,
) -> None:
    """Write an empty arena into `view`, which is all zero and has `plan.size` bytes. What is derived, the core makes.

    `incarnation` and `hash_seed` are random unless a test gives them.
    """
    assert len(view) == plan.size, f"len(view)={len(view)}; plan.size={plan.size}"
    nothing = unpack(ArenaHeader, bytes(size_of(ArenaHeader)))
    header = nothing._replace(
        magic=layout.MAGIC,
        fingerprint=layout.fingerprint(),
        header_size=layout.HEADER_SIZE,
        incarnation=secrets.randbits(64) or 1 if incarnation is None else incarnation,
        size=plan.size,
        hash_seed=secrets.randbits(64) if hash_seed is None else hash_seed,
        boot_id=boot,
        tick_ns=plan.tick_ns,
        instance=instance.encode(),
        created_wall_ns=wall_ns,
        region_count=len(plan.regions),
        tail=1,  # empty: after the newest
        **{name: getattr(plan, name) for name in CONFIGURED},
    )
    struct_of(ArenaHeader).pack_into(view, 0, *header)
    row = struct_of(RegionRecord)
    for region in Region:
        record = plan.regions[region]
        if region is Region.PURGATORIES:
            record = record._replace(high_water=1, in_use=1)
        row.pack_into(view, layout.REGIONS_OFFSET + region * row.size, *record)
    first = PurgatoryRecord(1, len(PURGATORY_DEFAULT), 0, 0, PURGATORY_DEFAULT)
    struct_of(PurgatoryRecord).pack_into(view, plan.regions[Region.PURGATORIES].offset, *first)
    write_labels(view, plan.regions[Region.COUNTER_LABELS])
    with view.cast("Q") as words:
        words[VERSION_WORD] = layout.LAYOUT_VERSION


def write_labels(view: memoryview, region: RegionRecord) -> None:
    """Names and units of this daemon's counters: an arena may be older than the daemon that attaches to it."""
    label = struct_of(CounterLabel)
    row = 0
    for scope, table in ((1, PURGATORY_COUNTERS), (2, DAEMON_COUNTERS)):
        for index, counter in enumerate(table):
            offset = region.offset + row * label.size
            label.pack_into(view, offset, scope, index, counter.name.encode(), counter.unit.encode())
            row += 1


def check_arena(view: memoryview, plan: ArenaPlan, boot: bytes) -> None:
    """Whether this daemon may attach to the arena in `view`.

    Raises ArenaNotReadyError (its maker has not finished, or it is of another boot, so nothing in it has a meaning any
    more), ArenaTruncatedError, and LayoutMismatchError with both values where it can never be attached.
    """
    if not any(view[: layout.HEADER_SIZE]):
        raise ArenaNotReadyError("whoever made the arena did not begin to write it")
    if len(view) < layout.HEADER_SIZE:
        raise LayoutMismatchError(
            f"there are {len(view)} bytes, which are no arena: its header has {layout.HEADER_SIZE}"
        )
    header = unpack(ArenaHeader, view)
    if header.layout_version == 0 and header.magic == layout.MAGIC:
        raise ArenaNotReadyError("whoever made the arena did not finish")
    for what, found, wanted in (
        ("magic", header.magic, layout.MAGIC),
        ("layout version", header.layout_version, layout.LAYOUT_VERSION),
        ("fingerprint", f"0x{header.fingerprint:08x}", f"0x{layout.fingerprint():08x}"),
    ):
        if found != wanted:
            raise LayoutMismatchError(f"the arena's {what} is {found!r}, and this daemon's {wanted!r}")
    if len(view) < header.size:
        raise ArenaTruncatedError(f"the arena has {len(view)} bytes, and its header says {header.size}")
    if header.boot_id != boot:
        raise ArenaNotReadyError("the arena is of another boot of this machine, so its times mean nothing any more")
    row = struct_of(RegionRecord).size
    for region in Region:
        record = unpack(RegionRecord, view, layout.REGIONS_OFFSET + region * row)
        if record.count != plan.regions[region].count:
            what = dashed(SIZED_BY[region]) if region in SIZED_BY else f"number of records in {region.name}"
            raise LayoutMismatchError(
                f"the arena's {what} is {record.count}, and the configuration asks for {plan.regions[region].count}"
            )
        if record.offset != plan.regions[region].offset:
            raise LayoutMismatchError(
                f"the arena has {region.name} at {record.offset}, and the configuration asks for it at "
                f"{plan.regions[region].offset}"
            )
    for what, found, wanted in (("size", header.size, plan.size), ("tick_ns", header.tick_ns, plan.tick_ns)):
        if found != wanted:
            raise LayoutMismatchError(f"the arena's {what} is {found}, and the configuration asks for {wanted}")


class Arena:
    """An arena that is mapped for writing, and locked against every other daemon, whatever its runtime directory."""

    def __init__(self, descriptor: int, place: ArenaPlace, plan: ArenaPlan, news: str) -> None:
        self.place = place
        self.plan = plan
        self.news = news  # a phrase for the log: made, made anew and why, or ATTACHED
        self.memory = mmap.mmap(descriptor, plan.size)
        self._descriptor = descriptor

    def header(self) -> ArenaHeader:
        """A snapshot of the header."""
        with memoryview(self.memory) as view:
            return unpack(ArenaHeader, view)

    def client(self, slot: int) -> ClientRecord:
        """A snapshot of a client's record."""
        region = self.plan.regions[Region.CLIENTS]
        assert 0 <= slot < region.count, f"slot={slot}; clients={region.count}"
        with memoryview(self.memory) as view:
            return unpack(ClientRecord, view, region.offset + slot * region.record_size)

    def map_pages(self) -> int:
        """Have the pages mapped that a start will read, and by huge ones all; how many bytes huge pages map."""
        if pages.has_huge_pages(self._descriptor):
            pages.map_huge(self.memory)
            return pages.huge_bytes(self.place.path)
        if self.news == ATTACHED:
            pages.map_small(self.memory, self._used())
        return 0

    def _used(self) -> Iterator[tuple[int, int]]:
        for region in Region:
            row = self.plan.regions[region]
            with memoryview(self.memory) as view:
                now = unpack(RegionRecord, view, layout.REGIONS_OFFSET + region * size_of(RegionRecord))
            used = min(now.high_water, row.count) if region in layout.HANDED_OUT else row.count
            yield row.offset, layout.records_apart(region, used, self.plan.capacity) * row.record_size

    def sign(self, pid: int, now_ns: int) -> None:
        """Enter the daemon that serves this arena; pid 0 at a clean end."""
        _store(self.memory, "start_ticks", (process_start_ticks(pid) or 0) if pid else 0)
        if pid:
            _store(self.memory, "attached_ns", now_ns)
        _store(self.memory, "pid", pid)

    def write_snapshot(self, path: Path, group_id: int | None = None) -> None:
        """Copy the arena to the new file `path`, for all who may read the arena. Raises OSError, and leaves nothing."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb", buffering=0) as file, memoryview(self.memory) as view:
                _give_to_group(descriptor, group_id)
                written = 0
                while written < len(view):
                    written += file.write(view[written:])
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Unmap and unlock; the core has let go of the memory."""
        self.memory.close()
        os.close(self._descriptor)

    def remove(self) -> None:
        """Take the arena's name away, and the journal's buffer; who maps it keeps it."""
        self.place.path.unlink(missing_ok=True)
        self.place.journal_buffer.unlink(missing_ok=True)


def open_or_create(config: Config, paths: InstancePaths, *, wall_ns: int, group_id: int | None = None) -> Arena:
    """The instance's arena: the one that is there if it fits, else a new one. NAME.arena is the caller's to write.

    Raises LayoutMismatchError and ArenaTruncatedError (never attached, never overwritten), InstanceRunningError when
    another daemon has it, ResourceLimitError when the machine does not give it.
    """
    plan, boot = plan_of(config), boot_id()
    if config.arena_file:
        place = ArenaPlace("file", os.path.abspath(config.arena_file), 0)
    else:
        place = ArenaPlace("shm", paths.shm_name, 0)
    descriptor = _open_locked(place)
    try:
        news = "made"
        if os.fstat(descriptor).st_size:
            try:
                _check_descriptor(descriptor, plan, boot)
            except ArenaNotReadyError as error:
                news = f"made anew: {error}"
            except (LayoutMismatchError, ArenaTruncatedError) as error:
                made_with = _made_with(descriptor, config)
                raise type(error)(
                    f"{place.path}: {error}: "
                    + (
                        f"start with {made_with}, as it was made, or"
                        if made_with
                        else "start the timerd that made it, or"
                    )
                    + f" remove it with every operation in it (`timerctl destroy --instance {paths.instance}`)"
                ) from None
            else:
                news = ATTACHED
        if news != ATTACHED:
            if os.fstat(descriptor).st_size:
                place.path.unlink(missing_ok=True)
                old, descriptor = descriptor, _open_locked(place)
                os.close(old)
            _reserve(descriptor, place, plan, config)
            with mmap.mmap(descriptor, plan.size) as memory, memoryview(memory) as view:
                format_arena(view, plan, instance=paths.instance, boot=boot, wall_ns=wall_ns)
        _give_to_group(descriptor, group_id)
        arena = Arena(descriptor, place, plan, news)
    except BaseException:
        os.close(descriptor)
        raise
    arena.place = place._replace(incarnation=arena.header().incarnation)
    if news == ATTACHED:
        _refresh(arena)
    return arena


def group_id_of(name: str) -> int:
    """The id of a unix group. Raises InvalidConfigError."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise InvalidConfigError(f"unix-group = {name!r}: no such group (`groupadd {name}` makes it)") from None


def power_of_two(least: int) -> int:
    """The smallest power of two that is not less than `least`, which is at least 1."""
    return 1 << (least - 1).bit_length()


def aligned(size: int) -> int:
    """`size` rounded up to where the next region may begin."""
    return -(-size // layout.REGION_ALIGN) * layout.REGION_ALIGN


def _open_locked(place: ArenaPlace) -> int:
    """A descriptor of the arena's object, made (0600, empty) if it is not there, and locked."""
    while True:
        try:
            if place.kind == "shm":
                descriptor: int = posix_ipc.SharedMemory(place.name, posix_ipc.O_CREAT, mode=0o600).fd
            else:
                descriptor = os.open(place.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (OSError, posix_ipc.Error) as error:
            raise ResourceLimitError(f"the arena {place.path} cannot be opened: {error}") from None
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise ResourceLimitError(
                    f"the arena {place.path} belongs to uid {os.fstat(descriptor).st_uid}, and this is "
                    f"{os.geteuid()}: remove it, or give this daemon another --instance"
                )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InstanceRunningError(
                    f"another daemon uses the arena {place.path}: stop it first, or give this one another --instance"
                ) from None
            if _names(place.path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last daemon removed it between open and lock: again


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _check_descriptor(descriptor: int, plan: ArenaPlan, boot: bytes) -> None:
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        check_arena(view, plan, boot)


def _made_with(descriptor: int, config: Config) -> str:
    """The flags that make the configuration fit the arena; empty where none do, as for one of another layout."""
    flags = []
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        if len(view) < layout.HEADER_SIZE or unpack(ArenaHeader, view).fingerprint != layout.fingerprint():
            return ""
        row = struct_of(RegionRecord).size
        counts = {region: unpack(RegionRecord, view, layout.REGIONS_OFFSET + region * row).count for region in SIZED_BY}
        tick_ns = unpack(ArenaHeader, view).tick_ns
    for region, name in SIZED_BY.items():  # the capacity first: what is made from it fits then
        if plan_of(config).regions[region].count != counts[region]:
            change: dict[str, Any] = {name: counts[region]}
            config = config._replace(**change)
            flags.append(f"--{dashed(name)} {counts[region]}")
    if config.tick != tick_ns:
        flags.append(f"--tick {KNOBS['tick'].show(tick_ns)}")
    return " ".join(flags)


def _reserve(descriptor: int, place: ArenaPlace, plan: ArenaPlan, config: Config) -> None:
    try:
        pages.reserve(descriptor, plan.size)
    except OSError as error:
        file_system = os.fstatvfs(descriptor)
        free = file_system.f_bavail * file_system.f_frsize
        place.path.unlink(missing_ok=True)
        where = SHM_DIRECTORY if place.kind == "shm" else place.path.parent
        raise ResourceLimitError(
            f"the arena of {plan.capacity} operations needs {plan.size} bytes, and {where} has {free} free "
            f"({error.strerror}): {_what_fits(config, free)}enlarge {where}, or use --arena-file elsewhere"
        ) from None


def _what_fits(config: Config, free: int) -> str:
    """Flags with which the arena fits into so many bytes, the one that costs least first; empty where none do."""

    def size(capacity: int, ring_events: int) -> int:
        return plan_of(config._replace(capacity=capacity, ring_events=ring_events)).size

    if size(config.capacity, config.ring_events) <= free:
        return "lower --capacity, "  # it was not for want of room
    ring = config.ring_events
    while ring > RING_EVENTS_MIN and size(config.capacity, ring) > free:
        ring //= 2
    # A ring of less than what one registration may walk is not the first thing to give up.
    if size(config.capacity, ring) <= free and ring >= REPLAY_WALK_MAX:
        return f"--ring-events {ring} would fit; else "
    # The largest capacity of two digits, beside the ring as it is, or one that leaves half of the room.
    ring = config.ring_events
    while ring > RING_EVENTS_MIN and size(CAPACITY_MIN, ring) > free // 2:
        ring //= 2
    low, high = CAPACITY_MIN, config.capacity
    if size(low, ring) > free:
        return ""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle, ring) <= free else (low, middle - 1)
    capacity = max(low // 10 ** (len(str(low)) - 2) * 10 ** (len(str(low)) - 2), CAPACITY_MIN)
    events = f" --ring-events {ring}" if ring != config.ring_events else ""
    return f"--capacity {capacity}{events} would fit; else "


def _give_to_group(descriptor: int, group_id: int | None) -> None:
    if group_id is not None:
        os.fchown(descriptor, -1, group_id)
    os.fchmod(descriptor, 0o600 if group_id is None else 0o640)


def _refresh(arena: Arena) -> None:
    """What may change in an arena that is there: what is configured, and the labels of the counters."""
    for name in CONFIGURED:
        _store(arena.memory, name, getattr(arena.plan, name))
    with memoryview(arena.memory) as view:
        write_labels(view, arena.plan.regions[Region.COUNTER_LABELS])


def _store(memory: mmap.mmap, name: str, value: int) -> None:
    """Store one number of the header: at once, because readers are there (a format with "<" goes byte by byte)."""
    field = next(field for field in fields(ArenaHeader) if field.name == name)
    struct.pack_into("@" + field.storage.code, memory, field.offset, value)
