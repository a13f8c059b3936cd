"""No client can aim keys, ids or command numbers at one chain: the tables hash with a seed that no client knows."""

from __future__ import annotations

import struct
from functools import cache
from itertools import count, islice

import pytest

from support.fakes.collisions import (
    CHAIN_MOST,
    LONG,
    ids_of_one_chain,
    keys_by_inversion,
    keys_of_hash,
    longest_chain,
    longest_probing,
    numbers_of_one_run,
    register_ids,
    register_keys,
    register_numbers,
)
from support.oracle.truth import truth
from support.rig.arenas import SEED
from support.rig.commands import Key, Mark, OperationAct, Register
from support.rig.damage import busy_rig
from support.rig.faults import core_faults
from support.rig.harness import Client, Rig, advance, cancel, fire, forget
from support.rig.rules import SLACK, TURN_BUDGET
from timerd_shm.check.check import check
from timerd_shm.declare.errors import ErrorCode, InvalidValueError
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.layout import BATCH_MAX, Region
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import CommandKind
from timerd_shm.read import hashing
from timerd_shm.read.reader import ArenaReader

MANY = 2_000


def large() -> Rig:
    return Rig(
        quota_ids=MANY,
        capacity=MANY,
        ids=MANY,
        quota_operations=MANY,
    )


def test_keys_that_are_chosen_by_the_arenas_content_share_no_chain() -> None:
    rig = large()
    register_keys(rig, keys_by_inversion(rig, MANY))
    assert rig.arena.keys_in_use() == MANY, "some keys of the attack are missing"
    assert longest_chain(rig, Region.KEY_TABLE, Region.NODES) <= CHAIN_MOST
    rig.check()


def test_ids_that_a_client_chooses_share_no_chain() -> None:
    rig = large()
    register_ids(rig, ids_of_one_chain(MANY))
    assert rig.arena.in_use()["IDS"] == MANY, "some ids of the attack are missing"
    assert longest_chain(rig, Region.ID_TABLE, Region.IDS) <= CHAIN_MOST
    rig.check()


@pytest.mark.long
def test_command_numbers_that_a_client_chooses_are_no_neighbours_in_the_table_of_operations() -> None:
    rig = large()
    register_numbers(rig, numbers_of_one_run(rig, 0, MANY), 0)
    assert rig.arena.in_use()["OPS"] == MANY, "some operations of the attack are missing"
    assert longest_probing(rig) <= 4 * CHAIN_MOST
    rig.check()


def whoever_knew_the_seed(keys: int) -> tuple[Rig, list[bytes]]:
    """A rig, and keys that share a chain in it. To find them, an attacker needs the seed, or a long search."""
    return bench(keys), list(keys_of_the_seed(keys))


def bench(keys: int) -> Rig:
    return Rig(capacity=2 * keys, quota_operations=2 * keys, watermarks=keys, quota_watermarks=keys)


@cache
def keys_of_the_seed(keys: int) -> tuple[bytes, ...]:
    """Keys that share a chain. They are cached: the search takes seconds, and all rigs have the same seed."""
    return tuple(keys_of_hash(bench(keys), lambda key: hashing.key_hash(SEED, 0, key), keys))


def in_turns(rig: Rig, client: Client) -> list[int]:
    """Apply the client's commands in turns of TURN_BUDGET records. Returns the number of records touched in each."""
    touched, result = [], rig.module.UNFINISHED
    while result != rig.module.APPLIED:
        rig.core.begin_turn(rig.now_ns)
        result = rig.core.apply(client.slot, client.frame(), rig.now_ns, TURN_BUDGET)
        touched.append(rig.core.end_turn(rig.now_ns))
    rig.turn()
    return touched


@pytest.mark.long
def test_steps_of_a_chain_count_as_records_of_the_turn() -> None:
    """A turn stops at its bound, and the next turn goes on. A turn exceeds the bound by one batch at most."""
    rig, keys = whoever_knew_the_seed(128)
    client = rig.client()
    for key in keys:
        client.issue(Register((Key(key),), timeout_ns=LONG))
    registered = in_turns(rig, client)
    assert longest_chain(rig, Region.KEY_TABLE, Region.NODES) == len(keys), "no attack"
    assert sum(registered) >= len(keys) ** 2 // 2, "walks over the earlier keys were not counted"
    for key in keys:
        client.issue(fire(key))
    fired = in_turns(rig, client)
    assert sum(fired) >= len(keys) ** 2 // 2, "walks to the key of an event were not counted"
    for touched in (registered, fired):
        assert max(touched) <= TURN_BUDGET + BATCH_MAX * (2 * len(keys) + SLACK), (
            f"a turn touched {max(touched)} records"
        )
    assert len(client.delivered) == len(keys)
    rig.check()


def test_a_command_that_is_applied_in_vain_pays_for_its_steps() -> None:
    """The FORGET of an unknown watermark walks over the whole chain, and changes nothing."""
    rig, keys = whoever_knew_the_seed(128)
    last = keys.pop()
    client = rig.client()
    rig.do(client, *(advance(key, 1) for key in keys))
    assert longest_chain(rig, Region.WATERMARK_TABLE, Region.WATERMARKS) == len(keys), "no attack"
    for _ in range(8):
        client.issue(forget(last))
    assert sum(in_turns(rig, client)) >= 8 * len(keys)


def test_steps_to_an_id_count() -> None:
    rig = Rig(ids=64)
    pairs = rig.arena.region(Region.ID_TABLE).count

    def head(low: int) -> int:
        return hashing.id_head(hashing.id_chain_hash(SEED, 0, low, 7), pairs)

    ids = [struct.pack("<QQ", low, 7) for low in range(4_096) if head(low) == 0][:20]
    register_ids(rig, ids)
    assert longest_chain(rig, Region.ID_TABLE, Region.IDS) == 20, "no attack"
    rig.check()
    client = rig.client()
    client.issue(OperationAct(CommandKind.CANCEL_ID, id=ids[0]))
    assert rig.turn() >= 20


def test_probes_for_an_operation_count() -> None:
    """Eight entries of the handle table count as one record, because an entry has 8 bytes."""
    rig = large()
    many = rig.arena.region(Region.HANDLES).count

    def is_early(number: int) -> bool:
        return hashing.handle_tag(SEED, 0, number) % many < many // 8

    numbers = list(islice(filter(is_early, count(1)), MANY))
    register_numbers(rig, numbers, 0)
    assert longest_probing(rig) > 64, "no attack"
    rig.check()
    rig.clients[0].issue(cancel(numbers[-1]))
    assert rig.turn() > 64 // 8


# the seed ---------------------------------------------------------------------------------------------------------


def lost_seed(rig: Rig) -> bytes:
    """Attach with another seed, as after the seed's file was lost. Returns the other seed."""
    other = bytes(reversed(SEED))
    rig.core.release()
    rig.core = rig.module.Core(rig.memory, rig.now_ns, other)
    return other


def test_a_start_with_another_seed_makes_all_hashes_anew() -> None:
    rig = busy_rig()
    rig.restart()
    assert not rig.core.rehashed
    before = truth(rig.memory)
    other = lost_seed(rig)
    assert rig.core.rehashed and check(memoryview(rig.memory), seed=other) == []
    assert check(memoryview(rig.memory), seed=SEED) == [
        "ARENA.seed is not the seed of this arena: the next start makes its hashes anew"
    ]
    after = truth(rig.memory)
    assert {part for part in before if before[part] != after[part]} == {"ring", "slots"}, (
        "more has changed than what follows from the hashes of events"
    )
    with ArenaReader.from_bytes(rig.memory) as reader:
        assert any(reader.blob(node.name_blob) for node in reader.nodes.used() if node.name_blob), (
            "no key has a long name"
        )


def test_after_another_seed_a_mark_before_the_oldest_event_is_too_old() -> None:
    """This holds for every key: nobody knows the keys of events that left the ring. Marks within the ring are good."""
    rig = Rig(ring_events=16)
    early = Mark(rig.core.newest, 0)
    rig.do(rig.client(), *(fire(b"other%d" % number) for number in range(40)))
    rig.do(rig.client(), fire(b"k"), fire(b"other"))
    within = Mark(rig.core.newest - 2, 0)
    lost_seed(rig)
    rig.clients.clear()
    client = rig.client()
    completed = rig.do(client, Register((Key(b"k"),), timeout_ns=LONG, mark=within))
    refused = rig.do(client, Register((Key(b"quiet"),), timeout_ns=LONG, mark=early))
    assert client.state(completed) is Outcome.COMPLETED
    answer = client.answer(refused)
    assert answer is not None and answer.code == ErrorCode.MARK_TOO_OLD


@pytest.mark.skipif(core_faults is None, reason="the build for tests was not made (TIMERD_FAULTS)")
def test_a_start_that_is_killed_while_it_makes_hashes_anew_is_repeated_by_the_next() -> None:
    rig = busy_rig()
    rig.core.release()
    memory, other = bytes(rig.memory), bytes(reversed(SEED))
    done = bytearray(memory)
    core_faults.record(1_000)
    try:
        core_faults.Core(done, rig.now_ns, other).release()
    finally:
        copies = core_faults.snapshots()
    assert len(copies) >= 2
    assert any(unpack(ArenaHeader, memoryview(copy)).seed_check == 0 for copy in copies)
    for copy in copies:
        again = bytearray(copy)
        core_faults.Core(again, rig.now_ns, other).release()
        assert check(memoryview(again), seed=other) == []
        assert truth(again) == truth(done)


def test_a_seed_of_another_length_is_refused() -> None:
    rig = Rig()
    rig.core.release()
    with pytest.raises(InvalidValueError, match="the seed has 8 bytes, and the core needs 16"):
        rig.module.Core(rig.memory, rig.now_ns, bytes(8))
