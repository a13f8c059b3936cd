"""The log of a partition: compared with a plain list, cut at every byte, damaged. Its batches, and its producers.

Also: two threads that use a log at once, one of them between any two instructions of the other.
"""

from __future__ import annotations

import itertools
import random
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from crc32c import crc32c

from support.kafka.rawkafka import batch
from timerd_kafka.log.batch import CorruptBatch, InvalidBatch, UnsupportedBatch, read_batches, read_produced
from timerd_kafka.log.log import PartitionLog
from timerd_kafka.log.producers import BATCHES_KEPT, SEQUENCES, Fenced, OutOfOrder, Producers


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    made = PartitionLog(tmp_path)
    yield made
    made.close()


def append(log: PartitionLog, *values: bytes, **more: int) -> int:
    data = batch(values, **more)  # type: ignore[arg-type]
    return log.append(data, read_produced(data))


def values_of(data: bytes) -> list[tuple[int, int]]:
    """The first offset and the number of records of each batch."""
    return [(one.base_offset, one.last_offset_delta + 1) for one in read_batches(data)]


def test_the_log_is_a_list_of_batches_with_offsets_in_order(log: PartitionLog) -> None:
    assert [append(log, b"a"), append(log, b"b", b"c"), append(log, b"d")] == [0, 1, 3]
    assert log.end_offset == 4
    assert values_of(log.read(0, 4, 1 << 20, at_least_one=True)) == [(0, 1), (1, 2), (3, 1)]


def test_reading_begins_with_the_batch_that_has_the_offset_and_ends_before_the_limit(log: PartitionLog) -> None:
    for number in range(5):
        append(log, b"x" * 10, b"y" * 10)
        assert log.end_offset == 2 * number + 2
    assert values_of(log.read(5, 8, 1 << 20, at_least_one=True)) == [(4, 2), (6, 2)]
    assert log.read(8, 8, 1 << 20, at_least_one=True) == b""
    one = log.size_of(0, 2)
    assert values_of(log.read(0, 10, one * 2, at_least_one=False)) == [(0, 2), (2, 2)]
    assert values_of(log.read(0, 10, one * 3 - 1, at_least_one=False)) == [(0, 2), (2, 2)]
    assert log.read(0, 10, one - 1, at_least_one=False) == b""
    assert values_of(log.read(0, 10, one - 1, at_least_one=True)) == [(0, 2)], (
        "KIP-74: otherwise a consumer could not go on"
    )
    assert log.size_of(3, 10) == one * 4, "the batch with the offset is counted whole"


def test_the_log_equals_a_list_over_random_appends_reads_and_reopenings(tmp_path: Path, rng: random.Random) -> None:
    log, model = PartitionLog(tmp_path), list[tuple[int, int]]()  # each batch: first offset, number of records
    end = 0
    for _ in range(300):
        match rng.randrange(4):
            case 0 | 1:
                count = rng.randint(1, 4)
                append(log, *(rng.randbytes(rng.randrange(60)) for _ in range(count)))
                model.append((end, count))
                end += count
            case 2 if end:
                first, most = rng.randrange(end), rng.randrange(600)
                until = rng.choice([base + count for base, count in model])
                found = values_of(log.read(first, until, most, at_least_one=True))
                wanted = [one for one in model if one[0] + one[1] > first and one[0] < until]
                assert found == wanted[: len(found)] and (found or first >= until)
                assert log.size_of(first, until) == len(log.read(first, until, 1 << 30, at_least_one=True))
            case 3:
                log.checkpoint.high_watermark = rng.choice([0, end])
                log.close()
                log = PartitionLog(tmp_path)
                assert log.end_offset == end
    log.close()


def test_a_log_that_was_cut_at_any_byte_has_its_whole_batches(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path)
    ends = [0]
    for number in range(4):
        append(log, b"v" * number, b"w", producer=7, epoch=0, sequence=2 * number)
        ends.append(log.size)
    log.checkpoint.high_watermark = 4
    log.close()
    whole = log.path.read_bytes()
    for cut in range(len(whole), -1, -1):
        log.path.write_bytes(whole[:cut])
        opened = PartitionLog(tmp_path)
        kept = sum(end <= cut for end in ends) - 1
        assert (opened.end_offset, opened.size) == (2 * kept, ends[kept])
        if opened.is_damaged:  # a batch below the high watermark is cut: a killed process cannot cause this
            assert opened.end_offset < 4 and cut > ends[kept]
            opened.cut_damage()
        assert opened.checkpoint.high_watermark <= opened.end_offset
        opened.checkpoint.high_watermark = 4
        if kept:
            again = batch([b"v" * (kept - 1), b"w"], producer=7, epoch=0, sequence=2 * (kept - 1))
            assert opened.producers.duplicate_of(read_produced(again)) == 2 * (kept - 1), (
                "the file shows that the batch is a duplicate"
            )
        opened.close()


def test_damage_behind_the_high_watermark_is_cut_off(tmp_path: Path, rng: random.Random) -> None:
    log = PartitionLog(tmp_path)
    for _ in range(3):
        append(log, b"some value")
    log.checkpoint.high_watermark = 1
    size = log.size
    log.close()
    data = bytearray(log.path.read_bytes())
    leader_epoch = range(12, 16)  # of a batch; no check sum covers it, and a start does not check it otherwise
    data[rng.choice([at for at in range(size // 3 + 12, size) if at % (size // 3) not in leader_epoch])] ^= 0x10
    log.path.write_bytes(data)
    opened = PartitionLog(tmp_path)
    assert opened.end_offset in (1, 2)
    opened.close()


def test_damage_before_the_high_watermark_is_left_as_it_is(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path)
    for _ in range(3):
        append(log, b"some value")
    log.checkpoint.high_watermark = 3
    whole, second = log.path.read_bytes(), log.size // 3
    log.close()
    data = bytearray(whole)
    data[second + 16] ^= 0x10  # the format, in the header of the second batch
    log.path.write_bytes(data)
    opened = PartitionLog(tmp_path)
    assert (opened.is_damaged, opened.end_offset, opened.checkpoint.high_watermark) == (True, 1, 3)
    assert opened.path.read_bytes() == bytes(data)
    opened.cut_damage()
    assert (opened.is_damaged, opened.checkpoint.high_watermark) == (False, 1)
    assert opened.path.read_bytes() == whole[:second]
    opened.close()


def test_a_follower_takes_the_leaders_bytes_as_they_are_and_nothing_that_does_not_follow(tmp_path: Path) -> None:
    leader, follower = PartitionLog(tmp_path / "leader"), PartitionLog(tmp_path / "follower")
    for value in (b"a", b"b", b"c"):
        append(leader, value)
    follower.append_copy(leader.read(0, 2, 1 << 20, at_least_one=True))
    with pytest.raises(CorruptBatch, match="offset 1 was sent, 2 is next"):
        follower.append_copy(leader.read(1, 3, 1 << 20, at_least_one=True))
    follower.append_copy(leader.read(2, 3, 1 << 20, at_least_one=True))
    assert leader.path.read_bytes() == follower.path.read_bytes()
    follower.truncate(1)
    assert follower.end_offset == 1 and leader.path.read_bytes().startswith(follower.path.read_bytes())
    leader.close()
    follower.close()


def interrupted(call: Callable[[], object], interrupt: Callable[[], object], at: int) -> bool:
    """Call `call`, and `interrupt` before instruction number `at` of it. Returns False if it has fewer instructions."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        frame.f_trace_opcodes = True
        if event == "opcode":
            if seen == at:
                interrupt()
            seen += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return seen > at


def of_four(directory: Path) -> tuple[PartitionLog, int]:
    """A log of four batches with a record each, and the size of a batch."""
    log = PartitionLog(directory)
    for value in (b"a", b"b", b"c", b"d"):
        append(log, value)
    return log, log.size // 4


def test_a_log_may_be_truncated_at_any_moment_of_a_look_at_it(tmp_path: Path) -> None:
    for at in itertools.count():
        log, one = of_four(tmp_path / str(at))
        seen = list[int]()
        is_further = interrupted(lambda: seen.append(log.size_of(1, 4)), lambda: log.truncate(2), at)  # noqa: B023
        assert seen[0] in (one, 2 * one, 3 * one), f"before instruction {at}"
        log.close()
        if not is_further:
            assert at > 10, "the look was interrupted"
            return


def test_other_threads_see_the_records_that_stay_while_a_log_is_truncated(tmp_path: Path) -> None:
    """A look in between would answer a consumer with OFFSET_OUT_OF_RANGE, after which the consumer loses its place."""
    for at in itertools.count():
        log, one = of_four(tmp_path / str(at))
        seen = list[tuple[int, int]]()
        is_further = interrupted(
            lambda: log.truncate(2),  # noqa: B023
            lambda: seen.append((log.end_offset, log.size_of(0, 2))),  # noqa: B023
            at,
        )
        assert (log.end_offset, log.size, log.path.stat().st_size) == (2, 2 * one, 2 * one)
        assert set(seen) <= {(4, 2 * one), (2, 2 * one)}, f"before instruction {at}"
        log.close()
        if not is_further:
            assert at > 10, "the cut was interrupted"
            return


def test_a_truncated_log_forgets_the_producers_of_the_batches_that_are_gone(log: PartitionLog) -> None:
    sends = [batch([b"v"], producer=7, epoch=0, sequence=number) for number in range(4)]
    for data in sends:
        log.append(data, read_produced(data))
    log.truncate(2)
    assert [log.producers.duplicate_of(read_produced(data)) for data in sends[:3]] == [0, 1, None]
    assert log.append(sends[2], read_produced(sends[2])) == 2
    log.truncate(0)
    assert (log.end_offset, log.size, log.size_of(0, 4)) == (0, 0, 0)


def test_a_full_disk_leaves_the_log_as_it_was(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, b"kept")
    size = log.size

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("timerd_kafka.log.log.os.pwrite", full)
        with pytest.raises(OSError, match="No space"):
            append(log, b"lost")
    assert (log.size, log.end_offset, log.path.stat().st_size) == (size, 1, size)
    assert append(log, b"next") == 1


def claiming(records: int) -> bytes:
    """A batch with one record whose header states that it has `records` records."""
    made = bytearray(batch([b"a"]))
    struct.pack_into(">i", made, 23, records - 1)
    struct.pack_into(">i", made, 57, records)
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


# batches --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (batch([b"a"])[:40], "cut after 40"),
        (batch([b"a"])[:-1], "is cut after"),
        (bytes([*batch([b"abc"])[:-2], 1, 0]), "check sum"),
        (batch([b"a"], magic=3), "format 3"),
    ],
)
def test_a_damaged_batch_is_corrupt(data: bytes, error: str) -> None:
    with pytest.raises(CorruptBatch, match=error) as raised:
        read_produced(data)
    assert raised.type is CorruptBatch, "an error after which a producer may send the batch again"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "no record batch"),
        (batch([b"a"]) + b"x", "1 bytes after a batch"),
        (batch([b"a"]) + batch([b"b"]), "one for each partition"),
        (batch([b"a"], attributes=7), "codec 7"),
        (claiming(10**6), "a batch of 69 bytes has 1000000 records"),
        (claiming(0), "a batch has 0 records"),
        (batch([b"a"], attributes=0b100000), "control"),
        (batch([b"a"], producer=1), "no epoch"),
    ],
)
def test_data_that_no_leader_takes_is_invalid(data: bytes, error: str) -> None:
    with pytest.raises(InvalidBatch, match=error):
        read_produced(data)


@pytest.mark.parametrize("data", [batch([b"a"], magic=1), batch([b"a"], attributes=0b10000)])
def test_older_formats_and_transactions_are_unsupported(data: bytes) -> None:
    with pytest.raises(UnsupportedBatch):
        read_produced(data)


def test_any_damage_of_a_batch_is_found(rng: random.Random) -> None:
    whole = batch([b"some", b"records"], producer=3, epoch=0, sequence=0)
    placed = (*range(8), *range(12, 16))  # the leader sets the offset and the leader epoch, so no check sum covers them
    for _ in range(3_000):
        position = rng.choice([number for number in range(len(whole)) if number not in placed])
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        with pytest.raises((CorruptBatch, UnsupportedBatch)):
            read_produced(bytes(damaged))


# producers ------------------------------------------------------------------------------------------------------------


def sent(sequence: int, *, count: int = 1, epoch: int = 0, offset: int = 0) -> bytes:
    return batch([b"v"] * count, producer=9, epoch=epoch, sequence=sequence, offset=offset)


def one(data: bytes):  # type: ignore[no-untyped-def]
    (found,) = read_batches(data)
    return found


def test_a_batch_that_is_sent_again_is_known_while_it_is_one_of_the_last_five() -> None:
    producers = Producers()
    for number in range(BATCHES_KEPT + 1):
        assert producers.duplicate_of(one(sent(number))) is None
        producers.add(one(sent(number, offset=100 + number)))
    for number in range(1, BATCHES_KEPT + 1):
        assert producers.duplicate_of(one(sent(number))) == 100 + number
    with pytest.raises(OutOfOrder):
        producers.duplicate_of(one(sent(0)))


def test_a_gap_is_out_of_order_and_an_older_epoch_fenced() -> None:
    producers = Producers()
    producers.add(one(sent(0, count=3)))
    with pytest.raises(OutOfOrder, match="sequence 4 of producer 9: 3 is next"):
        producers.duplicate_of(one(sent(4)))
    with pytest.raises(OutOfOrder, match="epoch 1 begins with sequence 3, not 0"):
        producers.duplicate_of(one(sent(3, epoch=1)))
    assert producers.duplicate_of(one(sent(0, epoch=1))) is None
    producers.add(one(sent(0, epoch=1)))
    with pytest.raises(Fenced):
        producers.duplicate_of(one(sent(3, epoch=0)))


def test_sequences_go_on_from_0_behind_the_highest() -> None:
    producers = Producers()
    producers.add(one(sent(SEQUENCES - 2, count=2)))
    assert producers.duplicate_of(one(sent(0))) is None
    producers.add(one(sent(SEQUENCES - 1, count=2)))
    assert producers.duplicate_of(one(sent(1))) is None
