"""Checks an arena: compares all derived fields with the truth they are derived from, and the truth with itself.

    for sentence in check(reader): print(sentence)        # none: the arena is sound

This code follows from the declarations alone (declare/), not from the core. It is slow and simple, with lists and
dictionaries where the core has links and counts. The arena must be between two turns (a copy, a snapshot, the arena of
a dead daemon): in the middle of a turn, derived fields may lag. `Findings` keeps two kinds apart: truth must hold
wherever the daemon was killed; derived fields are rebuilt by the next start.

Cost: about 15 us for each operation, its keys included, and 2 ms for an arena of 64 operations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from timerd_shm.declare import layout
from timerd_shm.declare.counters import PURGATORY_COUNTERS, index_of
from timerd_shm.declare.errors import LayoutMismatchError
from timerd_shm.declare.fields import offset_of, size_of, struct_of
from timerd_shm.declare.layout import BUCKETS, LEVELS, Region
from timerd_shm.declare.limits import GROUP_HELD_MAX, HANDLED_NAMES_MAX
from timerd_shm.declare.records import BLOCK_DATA, ArenaHeader, BucketRecord, ClientRecord
from timerd_shm.declare.states import ClientFlag, ClientState, IdState, OpState, Orphans, Place
from timerd_shm.read import hashing, walk
from timerd_shm.read.reader import ArenaReader, DamageError

from .truth import CALL, PRESENT, Findings, Key, Truth, some

REDO_COUNT_WORD = offset_of(ArenaHeader, "redo_count") // 8
Progress = Callable[[str], None]


def check(
    arena: ArenaReader | bytes | bytearray | memoryview,
    *,
    cut: bool = False,
    progress: Progress | None = None,
    seed: bytes | None = None,
) -> list[str]:
    """A sentence, with the values, for each error in an arena; none if the arena is sound.

    With `cut`, the last turn may have left acknowledged outcomes and answers, which the next turn frees. `progress` is
    called with the name of each part before it is checked. `seed` is the seed of the arena's hashes. Without it, the
    tables are compared with the hashes in the records, and the hashes themselves are not checked. Raises the errors of
    ArenaReader.
    """
    found = examine(arena, cut=cut, progress=progress, seed=seed)
    return [*found.truth, *found.derived]


def examine(
    arena: ArenaReader | bytes | bytearray | memoryview,
    *,
    cut: bool = False,
    progress: Progress | None = None,
    seed: bytes | None = None,
) -> Findings:
    """The findings of check(), with truth and derived apart."""
    if isinstance(arena, ArenaReader):
        return Checker(arena, cut, seed).run(progress)
    with ArenaReader.from_bytes(arena) as reader:
        return Checker(reader, cut, seed).run(progress)


def finished(reader: ArenaReader) -> bytearray:
    """A copy of the arena, with the unfinished transaction of a killed daemon stored to its end, as a start does it.

    Raises LayoutMismatchError when the redo slot is damaged.
    """
    copy = bytearray(reader.memory)
    header = reader.header()
    if header.redo_count > layout.REDO_MAX:
        raise LayoutMismatchError(
            f"the redo slot says that it holds {header.redo_count} words, and it has room for {layout.REDO_MAX}"
        )
    with memoryview(copy) as view, view.cast("Q") as words:
        for entry in reader.redo():
            if entry.offset % 8 or entry.offset > len(copy) - 8:
                raise LayoutMismatchError(f"the redo slot names offset {entry.offset} in an arena of {len(copy)} bytes")
            words[entry.offset // 8] = entry.value
        words[REDO_COUNT_WORD] = 0
    return copy


@lru_cache(maxsize=64)
def empty_heads(link: int) -> bytes:
    """A level of empty buckets: each head leads to itself. `link` names the first head."""
    head, step = struct_of(BucketRecord), size_of(BucketRecord) // layout.LINK_UNIT
    return b"".join(head.pack(own, own, 0, 0) for own in range(link, link + BUCKETS * step, step))


class Checker(Truth):
    """One check of one arena. It gathers the truth first, and then compares every derived field with the truth."""

    def run(self, progress: Progress | None) -> Findings:
        for name, part in (
            ("header", self.check_header),
            ("watermarks", self.check_watermarks),
            ("operations", self.check_operations),
            ("ring", self.check_ring),
            ("keys", self.check_keys),
            ("wheel", self.check_wheel),
            ("clients", self.check_clients),
            ("groups", self.check_groups),
            ("accounts", self.check_accounts),
            ("handles", self.check_handles),
            ("ids", self.check_ids),
            ("blocks", self.check_blocks),
            ("free lists", self.check_free_lists),
            ("gauges", self.check_gauges),
        ):
            if progress is not None:
                progress(name)
            try:
                part()
            except DamageError as error:  # for example: a region is smaller than its row says
                self.wrong(str(error))
        for sentences, kind in zip(self.found, ("of the truth", "of derived fields"), strict=True):
            if left := self.left_out[id(sentences)]:
                sentences.append(f"and {left} more findings {kind}")
        return self.found

    def check_keys(self) -> None:
        reader = self.reader
        for (key, _), watchers in self.watchers.items():
            self.check_watchers(key, [node for _, node in sorted(watchers)])
        for key, heap in self.heaps.items():
            self.check_heap(key, heap)
        placed = {number for number, node in self.nodes.items() if node.place != Place.NOWHERE}
        for number in sorted(placed - self.node_used):
            self.stale(f"node {number} says that its place is {self.nodes[number].place}, and belongs to no operation")
        self.check_chains(
            "node",
            Region.KEY_TABLE,
            self.nodes,
            {number for number in placed if self.nodes[number].place == Place.FIRST},
            lambda node: hashing.key_head(node.hash, reader.key_table.count),
            reader.nodes.count,
        )
        self.watermark_used = {index for index, record in enumerate(self.watermarks) if record.used}
        self.check_chains(
            "watermark",
            Region.WATERMARK_TABLE,
            self.watermarks,
            self.watermark_used,
            lambda record: hashing.key_head(record.hash, reader.watermark_table.count),
            len(self.watermarks),
        )

    def first_of(self, key: Key, nodes: Iterable[int]) -> int | None:
        """The node that stands first in a key's list, or at the top of its heap."""
        firsts = [number for number in nodes if self.nodes[number].place == Place.FIRST]
        if len(firsts) != 1:
            self.stale(f"{self.name_key(key)}: nodes {some(firsts)} of its watchers say that they stand first")
            return None
        return firsts[0]

    def check_watchers(self, key: Key, expected: list[int]) -> None:
        first = self.first_of(key, expected)
        if first is None:
            return
        with self.derived_links():
            got = list(walk.event_watchers(self.reader, first, self.nodes))
            if got == expected:
                return
            if sorted(got) == sorted(expected):
                registrations = [self.ops[self.nodes[node].op].registration for node in got]
                self.stale(
                    f"{self.name_key(key)}: its watchers do not stand in order of registration: {some(registrations)}"
                )
            for node in sorted(set(expected) - set(got)):
                self.stale(
                    f"{self.name_key(key)}: {self.name_op(self.nodes[node].op)} watches it and is not in its list"
                )
            for node in sorted(set(got) - set(expected)):
                self.stale(f"{self.name_key(key)}: node {node} is in its list, and does not wait for it")

    def check_heap(self, key: Key, expected: dict[int, tuple[int, int]]) -> None:
        top = self.first_of(key, expected)
        if top is None:
            return
        got: set[int] = set()
        ranks: dict[int, list[int]] = defaultdict(list)
        with self.derived_links():
            for node, parent in walk.watermark_watchers(self.reader, top, self.nodes):
                got.add(node)
                if parent >= 0:
                    ranks[parent].append(self.nodes[node].rank)
                    if node in expected and parent in expected and expected[node] < expected[parent]:
                        self.stale(
                            f"{self.name_key(key)}: node {node} (target, registration) {expected[node]} stands below "
                            f"node {parent} {expected[parent]}"
                        )
            for node in got:
                below = ranks[node]
                right = below[1] if len(below) == 2 else 0
                if self.nodes[node].rank != right + 1 or (below and below[0] < right):
                    self.stale(
                        f"{self.name_key(key)}: node {node} has rank {self.nodes[node].rank} above ranks {below}"
                    )
            for node in sorted(expected.keys() - got):
                self.stale(
                    f"{self.name_key(key)}: {self.name_op(self.nodes[node].op)} watches it and is not in its heap"
                )
            for node in sorted(got - expected.keys()):
                self.stale(f"{self.name_key(key)}: node {node} is in its heap, and does not wait for it")

    def check_chains(
        self,
        what: str,
        region: Region,
        records: walk.Indexed[Any],
        in_use: set[int],
        head_of: Callable[[Any], int],
        most: int,
    ) -> None:
        """The chains of a hash table: each record that is in use is in the chain of its hash, and in no other.

        `most`: the largest index that a record may have.
        """
        row = self.reader.region(region)
        got: set[int] = set()
        with self.reader.memory[row.offset : row.offset + row.count * row.record_size] as rows, rows.cast("I") as heads:
            for number, first in enumerate(heads.tolist()):
                if not first:
                    continue
                label = f"chain {number} of the {what} table"
                with self.derived_links():
                    for index in walk.chain(first, walk.field(records, "chain", label), most, label):
                        if index not in in_use or head_of(records[index]) != number:
                            self.stale(f"{what} {index} is in {label}, and does not belong there")
                        got.add(index)
        for index in sorted(in_use - got):
            self.stale(f"{what} {index} is not in the {what} table")

    def filled_buckets(self) -> Iterator[int]:
        """The buckets in which something is, or should be. Nearly all buckets are empty."""
        buckets = self.reader.buckets
        for level in range(LEVELS):
            first = level * BUCKETS
            heads = bytes(self.reader.memory[buckets.offset_of(first) : buckets.offset_of(first + BUCKETS)])
            empty = empty_heads(buckets.link(first))
            if heads == empty and self.bucket_ops.keys().isdisjoint(range(first, first + BUCKETS)):
                continue
            for number, at in zip(range(first, first + BUCKETS), range(0, len(empty), buckets.size), strict=True):
                end = at + buckets.size
                if heads[at:end] != empty[at:end] or number in self.bucket_ops:
                    yield number

    def check_wheel(self) -> None:
        reader = self.reader
        buckets = reader.buckets
        occupied = [0] * LEVELS
        for number in self.filled_buckets():
            (first, last, count, _), link = buckets[number], buckets.link(number)
            expected = self.bucket_ops.get(number, set())
            level, position = divmod(number, BUCKETS)
            name = f"bucket {level}:{position}"
            if count:
                occupied[level] |= 1 << position
            if count != len(expected):
                self.stale(f"{name} says that it holds {count}, and {len(expected)} belong there")
            with self.derived_links():
                got = list(walk.linked(reader.ops, link, first, last, name, self.ops))
                for index in sorted(expected.symmetric_difference(got)):
                    is_ = "is not" if index in expected else "is"
                    stated = self.ops[index].bucket - 1
                    self.stale(f"{self.name_op(index)} {is_} in {name}, and says that it is in bucket {stated}")
        for level, record in zip(range(LEVELS), reader.levels, strict=False):  # the region's row may be wrong
            bits = record.occupied_low | record.occupied_high << 64
            if bits != occupied[level]:
                self.stale(
                    f"level {level} says that buckets 0x{bits:x} hold something, and buckets 0x{occupied[level]:x} do"
                )

    def check_clients(self) -> None:
        answers_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.answer_used = {index for index, answer in enumerate(self.answers) if answer.used}
        watermarks: Counter[tuple[int, int]] = Counter(
            (record.setter, record.setter_generation) for record in self.watermarks if record.used
        )
        for index in self.answer_used:
            answers_of[self.answers[index].client].append((self.answers[index].command, index))
        for slot in sorted(answers_of):
            if slot >= len(self.clients) or self.clients[slot].state == ClientState.FREE:
                self.wrong(f"{len(answers_of[slot])} answers are kept for client {slot}, which does not exist")
        for slot, client in enumerate(self.clients):
            if client.state == ClientState.FREE:
                continue
            if client.acknowledged >= client.next_outcome or client.answers_acknowledged > client.last_command:
                self.wrong(
                    f"client {slot} has acknowledged outcome {client.acknowledged} and answer "
                    f"{client.answers_acknowledged}; its next outcome is {client.next_outcome}, its last command "
                    f"{client.last_command}"
                )
            self.check_membership(slot, client)
            settled = sorted(self.settled_of[slot])
            kept = sorted(answers_of[slot])
            for command, _ in kept:
                if command > client.last_command or (command <= client.answers_acknowledged and not self.cut):
                    self.wrong(
                        f"the answer to command {command} of client {slot} is kept: its answers are acknowledged up to "
                        f"{client.answers_acknowledged}, and its commands applied up to {client.last_command}"
                    )
            with self.derived_links():
                got = list(walk.outcomes(self.reader, slot, self.ops))
                if self.cut:
                    got = [index for index in got if index not in self.received]
                self.compare(f"outcomes of client {slot}", got, settled)
            with self.derived_links():
                got = list(walk.answers(self.reader, slot, self.answers))
                self.compare(f"answers of client {slot}", got, kept)
            own = sum(not self.ops[index].group for _, index in settled)
            self.check_client_gauges(slot, client, own, len(kept), watermarks[slot, client.generation & 0xFFFF])

    def check_client_gauges(
        self, slot: int, client: ClientRecord, unacknowledged: int, answers: int, watermarks: int
    ) -> None:
        for name, stated, is_ in (
            ("pending", client.pending, self.pending_of[slot]),
            ("ids", client.ids, self.ids_of[slot]),
            ("unacknowledged", client.unacknowledged, unacknowledged),
            ("answers", client.answers, answers),
            ("watermarks", client.watermarks, watermarks),
            ("nodes", client.nodes, self.nodes_of[slot]),
            ("bytes_held", client.bytes_held, self.bytes_of[slot]),
            ("held", client.held, self.held_of[slot]),
            ("calls_held", client.calls_held, self.calls_held_of[slot]),
        ):
            if stated != is_:
                self.stale(f"client {slot} says {name}={stated}, and it is {is_}")

    def check_membership(self, slot: int, client: ClientRecord) -> None:
        """Compare a client's state, group and flags with each other, and what it holds with the limits."""
        if client.group > len(self.groups) or (client.group and not self.groups[client.group - 1].state):
            self.wrong(f"client {slot} is of group {client.group - 1}, which is not in use")
        if client.state == ClientState.TOMBSTONE and client.group:
            self.wrong(f"client {slot} is a tombstone, and of group {client.group - 1}")
        if client.flags & ClientFlag.LISTENS and (client.state not in PRESENT or not client.group):
            self.wrong(f"client {slot} in state {client.state} of group {client.group - 1} has the flag LISTENS")
        if client.orphans == Orphans.GROUP and client.state in PRESENT and not client.group:
            self.wrong(f"client {slot} leaves its operations to a group, and has none")
        if (client.calls or client.names) and (client.state not in PRESENT or not client.group):
            self.wrong(f"client {slot} in state {client.state} of group {client.group - 1} takes calls")
        names = self.blob_length(client.names)
        if names % 8 or names > 8 * HANDLED_NAMES_MAX or client.calls > GROUP_HELD_MAX:
            self.wrong(f"client {slot} takes {client.calls} calls at a time, of names in {names} bytes")
        self.refer_to_blob(client.names)
        if self.held_of[slot] > GROUP_HELD_MAX:
            self.wrong(f"client {slot} holds {self.held_of[slot]} outcomes of its group, more than {GROUP_HELD_MAX}")

    def check_groups(self) -> None:
        members = Counter(client.group - 1 for client in self.clients if client.state in PRESENT and client.group)
        names: dict[bytes, int] = {}
        for number, group in enumerate(self.groups):
            name = group.name[: group.name_length]
            if group.state and (other := names.setdefault(name, number) - number):
                self.wrong(f"groups {number} and {number + other} are both {name!r}")
            for what, stated, is_ in (
                ("members", group.members, members[number]),
                ("pending", group.pending, self.pending_for[number]),
                ("ids", group.ids, self.ids_for[number]),
                ("endless", group.endless, self.endless_for[number]),
                ("unacknowledged", group.unacknowledged, self.settled_for[number]),
                ("nodes", group.nodes, self.nodes_for[number]),
                ("bytes_held", group.bytes_held, self.bytes_for[number]),
                ("letters", group.letters, len(self.letters_of[number])),
            ):
                if stated != is_:
                    self.stale(f"group {number} says {what}={stated}, and it is {is_}")
            with self.derived_links():
                got = list(walk.waiting(self.reader, number, self.ops))
                calls = list(walk.waiting_calls(self.reader, number, self.ops))
                expected = sorted(self.waiting[number])
                if sorted(got + calls) != expected:
                    held = some(got + calls)
                    self.stale(f"group {number}: its lists hold operations {held}, and {some(expected)} belong there")
                if [i for i in got if self.ops[i].flags & CALL] + [i for i in calls if not self.ops[i].flags & CALL]:
                    self.stale(f"group {number}: calls and outcomes stand in each other's lists")
                letters = list(walk.dead_letters(self.reader, number, self.ops))
                self.compare(f"dead letters of group {number}", letters, sorted(self.letters_of[number]))
            for letter, index in self.letters_of[number]:
                if letter > self.header.newest_letter or self.ops[index].id_record:
                    self.wrong(
                        f"{self.name_op(index)} is dead letter {letter} of {self.header.newest_letter}, under id "
                        f"{self.ops[index].id_record - 1}"
                    )

    def check_accounts(self) -> None:
        uids: dict[int, int] = {}
        for number, user in enumerate(self.users):
            if user.state and (other := uids.setdefault(user.uid, number)) != number:
                self.wrong(f"users {other} and {number} are both of uid {user.uid}")
        if not self.users or not self.users[0].state:
            self.wrong("user 0, which stands for all users without a record, is not in use")
        for number, account in enumerate(self.accounts):
            if number < len(self.clients) and account.user >= len(self.users):
                self.wrong(f"client {number} is of user {account.user}, and there are {len(self.users)}")
            is_ = self.accounts_of[number]
            for name in ("pending", "outcomes", "nodes", "ids", "bytes_held"):
                if getattr(account, name) != is_[name]:
                    self.stale(f"account {number} says {name}={getattr(account, name)}, and it is {is_[name]}")

    def compare(self, what: str, got: list[int], numbered: list[tuple[int, int]]) -> None:
        """Compare a list of records, in order of their numbers, with the records that belong there."""
        if len({number for number, _ in numbered}) < len(numbered):
            self.wrong(f"{what}: two have the same number: {some([number for number, _ in numbered])}")
        elif got != [index for _, index in numbered]:
            self.stale(f"{what}: the list holds records {some(got)}, not, in order, {some([i for _, i in numbered])}")

    def check_handles(self) -> None:
        reader = self.reader
        row = reader.region(Region.HANDLES)
        with reader.memory[row.offset : row.offset + row.count * row.record_size] as rows, rows.cast("I") as flat:
            words = flat.tolist()
        tags, entries = words[0::2], words[1::2]
        slots: dict[int, int] = {}
        for slot, entry in enumerate(entries):
            if entry == 0:
                continue
            if entry - 1 not in self.handles or entry - 1 in slots:
                self.stale(
                    f"handle {slot} names operation {entry - 1}, which does not exist, has no owner, or is named twice"
                )
            slots[entry - 1] = slot
        for index, op in self.handles.items():
            if self.seed is not None:
                tag = hashing.handle_tag(self.seed, op.client, op.command)
            else:
                tag = tags[slots[index]] if index in slots else 0
            at = next((at for at in hashing.handle_probes(tag, row.count) if entries[at] in (0, index + 1)), -1)
            if at < 0 or entries[at] != index + 1:
                self.stale(f"{self.name_op(index)} cannot be found by its handle: probing ends at {at}")
            elif tags[at] != tag:
                self.stale(f"handle {at} of {self.name_op(index)} has tag 0x{tags[at]:x}, not 0x{tag:x}")
            elif op.tag != tag:
                self.stale(f"{self.name_op(index)} says that its handle has tag 0x{op.tag:x}, not 0x{tag:x}")

    def check_ids(self) -> None:
        reader = self.reader
        self.id_used = {index for index, record in enumerate(self.ids) if record.state != IdState.FREE}
        settled: dict[int, set[int]] = {slot: set() for slot in range(len(self.clients))}
        names: dict[tuple[int, int, int], int] = {}
        for index in sorted(self.id_used):
            record = self.ids[index]
            for what, number in (("due", record.call), ("running", record.running)):
                op = self.ops[number - 1] if 1 <= number <= len(self.ops) else None
                if number and (
                    op is None or op.state != OpState.SETTLED or not op.flags & CALL or op.id_record != index + 1
                ):
                    self.wrong(f"id {index} names operation {number - 1} as its {what} call, but that is no such call")
            if other := names.setdefault((record.purgatory, record.hash_low, record.hash_high), index) - index:
                self.wrong(f"ids {index} and {index + other} are the same")
            if self.seed is not None:
                hash_ = hashing.id_chain_hash(self.seed, record.purgatory, record.hash_low, record.hash_high)
                if hash_ != record.chain_hash:
                    self.stale(f"id {index} says that its hash is 0x{record.chain_hash:x}, and it is 0x{hash_:x}")
            if record.state == IdState.SETTLED:
                if record.op - 1 in settled:
                    settled[record.op - 1].add(index)
                else:
                    self.wrong(f"id {index} is paid for by client {record.op - 1} of {len(self.clients)}")
                continue
            op = self.ops[record.op - 1] if 1 <= record.op <= len(self.ops) else None
            if op is None or op.state != OpState.PENDING or op.id_record != index + 1:
                self.wrong(f"id {index} names operation {record.op - 1}, which is not pending under it")
        for index in self.live_ops:
            op = self.ops[index]
            if op.state != OpState.PENDING or not op.id_record:
                continue
            known = self.ids[op.id_record - 1] if op.id_record <= len(self.ids) else None
            if known is None or known.state != IdState.LIVE or known.op != index + 1:
                self.wrong(f"{self.name_op(index)} is pending under id {op.id_record - 1}, which does not name it")
        with self.derived_links():
            for slot, expected in settled.items():
                got = list(walk.remembered_ids(reader, slot, self.ids))
                what = f"remembered ids of client {slot}"
                if set(got) != expected:
                    self.stale(f"{what}: the list holds {some(sorted(got))}, not {some(sorted(expected))}")
                times = [self.ids[index].settled_ns for index in got]
                if times != sorted(times):
                    self.stale(f"{what} do not stand in order of settling: {some(times)}")
        self.check_chains(
            "id",
            Region.ID_TABLE,
            self.ids,
            self.id_used,
            lambda record: hashing.id_head(record.chain_hash, reader.id_table.count),
            len(self.ids),
        )

    def check_blocks(self) -> None:
        """Check each blob that is named: its chain has the right length, shares no block, and its references add up."""
        self.block_used: set[int] = set()
        for first, refs in self.blob_refs.items():
            if first >= len(self.blocks):
                self.wrong(f"block {first} is named {refs} times, and was never used")
                continue
            head = self.blocks[first]
            if head.refs != refs:
                self.stale(f"block {first} says that it is named {head.refs} times, and it is named {refs} times")
            what = f"blob at block {first}"
            needed = -(-head.length // BLOCK_DATA)
            try:
                following = walk.field(self.blocks, "next", what)
                members = list(walk.chain(first + 1, following, len(self.blocks), what))
            except DamageError as error:
                self.wrong(str(error))
                continue
            if len(members) != needed:
                self.wrong(f"{what} has {len(members)} blocks, and its {head.length} bytes need {needed}")
            if shared := self.block_used.intersection(members):
                self.wrong(f"{what} shares blocks {some(sorted(shared))} with another")
            self.block_used.update(members)

    def check_free_lists(self) -> None:
        """Check that every record that was ever used is either free or in use, and no record is both."""
        first = self.reader.ops.count  # the first node that lies in NODES
        more_nodes = [node for number, node in self.nodes.items() if number >= first]
        in_use: dict[Region, tuple[Sequence[Any], Iterable[int]]] = {
            Region.OPS: (self.ops, self.live_ops),
            Region.NODES: (more_nodes, (number - first for number in self.node_used if number >= first)),
            Region.WATERMARKS: (self.watermarks, self.watermark_used),
            Region.BLOCKS: (self.blocks, self.block_used),
            Region.IDS: (self.ids, self.id_used),
            Region.ANSWERS: (self.answers, self.answer_used),
        }
        for region, (records, used_by) in in_use.items():
            used = set(used_by)
            row = self.reader.region(region)
            if row.in_use != len(used):
                self.stale(f"{region.name} says that {row.in_use} records are in use, and {len(used)} are")
            with self.derived_links():
                free = list(walk.free_records(self.reader, region, records))
                if both := used.intersection(free):
                    self.stale(f"{region.name}: records {some(sorted(both))} are in use and in the free list")
                if lost := set(range(len(records))) - used.difference(free) - set(free):
                    self.stale(f"{region.name}: records {some(sorted(lost))} are neither in use nor free")
        for region, count in (
            (Region.CLIENTS, sum(client.state != ClientState.FREE for client in self.clients)),
            (Region.PURGATORIES, sum(purgatory.state != 0 for purgatory in self.purgatories)),
            (Region.GROUPS, sum(group.state != 0 for group in self.groups)),
            (Region.USERS, sum(user.state != 0 for user in self.users)),
        ):
            if self.reader.region(region).in_use != count:
                self.stale(f"{region.name} says that {self.reader.region(region).in_use} are in use, and {count} are")

    def check_gauges(self) -> None:
        names = ("pending", "watched", "registered", "completed", "expired", "cancelled", "failed")
        positions = {name: index_of(PURGATORY_COUNTERS, name) for name in names}
        table = self.reader.purgatory_counters
        for number, purgatory in enumerate(self.purgatories):
            if not purgatory.state:
                continue
            first = number * layout.PURGATORY_COUNTERS_MAX
            stated = {name: table[first + at].value for name, at in positions.items()}
            for name, is_ in (("pending", self.pending_in[number]), ("watched", self.watched_in[number])):
                if stated[name] != is_:
                    self.stale(f"purgatory {number} says {name}={stated[name]}, and it is {is_}")
            settled = sum(stated[name] for name in ("completed", "expired", "cancelled", "failed"))
            if stated["registered"] != stated["pending"] + settled:
                self.stale(
                    f"purgatory {number} says registered={stated['registered']}, which is not "
                    f"pending={stated['pending']} plus settled={settled}"
                )
