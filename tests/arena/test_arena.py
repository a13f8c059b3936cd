"""Making, opening and refusing an arena, and the files of an instance. None of it needs the compiled core."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fakes.descriptors import free_files
from timerd.arena.arena import ATTACHED, Arena
from timerd.arena.format import format_arena
from timerd.arena.open import open_or_create
from timerd.arena.plan import plan_arena, plan_of, power_of_two
from timerd.config.config import Config
from timerd.host.lock import InstanceLock
from timerd_shm.declare import layout
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS
from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    ArenaTruncatedError,
    InstanceRunningError,
    InvalidNameError,
    LayoutMismatchError,
    ResourceLimitError,
)
from timerd_shm.declare.fields import offset_of, size_of, struct_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import CAPACITY_DEFAULT, IPC_PATH_MAX
from timerd_shm.declare.records import ArenaHeader, CounterLabel, PurgatoryRecord, RegionRecord
from timerd_shm.host.paths import (
    ArenaLocation,
    InstancePaths,
    daemon_running,
    instance_name,
    open_arena_file,
    read_location,
    write_location,
)
from timerd_shm.host.process import boot_id, process_start_ticks
from timerd_shm.host.search import make_instance

SMALL = Config(capacity=64, ring_events=16, clients=4)
MIB = 1 << 20


@pytest.fixture
def paths(runtime_dir: Path) -> Iterator[InstancePaths]:
    made = make_instance("test")
    yield made
    for name in ("shm", "file"):
        kind = (
            ArenaLocation("shm", made.shm_name, 0)
            if name == "shm"
            else ArenaLocation("file", str(runtime_dir / "a"), 0)
        )
        for file in kind.files:
            file.unlink(missing_ok=True)


def open_arena(config: Config, paths: InstancePaths) -> Arena:
    return open_or_create(config, paths, wall_ns=1)


def store(path: Path, name: str, value: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset_of(ArenaHeader, name))
        file.write(value)


# the plan ----------------------------------------------------------------------------------------------------------


def test_the_default_arena_fits_a_containers_shared_memory() -> None:
    assert plan_arena(CAPACITY_DEFAULT).size < 62 * MIB
    assert plan_of(Config()).size < 62 * MIB


@pytest.mark.parametrize("capacity", [16, 17, 64, 100, 1000, 131_072, 4_194_304])
def test_regions_lie_behind_each_other_and_tables_are_powers_of_two(capacity: int) -> None:
    plan = plan_arena(capacity)
    end = layout.HEADER_SIZE
    for region, record in zip(Region, plan.regions, strict=True):
        assert record.offset >= end and record.offset % layout.REGION_ALIGN == 0
        assert record.record_size == size_of(layout.REGION_RECORDS[region])
        assert record.count > 0, region
        end = record.offset + record.count * record.record_size
    assert end <= plan.size < end + layout.REGION_ALIGN
    for region in (
        Region.EVENTS,
        Region.SLOTS,
        Region.KEY_TABLE,
        Region.WATERMARK_TABLE,
        Region.HANDLES,
        Region.ID_TABLE,
    ):
        count = plan.regions[region].count
        assert count & (count - 1) == 0, region
    assert plan.regions[Region.HANDLES].count >= 2 * capacity


def test_a_test_can_make_an_arena_of_a_few_hundred_kilobytes() -> None:
    assert plan_arena(16, ring_events=16, clients=4, purgatories=2, groups=2, errors=4).size < 200_000


@pytest.mark.parametrize(("least", "power"), [(1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_power_of_two_rounds_up(least: int, power: int) -> None:
    assert power_of_two(least) == power


# the bytes ---------------------------------------------------------------------------------------------------------


def test_an_empty_arena_carries_its_identity() -> None:
    plan = plan_arena(64, ring_events=16, clients=4, tick=100_000)
    memory = bytearray(plan.size)
    format_arena(memoryview(memory), plan, instance="jobs", boot=b"b" * 16, wall_ns=7)
    header = unpack(ArenaHeader, memoryview(memory))
    assert header.magic == layout.MAGIC
    assert header.layout_version == layout.LAYOUT_VERSION
    assert header.fingerprint == layout.fingerprint()
    assert header.size == plan.size and header.tick_ns == 100_000 and header.boot_id == b"b" * 16
    assert header.instance.rstrip(b"\0") == b"jobs" and header.created_wall_ns == 7
    assert header.incarnation and not header.seed_check, "the core enters the seed"
    assert (header.newest, header.tail, header.redo_count, header.pid) == (0, 1, 0, 0)
    assert header.quota_operations == 32
    for region in Region:
        record = unpack(RegionRecord, memoryview(memory), layout.REGIONS_OFFSET + region * size_of(RegionRecord))
        link = layout.FREE_LINKS.get(region)
        assert record.free_link == (offset_of(layout.REGION_RECORDS[region], link) if link else 0)
    first = unpack(PurgatoryRecord, memoryview(memory), plan.regions[Region.PURGATORIES].offset)
    assert (first.state, first.name[: first.name_length]) == (1, b"default")


def test_two_arenas_never_share_an_incarnation() -> None:
    plan = plan_arena(16, ring_events=16, clients=4, purgatories=1)
    seen = set()
    for _ in range(8):
        memory = bytearray(plan.size)
        format_arena(memoryview(memory), plan)
        seen.add(unpack(ArenaHeader, memoryview(memory)).incarnation)
    assert len(seen) == 8


def test_the_arena_carries_the_names_of_its_counters() -> None:
    plan = plan_arena(16, ring_events=16, clients=4, purgatories=1)
    memory = bytearray(plan.size)
    format_arena(memoryview(memory), plan)
    region = plan.regions[Region.COUNTER_LABELS]
    labels = [
        CounterLabel(*each)
        for each in struct_of(CounterLabel).iter_unpack(
            memory[region.offset : region.offset + region.count * region.record_size]
        )
    ]
    named = [(label.scope, label.index, label.name.rstrip(b"\0").decode()) for label in labels if label.scope]
    assert named == [
        *((1, index, counter.name) for index, counter in enumerate(PURGATORY_COUNTERS)),
        *((2, index, counter.name) for index, counter in enumerate(DAEMON_COUNTERS)),
    ]


# opening -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_file", [False, True])
def test_an_arena_is_made_private_and_attached_again(paths: InstancePaths, runtime_dir: Path, in_file: bool) -> None:
    config = SMALL._replace(arena_file=str(runtime_dir / "a") if in_file else None)
    first = open_arena(config, paths)
    assert first.origin == "made"
    assert stat.S_IMODE(os.stat(first.location.path).st_mode) == 0o600
    incarnation = first.header().incarnation
    assert first.location.incarnation == incarnation
    first.close()
    second = open_arena(config, paths)
    assert second.origin == ATTACHED
    assert second.header().incarnation == incarnation
    second.close()


def test_the_whole_arena_is_reserved_at_once(paths: InstancePaths) -> None:
    arena = open_arena(SMALL, paths)
    status = os.stat(arena.location.path)
    assert status.st_size == arena.plan.size
    assert status.st_blocks * 512 >= arena.plan.size
    arena.close()


def test_a_second_daemon_of_the_arena_is_refused_even_from_another_directory(paths: InstancePaths) -> None:
    arena = open_arena(SMALL, paths)
    with pytest.raises(InstanceRunningError, match="another daemon uses the arena"):
        open_arena(SMALL, paths)
    arena.close()


def test_two_instances_or_directories_do_not_share_a_name(paths: InstancePaths) -> None:
    names = {
        paths.shm_name,
        paths._replace(instance="other").shm_name,
        paths._replace(directory=Path("/elsewhere")).shm_name,
    }
    assert len(names) == 3
    assert all(f"-{os.geteuid()}-" in name for name in names)


@pytest.mark.parametrize("unfinished", [b"", bytes(100), bytes(layout.HEADER_SIZE), layout.MAGIC + bytes(5000)])
def test_an_arena_that_a_killed_daemon_left_unfinished_is_made_again(
    paths: InstancePaths, runtime_dir: Path, unfinished: bytes
) -> None:
    (runtime_dir / "a").write_bytes(unfinished)
    arena = open_arena(SMALL._replace(arena_file=str(runtime_dir / "a")), paths)
    assert arena.origin.startswith("made")
    assert arena.header().layout_version == layout.LAYOUT_VERSION
    arena.close()


@pytest.mark.parametrize("content", [b"x", b"root:x:0:0:\n", b"\0" * 50 + b"notes", b"\0" * 4000 + b"x" * 200])
def test_a_file_that_is_no_arena_is_never_overwritten(paths: InstancePaths, runtime_dir: Path, content: bytes) -> None:
    (runtime_dir / "a").write_bytes(content)
    with pytest.raises(LayoutMismatchError):
        open_arena(SMALL._replace(arena_file=str(runtime_dir / "a")), paths)
    assert (runtime_dir / "a").read_bytes() == content


def test_an_arena_of_another_boot_is_made_again_as_another_object(paths: InstancePaths) -> None:
    first = open_arena(SMALL, paths)
    first.close()
    store(first.location.path, "boot_id", b"x" * 16)
    with open(first.location.path, "rb") as old_file:
        old = mmap.mmap(old_file.fileno(), 0, prot=mmap.PROT_READ)
    second = open_arena(SMALL, paths)
    assert "another boot" in second.origin
    assert second.header().boot_id == boot_id()
    # A process that mapped the old arena still reads the old bytes, not the new ones.
    assert unpack(ArenaHeader, old[:]).incarnation == first.location.incarnation != second.location.incarnation
    old.close()
    second.close()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("magic", b"redis\0\0\1", "magic is b'redis"),
        (
            "layout_version",
            (99).to_bytes(8, "little"),
            f"layout version is 99, and this daemon's {layout.LAYOUT_VERSION}",
        ),
        ("fingerprint", bytes(4), f"fingerprint is '0x00000000', and this daemon's '0x{layout.fingerprint():08x}'"),
    ],
)
def test_an_arena_of_another_layout_is_refused_with_both_values_and_left_alone(
    paths: InstancePaths, field: str, value: bytes, said: str
) -> None:
    arena = open_arena(SMALL, paths)
    arena.close()
    store(arena.location.path, field, value)
    before = arena.location.path.read_bytes()
    with pytest.raises(LayoutMismatchError, match=said) as error:
        open_arena(SMALL, paths)
    assert "timerctl destroy --instance test" in str(error.value)
    assert arena.location.path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said", "flags"),
    [
        ({"capacity": 128}, "capacity is 64, and the configuration asks for 128", "--capacity 64"),
        ({"ring_events": 32}, "ring-events is 16, and the configuration asks for 32", "--ring-events 16"),
        ({"tick": 2_000_000}, "tick_ns is 1000000, and the configuration asks for 2000000", "--tick 1ms"),
        (
            {"watermarks": 70, "clients": 5},
            "watermarks is 8, and the configuration asks for 70",
            "--watermarks 8 --clients 4",
        ),
    ],
)
def test_an_arena_of_another_size_or_tick_is_refused_with_both_values_and_its_flags(
    paths: InstancePaths, change: dict[str, Any], said: str, flags: str
) -> None:
    open_arena(SMALL, paths).close()
    with pytest.raises(LayoutMismatchError, match=said) as error:
        open_arena(SMALL._replace(**change), paths)
    assert f"start with {flags}, as it was made, or remove it with every operation in it" in str(error.value)
    assert "timerctl destroy --instance test" in str(error.value)


def test_a_shortened_arena_is_refused_by_name(paths: InstancePaths) -> None:
    arena = open_arena(SMALL, paths)
    arena.close()
    os.truncate(arena.location.path, arena.plan.size - 4096)
    with pytest.raises(ArenaTruncatedError, match=f"has {arena.plan.size - 4096} bytes, .* says {arena.plan.size}"):
        open_arena(SMALL, paths)


def test_quotas_follow_the_configuration_of_the_next_start(paths: InstancePaths) -> None:
    open_arena(SMALL, paths).close()
    arena = open_arena(
        SMALL._replace(quota_operations=5, ring_bytes=1000, settled_ids_kept=10**9, group_retention=2 * 10**9), paths
    )
    assert arena.origin == ATTACHED
    header = arena.header()
    assert (header.quota_operations, header.ring_bytes_max) == (5, 1000)
    assert (header.ids_kept_ns, header.group_kept_ns) == (10**9, 2 * 10**9)
    arena.close()


def test_a_full_file_system_is_refused_at_the_start_with_both_figures(paths: InstancePaths, runtime_dir: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, limits[1]))
    try:
        with pytest.raises(ResourceLimitError, match=r"of 64 operations needs \d+ bytes, and .* has \d+ free") as error:
            open_arena(SMALL._replace(arena_file=str(runtime_dir / "a")), paths)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "--capacity" in str(error.value)
    assert not (runtime_dir / "a").exists()


def test_the_arena_of_another_user_or_a_link_is_not_opened(paths: InstancePaths, runtime_dir: Path) -> None:
    (runtime_dir / "target").touch()
    (runtime_dir / "a").symlink_to(runtime_dir / "target")
    with pytest.raises(ResourceLimitError, match="cannot be opened"):
        open_arena(SMALL._replace(arena_file=str(runtime_dir / "a")), paths)


# the files of an instance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a" * 33, "ä", 5])
def test_a_wrong_instance_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidNameError, match="is not of the form"):
        instance_name(name)  # type: ignore[arg-type]


def test_the_instance_comes_from_argument_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert instance_name() == "default"
    monkeypatch.setenv("TIMERD_INSTANCE", "jobs")
    assert instance_name() == "jobs"
    assert instance_name("mail") == "mail"


def test_a_path_too_long_for_a_socket_is_refused_with_both_lengths() -> None:
    paths = InstancePaths(Path("/" + "d" * 120), "default")
    with pytest.raises(ResourceLimitError, match=f"bytes, and a socket's path at most {IPC_PATH_MAX}"):
        _ = paths.commands_endpoint


def test_a_reader_gets_a_descriptor_that_cannot_write(paths: InstancePaths) -> None:
    with pytest.raises(ArenaNotReadyError, match="no daemon has made an arena yet"):
        open_arena_file(paths)
    arena = open_arena(SMALL, paths)
    write_location(paths, arena.location)
    assert stat.S_IMODE(paths.arena.stat().st_mode) == 0o600
    descriptor = open_arena_file(paths)
    assert os.pread(descriptor, 8, 0) == layout.MAGIC
    with pytest.raises(OSError):
        os.pwrite(descriptor, b"x", 0)
    assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(descriptor)
    arena.remove()
    arena.close()
    with pytest.raises(ArenaNotReadyError, match="does not exist"):
        open_arena_file(paths)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "shm"}', '{"kind": "x", "name": "/a", "incarnation": 1}'])
def test_a_file_that_names_no_arena_is_refused(paths: InstancePaths, text: str) -> None:
    paths.arena.write_text(text)
    with pytest.raises(LayoutMismatchError, match="does not name an arena"):
        read_location(paths)


def test_tmpfiles_cleanup_leaves_the_files_of_a_running_daemon_alone(paths: InstancePaths) -> None:
    def is_aged() -> bool:  # as systemd-tmpfiles finds out whether it may look into a directory
        directory = os.open(paths.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(directory)
        return True

    locks = [InstanceLock(paths), InstanceLock(InstancePaths(paths.directory, "other"))]
    assert not is_aged()
    locks.pop().release()
    assert not is_aged(), "another daemon has its files there"
    locks.pop().release()
    assert is_aged()


def test_a_second_lock_is_refused_with_the_pid_of_the_first(paths: InstancePaths) -> None:
    lock = InstanceLock(paths)
    assert not daemon_running(paths), "it does not listen yet"
    assert stat.S_IMODE(paths.lock.stat().st_mode) == 0o600
    with pytest.raises(InstanceRunningError, match=rf"'test' is running in .*\(pid {os.getpid()}\)"):
        InstanceLock(paths)
    lock.release()
    assert paths.lock.exists()
    InstanceLock(paths).release()


def test_a_process_is_distinguished_from_its_successor_by_its_start_time() -> None:
    ticks = process_start_ticks(os.getpid())
    assert ticks and ticks == process_start_ticks(os.getpid())
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert process_start_ticks(child) is None, "a zombie has ended"
    os.waitpid(child, 0)
    assert process_start_ticks(child) is None


def test_a_process_that_cannot_be_looked_at_for_want_of_descriptors_has_not_ended() -> None:
    with free_files(0), pytest.raises(OSError, match="Too many open files"):
        process_start_ticks(os.getpid())


def test_a_process_that_proc_hides_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid=1: the pid of another user's client may not be looked at, and the daemon goes on."""

    def hidden(path: str, mode: str, buffering: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    monkeypatch.setattr("timerd_shm.host.process.open", hidden, raising=False)
    assert process_start_ticks(os.getpid()) is None
