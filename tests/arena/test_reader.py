"""The read-only reader: records by type, refusals with reasons, and walks that end whatever the bytes are."""

from __future__ import annotations

import os
import random
import struct
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest

from support.rig.arenas import SEED, first_watcher, watched_keys
from support.rig.commands import Key, Register
from support.rig.damage import LONG_KEY, Pen
from support.rig.harness import MS, Rig
from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    ArenaTruncatedError,
    LayoutMismatchError,
    TimerdUnavailableError,
)
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.layout import HEADER_SIZE, LAYOUT_VERSION, REGIONS_OFFSET, Region
from timerd_shm.declare.records import RegionRecord
from timerd_shm.declare.states import IdState, KeyKind, OpState
from timerd_shm.host.paths import ArenaLocation, InstancePaths, write_location
from timerd_shm.read import hashing, walk
from timerd_shm.read.reader import INCARNATION_WORD, NEWEST_WORD, TURN_WORD, ArenaReader, DamageError


def test_records_are_read_as_their_types(sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        pending = [op for op in reader.ops.used() if op.state == OpState.PENDING]
        assert len(pending) == 7
        assert reader.record(Region.OPS, 0) == reader.ops[0]
        assert {reader.blob(op.payload) for op in pending} >= {b"", b"p" * 60, b"p" * 300}
        assert watched_keys(reader) == {b"k0", b"k1", b"k2", b"offset"}
        assert [reader.key_name(each) for each in reader.watermarks.used() if each.used] == [b"offset"]
        assert [reader.event_key(event) for event in walk.events(reader)] == [
            b"k3",
            b"k2",
            LONG_KEY,
            b"offset",
            b"jobs",
        ]
        assert reader.purgatory_name(0) == "default"
        assert len(list(reader.ops)) == len(reader.ops) == reader.region(Region.OPS).count
        with pytest.raises(DamageError, match="record 64 does not exist"):
            reader.ops[64]


def test_the_words_that_a_mark_needs_are_single_loads(sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        header = reader.header()
        assert reader.words[NEWEST_WORD] == header.newest == 5
        assert reader.words[INCARNATION_WORD] == header.incarnation
        assert reader.words[TURN_WORD] == header.turn


def test_walks_find_every_linked_record(sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        in_buckets = [
            index for place in walk.occupied_buckets(reader) for index in walk.bucket(reader, place.level, place.index)
        ]
        assert sorted(in_buckets) == [i for i, op in enumerate(reader.ops.used()) if op.state == OpState.PENDING]
        assert sum(place.count for place in walk.occupied_buckets(reader)) == len(in_buckets) == 7
        waiting = [reader.nodes[node] for node in walk.event_watchers(reader, first_watcher(reader, b"k0"))]
        registrations = [reader.ops[node.op].registration for node in waiting]
        assert registrations == sorted(registrations) and waiting
        heap = list(walk.watermark_watchers(reader, first_watcher(reader, b"offset", KeyKind.WATERMARK)))
        assert len(heap) == 6
        assert {reader.nodes[node].kind for node, _ in heap} == {KeyKind.WATERMARK}
        assert heap[0][1] == -1
        for node, parent in heap[1:]:
            assert reader.nodes[parent].target <= reader.nodes[node].target
        assert [reader.ops[index].outcome_number for index in walk.outcomes(reader, 1)] == [1, 2]
        assert [reader.answers[index].command for index in walk.answers(reader, 1)] == [3, 4, 9]
        assert [reader.ids[index].state for slot in (0, 1) for index in walk.remembered_ids(reader, slot)] == [
            IdState.SETTLED
        ] * 3


def test_a_file_is_mapped_read_only(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.write_bytes(sound)
    with ArenaReader.from_path(path) as reader:
        assert reader.memory.readonly
        assert reader.header().instance.rstrip(b"\0") == b"default"
        with pytest.raises(TypeError):
            reader.memory[0] = 1
    reader.close()  # a second call changes nothing
    with pytest.raises(ValueError, match="released"):
        reader.header()


def test_closing_releases_the_memory() -> None:
    arena = bytearray(Rig().memory)
    with ArenaReader.from_bytes(arena) as reader:
        list(reader.ops), list(reader.ops.used())
        with pytest.raises(BufferError):
            arena.append(0)
    arena.append(0)


def test_an_instance_is_opened_by_name(sound: bytes, runtime_dir: Path) -> None:
    with pytest.raises(TimerdUnavailableError, match="no timerd instance 'other'"):
        ArenaReader.open("other")
    file = runtime_dir / "arena"
    write_location(InstancePaths(runtime_dir, "other"), ArenaLocation("file", str(file), 1))
    with pytest.raises(ArenaNotReadyError, match="does not exist"):
        ArenaReader.open("other")
    file.write_bytes(b"")
    with pytest.raises(ArenaNotReadyError, match="has 0 bytes"):
        ArenaReader.open("other")
    file.write_bytes(sound)
    before = len(os.listdir("/proc/self/fd"))
    with ArenaReader.open("other") as reader:
        assert reader.header().newest == 5
    assert len(os.listdir("/proc/self/fd")) == before


# refusals ------------------------------------------------------------------------------------------------------------


def test_an_unfinished_arena_is_not_ready_rather_than_wrong(sound: bytes) -> None:
    unfinished = bytearray(sound)
    Pen(unfinished).header("layout_version", 0)
    for early in (b"", sound[: HEADER_SIZE - 1], bytes(unfinished), bytes(len(sound))):
        with pytest.raises(ArenaNotReadyError):
            ArenaReader.from_bytes(early)


@pytest.mark.parametrize(
    ("field", "value", "both"),
    [
        ("magic", b"notours!", (r"notours!", r"timerd")),
        ("layout_version", LAYOUT_VERSION + 6, (f"{LAYOUT_VERSION + 6}", f"{LAYOUT_VERSION}")),
        ("fingerprint", 0xDEADBEEF, ("0xdeadbeef", "0x")),
        ("region_count", 3, ("3", f"{len(Region)}")),
    ],
)
def test_another_layout_is_refused_with_both_values(
    sound: bytes, field: str, value: bytes | int, both: tuple[str, str]
) -> None:
    other = bytearray(sound)
    Pen(other).header(field, value)
    with pytest.raises(LayoutMismatchError) as refused:
        ArenaReader.from_bytes(other)
    assert all(each in str(refused.value) for each in both), str(refused.value)
    assert "same" in str(refused.value)


def test_a_truncated_arena_is_refused_with_both_sizes(sound: bytes) -> None:
    with pytest.raises(ArenaTruncatedError, match=f"{len(sound) - 1} bytes, and its header says {len(sound)}"):
        ArenaReader.from_bytes(sound[:-1])


@pytest.mark.parametrize(("field", "value"), [("offset", 1 << 40), ("offset", 8), ("count", 0xFFFF_FFFF)])
def test_a_region_outside_of_the_arena_is_refused(sound: bytes, field: str, value: int) -> None:
    other = bytearray(sound)
    code = "<Q" if field == "offset" else "<I"
    struct.pack_into(code, other, REGIONS_OFFSET + offset_of(RegionRecord, field), value)
    with pytest.raises(ArenaTruncatedError, match="OPS: "):
        ArenaReader.from_bytes(other)


# damage --------------------------------------------------------------------------------------------------------------


def test_a_blob_whose_chain_loops_or_ends_early_is_reported(sound: bytes) -> None:
    damaged = bytearray(sound)
    pen = Pen(damaged)
    with ArenaReader.from_bytes(sound) as reader:
        first = max(reader.ops.used(), key=lambda op: len(reader.blob(op.payload))).payload
        second = reader.blocks[first - 1].next
    pen.set(Region.BLOCKS, second - 1, "next", first)
    with ArenaReader.from_bytes(damaged) as reader:
        assert len(reader.blob(first)) == 300  # the reader reads as many blocks as the length needs
    pen.set(Region.BLOCKS, first - 1, "next", 0)
    with (
        ArenaReader.from_bytes(damaged) as reader,
        pytest.raises(DamageError, match="ends after 1 blocks, and 300 bytes"),
    ):
        reader.blob(first)
    pen.set(Region.BLOCKS, first - 1, "length", 0xFFFF_FFFF)
    with ArenaReader.from_bytes(damaged) as reader, pytest.raises(DamageError, match="more than 256 blocks hold"):
        reader.blob(first)


def test_a_list_that_loops_ends_with_an_error(sound: bytes) -> None:
    damaged = bytearray(sound)
    with ArenaReader.from_bytes(sound) as reader:
        first, second, *_ = walk.event_watchers(reader, first_watcher(reader, b"k0"))
        link = reader.nodes.link(second)
    Pen(damaged).set(Region.NODES, second, "next", link)
    with ArenaReader.from_bytes(damaged) as reader, pytest.raises(DamageError, match="comes before it"):
        list(walk.event_watchers(reader, first))


# consistency ---------------------------------------------------------------------------------------------------------


def test_several_words_are_read_between_two_turns() -> None:
    rig = Rig()
    alice = rig.client()
    seen: list[int] = []

    with ArenaReader.from_bytes(rig.memory) as reader:

        def read() -> tuple[int, int]:
            first = reader.ops.row().in_use
            if len(seen) < 2:  # a turn comes in between, twice
                rig.do(alice, Register((Key(b"k"),), timeout_ns=MS))
            seen.append(first)
            return first, reader.ops.row().in_use

        assert reader.between_turns(read) == (2, 2)
    assert seen == [0, 1, 2]


def test_a_turn_that_never_ends_does_not_stop_a_reader() -> None:
    rig = Rig()
    rig.core.begin_turn(rig.now_ns)
    with ArenaReader.from_bytes(rig.memory) as reader:
        assert reader.header().turn & 1
        assert reader.between_turns(lambda: "read") == "read"


# hashes --------------------------------------------------------------------------------------------------------------


def test_hashes_are_equal_to_the_hashes_of_the_core(rng: random.Random) -> None:
    rig = Rig(capacity=256, blocks=1024, quota_operations=256)
    alice = rig.client()
    for size in range(1, 250):
        alice.issue(Register((Key(rng.randbytes(size)),)))
    rig.turn()
    with ArenaReader.from_bytes(rig.memory) as reader:
        assert reader.header().seed_check == hashing.seed_check(SEED)
        nodes = list(reader.nodes.numbered())
        assert len(nodes) == 249
        for index, node in nodes:
            assert hashing.key_hash(SEED, node.purgatory, reader.key_name(node)) == node.hash
            assert index in _chain_of(reader, node.hash)
        handles = list(reader.handles)
        for op in reader.ops.used():
            tag = hashing.handle_tag(SEED, op.client, op.command)
            probed = (handles[at] for at in hashing.handle_probes(tag, len(handles)))
            assert tag in [handle.tag for handle in takewhile(lambda handle: handle.op, probed)]


def _chain_of(reader: ArenaReader, hash_: int) -> list[int]:
    head = hashing.key_head(hash_, len(reader.key_table))
    pair = reader.key_table[head // 2]
    first = pair.odd if head % 2 else pair.even
    return list(walk.chain(first, lambda index: reader.nodes[index].chain, len(reader.nodes), "chain"))


# SipHash-1-3 with the key 00 01 .. 0f: hashes of no bytes, of 00, of 00 01, and so on, up to 00 01 .. 0e. Rust tests
# its SipHash with these vectors, too.
VECTORS = """
abac0158050fc4dc c9f49bf37d57ca93 82cb9b024dc7d44d 8bf80ab8e7ddf7fb cf75576088d38328 def9d52f49533b67
c50d2b50c59f22a7 d3927d989bb11140 369095118d299a8e 25a48eb36c063de4 79de85ee92ff097f 70c118c1f94dc352
78a384b157b4d9a2 306f760c1229ffa7 605aa111c0f95d34
"""


def test_siphash_gives_the_vectors_of_its_authors_variant() -> None:
    """The key and the messages are taken from the test of the reference implementation."""
    seed = bytes(range(16))
    assert [hashing.siphash(seed, bytes(range(size))) for size in range(15)] == [
        int(vector, 16) for vector in VECTORS.split()
    ]


def test_hashes_are_pinned() -> None:
    """An arena outlives its daemon, so these hashes never change within a layout version."""
    tag = partial(hashing.handle_tag, SEED)
    assert hashing.key_hash(SEED, 1, b"inbox/7") == hashing.siphash(SEED, b"inbox/7\1")
    assert hashing.id_chain_hash(SEED, 1, 2, 3) == hashing.siphash(SEED, bytes([2, *bytes(7), 3, *bytes(7), 1])) % 2**32
    assert hashing.seed_check(SEED) == hashing.siphash(SEED, b"") | 1
    assert tag(3, 17) >> 4 == tag(3, 31) >> 4 != tag(3, 32) >> 4 == hashing.siphash(SEED, b"\3\0\2" + bytes(4)) % 2**28
    assert sorted(tag(3, command) % 16 for command in range(16, 32)) == list(range(16))
    assert len(hashing.id_hash(b"session/9")) == hashing.ID_HASH_SIZE
