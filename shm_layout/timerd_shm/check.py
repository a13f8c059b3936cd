"""Holds everything that is derived in an arena against the truth it is derived from, and the truth against itself.

    for sentence in check(reader): print(sentence)        # none: the arena is sound

Written from the declarations alone (layout.py), independently of the core: slow and dumb, a list and a dictionary where
the core has links and counts. It must be given an arena between two turns (a copy, a snapshot, a dead daemon's): in the
middle of one, derived fields may lag. What of an arena is truth (it must hold wherever the daemon was killed) and what
is derived (the next start makes it anew) are kept apart in Findings.

Cost: about 15 us an operation, its keys included; 2 ms on an arena of 64 operations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import hashing, layout, walk
from .counters import PURGATORY_COUNTERS, index_of
from .errors import LayoutMismatchError
from .fields import offset_of
from .layout import (
    BUCKETS,
    LEVEL_BITS,
    LEVELS,
    ClientFlag,
    ClientState,
    Condition,
    EventKind,
    IdState,
    KeyFlag,
    KeyKind,
    OpFlag,
    OpState,
    Orphans,
    Outcome,
    Region,
)
from .limits import GROUP_HELD_MAX, KEYS_MAX, NO_DEADLINE
from .reader import ArenaReader, DamageError

PRESENT = (ClientState.LIVE, ClientState.SILENT)
SENTENCES_MAX = 200  # of each kind; what follows is counted
REDO_COUNT_WORD = offset_of(layout.ArenaHeader, "redo_count") // 8
Progress = Callable[[str], None]


class Findings(NamedTuple):
    """What is wrong, in sentences."""

    truth: list[str]  # no start mends it
    derived: list[str]  # the next start makes it anew


def check(
    arena: ArenaReader | bytes | bytearray | memoryview, *, cut: bool = False, progress: Progress | None = None
) -> list[str]:
    """Sentences that say what does not hold in an arena, with the values; empty when it is sound.

    `cut` says that the last turn may have left acknowledged outcomes and answers for the next one to free. `progress`
    is called with the name of each part before it is looked at. Raises what ArenaReader raises.
    """
    found = examine(arena, cut=cut, progress=progress)
    return [*found.truth, *found.derived]


def examine(
    arena: ArenaReader | bytes | bytearray | memoryview, *, cut: bool = False, progress: Progress | None = None
) -> Findings:
    """What check() finds, truth and derived apart."""
    if isinstance(arena, ArenaReader):
        return Checker(arena, cut).run(progress)
    with ArenaReader.from_bytes(arena) as reader:
        return Checker(reader, cut).run(progress)


def finished(reader: ArenaReader) -> bytearray:
    """A copy of the arena in which a transaction that its daemon was killed in is stored to its end, as a start does.

    Raises LayoutMismatchError when the redo slot is damaged.
    """
    copy = bytearray(reader.memory)
    header = reader.header()
    if header.redo_count > layout.REDO_MAX:
        raise LayoutMismatchError(f"the redo slot says {header.redo_count} words, and holds {layout.REDO_MAX}")
    with memoryview(copy) as view, view.cast("Q") as words:
        for entry in reader.redo():
            if entry.offset % 8 or entry.offset > len(copy) - 8:
                raise LayoutMismatchError(f"the redo slot names offset {entry.offset} in an arena of {len(copy)} bytes")
            words[entry.offset // 8] = entry.value
        words[REDO_COUNT_WORD] = 0
    return copy


class Checker:
    """One look at one arena. What the truth says is gathered first; then every derived thing is compared with it."""

    def __init__(self, reader: ArenaReader, cut: bool) -> None:
        self.reader = reader
        self.cut = cut
        self.header = reader.header()
        self.found = Findings([], [])
        self.unsaid: Counter[int] = Counter()
        self.ops = list(reader.ops.used())
        self.nodes = list(reader.nodes.used())
        self.keys = list(reader.keys.used())
        self.blocks = list(reader.blocks.used())
        self.ids = list(reader.ids.used())
        self.answers = list(reader.answers.used())
        self.clients = list(reader.clients)
        self.purgatories = list(reader.purgatories)
        self.groups = list(reader.groups)
        # Gathered from the truth.
        self.live_ops = [index for index, op in enumerate(self.ops) if op.state != OpState.FREE]
        self.node_used: set[int] = set()
        self.key_refs: Counter[int] = Counter()
        self.blob_refs: Counter[int] = Counter()
        self.watchers: dict[int, list[tuple[int, int]]] = defaultdict(list)  # key -> (registration, node)
        self.heaps: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)  # key -> node -> (target, registration)
        self.bucket_ops: dict[int, set[int]] = defaultdict(set)
        self.pending_of: Counter[int] = Counter()  # client slot -> operations
        self.settled_of: dict[int, list[tuple[int, int]]] = defaultdict(list)  # client slot -> (outcome number, op)
        self.bytes_of: Counter[int] = Counter()
        self.held_of: Counter[int] = Counter()  # client slot -> its group's outcomes that it was told and has not done
        self.pending_for: Counter[int] = Counter()  # group -> operations
        self.settled_for: Counter[int] = Counter()
        self.bytes_for: Counter[int] = Counter()
        self.waiting: dict[int, set[int]] = defaultdict(set)  # group -> operations that nobody is told now
        self.received: set[int] = set()  # operations of groups that are held, and in no list
        self.pending_in: Counter[int] = Counter()  # purgatory -> operations
        self.watched_in: Counter[int] = Counter()
        self.handles: dict[int, layout.OpRecord] = {}

    def run(self, progress: Progress | None) -> Findings:
        for name, part in (
            ("header", self.check_header),
            ("operations", self.check_operations),
            ("ring", self.check_ring),
            ("keys", self.check_keys),
            ("wheel", self.check_wheel),
            ("clients", self.check_clients),
            ("groups", self.check_groups),
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
            except DamageError as error:  # of a region that is smaller than its place says: no part can go on
                self.wrong(str(error))
        for sentences, kind in zip(self.found, ("of truth", "derived"), strict=True):
            if left := self.unsaid[id(sentences)]:
                sentences.append(f"and {left} more that are {kind}")
        return self.found

    # saying it -------------------------------------------------------------------------------------------------------

    def wrong(self, sentence: str) -> None:
        """The truth contradicts itself."""
        self._say(self.found.truth, sentence)

    def stale(self, sentence: str) -> None:
        """Something derived is not what the truth makes it."""
        self._say(self.found.derived, sentence)

    def _say(self, sentences: list[str], sentence: str) -> None:
        if len(sentences) < SENTENCES_MAX:
            sentences.append(sentence)
        else:
            self.unsaid[id(sentences)] += 1

    @contextmanager
    def derived_links(self) -> Iterator[None]:
        """A walk over derived links that does not end is itself a finding."""
        try:
            yield
        except DamageError as error:
            self.stale(str(error))

    def name_op(self, index: int) -> str:
        op = self.ops[index]
        return f"operation {index} (client {op.client}, command {op.command})"

    def name_key(self, index: int) -> str:
        try:
            return f"key {index} {self.reader.key_name(index)!r}"
        except DamageError:
            return f"key {index}"

    # truth, and what follows from it ---------------------------------------------------------------------------------

    def check_header(self) -> None:
        header, reader = self.header, self.reader
        if header.redo_count:
            self.wrong(f"a transaction of {header.redo_count} words is being stored")
        if not header.newest + 1 - reader.events.count <= header.tail <= header.newest + 1 or header.tail == 0:
            self.wrong(f"the ring of {reader.events.count} events says that it holds {header.tail}..{header.newest}")
        if self.purgatories[0].state != 1:
            self.wrong("there is no default purgatory")
        if not max(header.journal_segment, header.journal_written) <= header.journal_rows:
            self.wrong(
                f"the journal has {header.journal_rows} rows, {header.journal_written} of them written, and its "
                f"segment begins at {header.journal_segment}"
            )
        for region in layout.REGION_RECORDS:
            row = reader.region(region)
            if row.high_water > row.count:
                self.wrong(f"{region.name}: {row.high_water} of {row.count} records were ever used")
            elif region in layout.HANDED_OUT and not reader.table(region).is_zero_from(row.high_water):
                self.wrong(f"{region.name}: records behind the first {row.high_water} are not zero, yet never used")

    def check_operations(self) -> None:
        registrations: dict[int, int] = {}
        commands: dict[tuple[int, int, int], int] = {}
        for index in self.live_ops:
            op = self.ops[index]
            if op.client >= len(self.clients) or op.purgatory >= len(self.purgatories):
                self.wrong(
                    f"operation {index} names client {op.client} and purgatory {op.purgatory}, which do not exist"
                )
                continue
            if not self.purgatories[op.purgatory].state:
                self.wrong(f"{self.name_op(index)} is in purgatory {op.purgatory}, which is not in use")
            if other := registrations.setdefault(op.registration, index) - index:
                self.wrong(
                    f"{self.name_op(index)} and operation {index + other} both have registration {op.registration}"
                )
            if op.registration > self.header.registrations:
                self.stale(
                    f"{self.name_op(index)} has registration {op.registration}, and the newest is said to be "
                    f"{self.header.registrations}"
                )
            if op.seen > self.header.newest:
                self.wrong(f"{self.name_op(index)} has seen event {op.seen}, and the newest is {self.header.newest}")
            self.refer_to_blob(op.payload)
            client = self.clients[op.client]
            of_client = client.generation == op.client_generation and client.state != ClientState.FREE
            charged = of_client and not op.group
            if op.group:
                if op.group > len(self.groups) or not self.groups[op.group - 1].state:
                    self.wrong(f"{self.name_op(index)} is of group {op.group - 1}, which is not in use")
                    continue
                self.bytes_for[op.group - 1] += self.blob_length(op.payload)
            elif charged and client.state == ClientState.TOMBSTONE:
                self.wrong(f"{self.name_op(index)} is of a client of which only a tombstone is left")
            elif not charged and (op.client_generation or op.orphans != Orphans.KEEP):
                self.wrong(
                    f"{self.name_op(index)} has orphans policy {op.orphans} and is of generation "
                    f"{op.client_generation}, and its client is gone"
                )
            if charged:
                if other := commands.setdefault((op.client, op.client_generation, op.command), index) - index:
                    self.wrong(f"{self.name_op(index)} and operation {index + other} are of the same command")
                if op.command > client.last_command:
                    self.wrong(f"{self.name_op(index)} is of a command after client's last one, {client.last_command}")
                self.handles[index] = op
                self.bytes_of[op.client] += self.blob_length(op.payload)
            if op.state == OpState.PENDING:
                self.check_pending(index, op)
                if op.group:
                    self.pending_for[op.group - 1] += 1
                self.pending_of[op.client] += charged
            elif op.state == OpState.SETTLED:
                self.check_settled(index, op, of_client)
            else:
                self.wrong(f"operation {index} has state {op.state}")
            if op.state == OpState.PENDING or op.flags & OpFlag.KEYS_KEPT:
                self.check_nodes(index, op)

    def check_pending(self, index: int, op: layout.OpRecord) -> None:
        self.pending_in[op.purgatory] += 1
        every = (1 << op.keys) - 1
        if not 1 <= op.keys <= KEYS_MAX or op.failed & ~every:
            self.wrong(f"{self.name_op(index)} has {op.keys} keys, failed 0x{op.failed:x}")
        if op.condition == Condition.TOTAL:
            over = op.progress == 0 or op.failed == every
        else:
            if op.progress & ~every or op.progress & op.failed:
                self.wrong(
                    f"{self.name_op(index)} of {op.keys} keys: satisfied 0x{op.progress:x}, failed 0x{op.failed:x}"
                )
            if op.condition == Condition.ALL_SETTLED:
                over = op.progress | op.failed == every
            else:
                over = op.progress.bit_count() >= op.needed or op.keys - op.failed.bit_count() < op.needed
        if over:
            self.wrong(
                f"{self.name_op(index)} is pending, though its condition {op.condition} ({op.needed} of {op.keys}) is "
                f"decided: progress 0x{op.progress:x}, failed 0x{op.failed:x}"
            )
        if op.outcome:
            self.wrong(f"{self.name_op(index)} is pending and has outcome {op.outcome}")
        if op.group and op.client_generation:
            self.wrong(f"{self.name_op(index)} is of group {op.group - 1} and pending, and a client is said to be told")
        if op.deadline_ns != NO_DEADLINE:
            self.check_bucket_of(index, op)
        elif op.bucket:
            self.stale(f"{self.name_op(index)} has no deadline, and says that it is in bucket {op.bucket - 1}")

    def check_bucket_of(self, index: int, op: layout.OpRecord) -> None:
        """The bucket that a pending operation says it is in, held against its deadline."""
        tick = self.header.wheel_tick
        due = max(-(-op.deadline_ns // self.header.tick_ns), tick + 1)
        if not 1 <= op.bucket <= LEVELS * BUCKETS:
            self.stale(f"{self.name_op(index)} is due at tick {due} and says that it is in bucket {op.bucket - 1}")
            return
        self.bucket_ops[op.bucket - 1].add(index)
        level, position = divmod(op.bucket - 1, BUCKETS)
        own, present = due >> LEVEL_BITS * level, tick >> LEVEL_BITS * level
        # Behind the present bucket and within two spans; the last level's farthest bucket stands for what is beyond.
        reached = own if level < LEVELS - 1 else min(own, present + BUCKETS - 1)
        if not present < own or reached - present >= BUCKETS or reached % BUCKETS != position:
            self.stale(
                f"{self.name_op(index)} is due at tick {due}, seen from {tick}, and is in bucket {level}:{position}"
            )

    def check_settled(self, index: int, op: layout.OpRecord, of_client: bool) -> None:
        self.refer_to_blob(op.value)
        if not Outcome.COMPLETED <= op.outcome <= Outcome.FAILED:
            self.wrong(f"{self.name_op(index)} has settled with outcome {op.outcome}")
        if op.outcome == Outcome.EXPIRED and op.settled_ns < op.deadline_ns:
            self.wrong(f"{self.name_op(index)} expired at {op.settled_ns}, and its deadline was {op.deadline_ns}")
        if op.settled_key > op.keys:
            self.wrong(f"{self.name_op(index)} was settled by key {op.settled_key} of {op.keys}")
        told_to_others = op.group or op.orphans == Orphans.GROUP or op.flags & OpFlag.HANDED_OVER
        if told_to_others and not op.flags & OpFlag.KEYS_KEPT:
            self.wrong(f"{self.name_op(index)} has settled without its keys, and somebody else may be told")
        if op.group:
            self.settled_for[op.group - 1] += 1
            self.bytes_for[op.group - 1] += self.blob_length(op.value)
            if not op.client_generation:
                self.waiting[op.group - 1].add(index)
                if op.outcome_number:
                    self.wrong(f"{self.name_op(index)} waits in its group, and has outcome number {op.outcome_number}")
                return
        if not of_client:
            self.wrong(
                f"{self.name_op(index)} has settled, and its client is gone: nobody will be told, and it is kept"
            )
            return
        client = self.clients[op.client]
        if op.group:
            self.check_held(index, op, client)
        else:
            self.bytes_of[op.client] += self.blob_length(op.value)
        if index not in self.received:
            self.settled_of[op.client].append((op.outcome_number, index))
        if op.outcome_number >= client.next_outcome:
            self.wrong(
                f"{self.name_op(index)} has outcome number {op.outcome_number}, and client {op.client}'s next one is "
                f"{client.next_outcome}"
            )
        if op.outcome_number <= client.acknowledged and not op.group and not self.cut:
            self.wrong(
                f"{self.name_op(index)} is kept, though its outcome {op.outcome_number} is acknowledged (up to "
                f"{client.acknowledged})"
            )

    def check_held(self, index: int, op: layout.OpRecord, client: layout.ClientRecord) -> None:
        """An outcome of a group that a member was told and has not done."""
        self.held_of[op.client] += 1
        if client.state == ClientState.TOMBSTONE or client.group != op.group or not op.deliveries:
            self.wrong(
                f"{self.name_op(index)} of group {op.group - 1} is said to be told to client {op.client} of group "
                f"{client.group - 1} in state {client.state}, for the {op.deliveries}. time"
            )
        if op.outcome_number > client.acknowledged:
            return
        self.received.add(index)
        if (op.next, op.prev) != (own := self.reader.ops.link(index), own) and not self.cut:
            self.stale(f"{self.name_op(index)} is received and held, and has links {op.next}, {op.prev}, not {own}")

    def check_nodes(self, index: int, op: layout.OpRecord) -> None:
        """The watch nodes of an operation, and what they say of its keys."""
        pending = op.state == OpState.PENDING
        decided = op.failed if op.condition == Condition.TOTAL else op.progress | op.failed
        seen_keys: set[int] = set()
        ordinal = 0
        try:
            for number in walk.nodes_of(self.reader, op, self.nodes):
                node = walk.record_of(self.nodes, number, f"watch nodes of {self.name_op(index)}")
                if number in self.node_used or node.op != index:
                    self.wrong(f"node {number} is of {self.name_op(index)}, and says it is of operation {node.op}")
                    return
                self.node_used.add(number)
                if node.ordinal != ordinal or node.kind > KeyKind.WATERMARK:
                    self.wrong(f"node {number} of {self.name_op(index)} has ordinal {node.ordinal}, kind {node.kind}")
                ordinal += 1
                if node.key >= len(self.keys):
                    self.wrong(f"node {number} of {self.name_op(index)} names key {node.key}, which was never used")
                    continue
                self.key_refs[node.key] += 1
                key = self.keys[node.key]
                if key.purgatory != op.purgatory or node.key in seen_keys:
                    self.wrong(
                        f"{self.name_op(index)} of purgatory {op.purgatory} watches {self.name_key(node.key)} of "
                        f"{key.purgatory}{' twice' if node.key in seen_keys else ''}"
                    )
                seen_keys.add(node.key)
                waits = pending and not decided >> node.ordinal & 1
                if bool(node.linked) != waits:
                    self.stale(
                        f"node {number} of {self.name_op(index)} says linked={node.linked}, and key {node.ordinal} "
                        f"{'is waited for' if waits else 'is not waited for'}"
                    )
                if waits:
                    self.watched_in[op.purgatory] += 1
                    self.note_watcher(number, node, op)
        except DamageError as error:
            self.wrong(str(error))
        if ordinal != op.keys:
            self.wrong(f"{self.name_op(index)} has {op.keys} keys, and {ordinal} watch nodes")

    def note_watcher(self, number: int, node: layout.WatchNode, op: layout.OpRecord) -> None:
        if node.kind == KeyKind.EVENT:
            self.watchers[node.key].append((op.registration, number))
            return
        self.heaps[node.key][number] = (node.target, op.registration)
        key = self.keys[node.key]
        if key.flags & KeyFlag.HAS_WATERMARK and key.watermark >= node.target and not self.header.unfinished:
            self.wrong(
                f"{self.name_op(node.op)} waits for {self.name_key(node.key)} to reach {node.target}, and its "
                f"watermark is {key.watermark}"
            )

    def check_ring(self) -> None:
        header, reader = self.header, self.reader
        newest_of: dict[int, int] = {}
        size = 0
        for sequence, event in enumerate(
            walk.events(reader), start=max(header.tail, header.newest + 1 - reader.events.count)
        ):
            if event.sequence != sequence:
                self.wrong(f"event {sequence} is not at its place in the ring: {event.sequence} is")
                continue
            self.refer_to_blob(event.value)
            self.refer_to_blob(event.key_blob)
            size += self.blob_length(event.value) + self.blob_length(event.key_blob)
            if not EventKind.FIRE <= event.kind <= EventKind.FORGET:
                self.wrong(f"event {sequence} is of kind {event.kind}")
            try:
                hash_ = hashing.key_hash(header.hash_seed, event.purgatory, reader.event_key(event))
            except DamageError as error:
                self.wrong(f"event {sequence}: {error}")
                continue
            if hash_ != event.key_hash:
                self.wrong(f"event {sequence} says its key hashes to 0x{event.key_hash:x}, and it is 0x{hash_:x}")
            slot = hashing.ring_slot(event.key_hash, reader.slots.count)
            before = newest_of.get(slot)
            if event.previous != before if before is not None else event.previous >= header.tail:
                self.wrong(
                    f"event {sequence} says that {event.previous} came before it in hash slot {slot}, and it was "
                    f"{before or f'one before {header.tail}'}"
                )
            newest_of[slot] = sequence
        for number, slot_record in enumerate(reader.slots):
            known = newest_of.get(number)
            if slot_record.newest != known if known is not None else slot_record.newest >= header.tail:
                self.wrong(
                    f"hash slot {number} says its newest event is {slot_record.newest}, and in the ring it is "
                    f"{known or f'none from {header.tail} on'}"
                )
        if size != header.ring_bytes:
            self.stale(f"the ring says it holds {header.ring_bytes} bytes, and it holds {size}")
        if header.unfinished and not header.tail <= header.unfinished <= header.newest:
            self.stale(
                f"event {header.unfinished} is said to be in delivery; the ring holds {header.tail}..{header.newest}"
            )

    # what is derived -------------------------------------------------------------------------------------------------

    def check_keys(self) -> None:
        reader = self.reader
        in_use = {index for index, key in enumerate(self.keys) if key.flags & KeyFlag.HAS_WATERMARK} | set(
            self.key_refs
        )
        names: dict[tuple[int, bytes], int] = {}
        for index in sorted(in_use):
            key = self.keys[index]
            self.refer_to_blob(key.name_blob)
            if key.refs != self.key_refs[index]:
                self.stale(f"{self.name_key(index)} says that {key.refs} nodes name it, and {self.key_refs[index]} do")
            try:
                name = reader.key_name(index)
            except DamageError as error:
                self.wrong(f"key {index}: {error}")
                continue
            if len(name) != key.name_length or hashing.key_hash(self.header.hash_seed, key.purgatory, name) != key.hash:
                self.wrong(
                    f"key {index} {name!r} does not have the length {key.name_length} and hash 0x{key.hash:x} it says"
                )
            if other := names.setdefault((key.purgatory, name), index) - index:
                self.wrong(f"keys {index} and {index + other} are both {name!r}")
            with self.derived_links():
                self.check_watchers(index, key)
            with self.derived_links():
                self.check_heap(index, key)
        self.key_used = in_use
        self.check_chains(
            "key", Region.KEY_TABLE, self.keys, in_use, lambda key: hashing.key_head(key.hash, reader.key_table.count)
        )

    def check_watchers(self, index: int, key: layout.KeyRecord) -> None:
        expected = [node for _, node in sorted(self.watchers.get(index, ()))]
        got = list(walk.event_watchers(self.reader, index, key, self.nodes))
        if got == expected:
            return
        if sorted(got) == sorted(expected):
            registrations = [self.ops[self.nodes[node].op].registration for node in got]
            self.stale(
                f"{self.name_key(index)}: its watchers do not stand in order of registration: {some(registrations)}"
            )
        for node in sorted(set(expected) - set(got)):
            self.stale(f"{self.name_key(index)}: {self.name_op(self.nodes[node].op)} watches it and is not in its list")
        for node in sorted(set(got) - set(expected)):
            self.stale(f"{self.name_key(index)}: node {node} is in its list, and does not wait for it")

    def check_heap(self, index: int, key: layout.KeyRecord) -> None:
        expected = self.heaps.get(index, {})
        if not expected and not key.heap:
            return
        got: set[int] = set()
        ranks: dict[int, list[int]] = defaultdict(list)
        for node, parent in walk.watermark_watchers(self.reader, index, key.heap, self.nodes):
            got.add(node)
            if parent >= 0:
                ranks[parent].append(self.nodes[node].rank)
                if node in expected and parent in expected and expected[node] < expected[parent]:
                    self.stale(
                        f"{self.name_key(index)}: node {node} (target, registration) {expected[node]} stands below "
                        f"node {parent} {expected[parent]}"
                    )
        for node in got:
            below = ranks[node]
            right = below[1] if len(below) == 2 else 0
            if self.nodes[node].rank != right + 1 or (below and below[0] < right):
                self.stale(f"{self.name_key(index)}: node {node} has rank {self.nodes[node].rank} above ranks {below}")
        for node in sorted(expected.keys() - got):
            self.stale(f"{self.name_key(index)}: {self.name_op(self.nodes[node].op)} watches it and is not in its heap")
        for node in sorted(got - expected.keys()):
            self.stale(f"{self.name_key(index)}: node {node} is in its heap, and does not wait for it")

    def check_chains(
        self, what: str, region: Region, records: Sequence[Any], in_use: set[int], head_of: Callable[[Any], int]
    ) -> None:
        """The chains of a hash table: each record that is in use is in the chain of its hash, and in no other."""
        row = self.reader.region(region)
        got: set[int] = set()
        with self.reader.memory[row.offset : row.offset + row.count * row.record_size] as rows, rows.cast("I") as heads:
            for number, first in enumerate(heads.tolist()):
                if not first:
                    continue
                label = f"chain {number} of the {what} table"
                with self.derived_links():
                    for index in walk.chain(first, walk.field(records, "chain", label), len(records), label):
                        if index not in in_use or head_of(records[index]) != number:
                            self.stale(f"{what} {index} is in {label}, and does not belong there")
                        got.add(index)
        for index in sorted(in_use - got):
            self.stale(f"{what} {index} is not in the {what} table")

    def check_wheel(self) -> None:
        reader = self.reader
        buckets = reader.buckets
        occupied = [0] * LEVELS
        # Nearly all buckets are empty: an empty one's head leads to itself and counts nothing.
        own = range(buckets.link(0), buckets.link(buckets.count), buckets.link(1) - buckets.link(0))
        for number, ((first, last, count, _), link) in enumerate(zip(buckets.raw(), own, strict=True)):
            if first == last == link and not count and number not in self.bucket_ops:
                continue
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
                    said = self.ops[index].bucket - 1
                    self.stale(f"{self.name_op(index)} {is_} in {name}, and says that it is in bucket {said}")
        for level, record in enumerate(reader.levels):
            bits = record.occupied_low | record.occupied_high << 64
            if bits != occupied[level]:
                self.stale(
                    f"level {level} says that buckets 0x{bits:x} hold something, and 0x{occupied[level]:x} say they do"
                )

    def check_clients(self) -> None:
        answers_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.answer_used = {index for index, answer in enumerate(self.answers) if answer.used}
        watermarks: Counter[tuple[int, int]] = Counter(
            (key.setter, key.setter_generation) for key in self.keys if key.flags & KeyFlag.HAS_WATERMARK
        )
        for index in self.answer_used:
            answers_of[self.answers[index].client].append((self.answers[index].command, index))
        for slot in sorted(answers_of):
            if slot >= len(self.clients) or self.clients[slot].state == ClientState.FREE:
                self.wrong(f"{len(answers_of[slot])} answers are kept for client {slot}, which is not there")
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
                        f"the answer to command {command} of client {slot} is kept: acknowledged are those up to "
                        f"{client.answers_acknowledged}, applied those up to {client.last_command}"
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
        self, slot: int, client: layout.ClientRecord, unacknowledged: int, answers: int, watermarks: int
    ) -> None:
        for name, said, is_ in (
            ("pending", client.pending, self.pending_of[slot]),
            ("unacknowledged", client.unacknowledged, unacknowledged),
            ("answers", client.answers, answers),
            ("watermarks", client.watermarks, watermarks),
            ("bytes_held", client.bytes_held, self.bytes_of[slot]),
            ("held", client.held, self.held_of[slot]),
        ):
            if said != is_:
                self.stale(f"client {slot} says {name}={said}, and it is {is_}")

    def check_membership(self, slot: int, client: layout.ClientRecord) -> None:
        """What a client's state, group and flags say of each other, and how much of its group it may hold."""
        if client.group > len(self.groups) or (client.group and not self.groups[client.group - 1].state):
            self.wrong(f"client {slot} is of group {client.group - 1}, which is not in use")
        if client.state == ClientState.TOMBSTONE and client.group:
            self.wrong(f"client {slot} is a tombstone, and of group {client.group - 1}")
        if client.flags & ClientFlag.LISTENS and (client.state not in PRESENT or not client.group):
            self.wrong(f"client {slot} in state {client.state} of group {client.group - 1} is said to listen")
        if client.orphans == Orphans.GROUP and client.state in PRESENT and not client.group:
            self.wrong(f"client {slot} leaves its operations to a group, and has none")
        if self.held_of[slot] > GROUP_HELD_MAX:
            self.wrong(f"client {slot} holds {self.held_of[slot]} outcomes of its group, more than {GROUP_HELD_MAX}")

    def check_groups(self) -> None:
        members = Counter(client.group - 1 for client in self.clients if client.state in PRESENT and client.group)
        names: dict[bytes, int] = {}
        for number, group in enumerate(self.groups):
            name = group.name[: group.name_length]
            if group.state and (other := names.setdefault(name, number) - number):
                self.wrong(f"groups {number} and {number + other} are both {name!r}")
            for what, said, is_ in (
                ("members", group.members, members[number]),
                ("pending", group.pending, self.pending_for[number]),
                ("unacknowledged", group.unacknowledged, self.settled_for[number]),
                ("bytes_held", group.bytes_held, self.bytes_for[number]),
            ):
                if said != is_:
                    self.stale(f"group {number} says {what}={said}, and it is {is_}")
            with self.derived_links():
                got = list(walk.waiting(self.reader, number, self.ops))
                if sorted(got) != (expected := sorted(self.waiting[number])):
                    self.stale(f"group {number}: its list holds operations {some(got)}, and those are {some(expected)}")

    def compare(self, what: str, got: list[int], numbered: list[tuple[int, int]]) -> None:
        """A list of records by number, held against the records that belong there."""
        if len({number for number, _ in numbered}) < len(numbered):
            self.wrong(f"{what}: some have the same number: {some([number for number, _ in numbered])}")
        elif got != [index for _, index in numbered]:
            self.stale(
                f"{what}: the list holds records {some(got)}, and in order it is {some([i for _, i in numbered])}"
            )

    def check_handles(self) -> None:
        reader = self.reader
        row = reader.region(Region.HANDLES)
        with reader.memory[row.offset : row.offset + row.count * row.record_size] as rows, rows.cast("I") as flat:
            words = flat.tolist()
        tags, entries = words[0::2], words[1::2]
        places: dict[int, int] = {}
        for place, entry in enumerate(entries):
            if entry == 0:
                continue
            if entry - 1 not in self.handles or entry - 1 in places:
                self.stale(f"handle {place} names operation {entry - 1}, which is not there, nobody's, or named twice")
            places[entry - 1] = place
        for index, op in self.handles.items():
            tag = hashing.handle_tag(op.client, op.command)
            at = next((at for at in hashing.handle_probes(tag, row.count) if entries[at] in (0, index + 1)), -1)
            if at < 0 or entries[at] != index + 1:
                self.stale(f"{self.name_op(index)} cannot be found by its handle: probing ends at {at}")
            elif tags[at] != tag:
                self.stale(f"handle {at} of {self.name_op(index)} has tag 0x{tags[at]:x}, not 0x{tag:x}")

    def check_ids(self) -> None:
        reader = self.reader
        self.id_used = {index for index, record in enumerate(self.ids) if record.state != IdState.FREE}
        settled: list[tuple[int, int]] = []
        names: dict[tuple[int, int, int], int] = {}
        for index in sorted(self.id_used):
            record = self.ids[index]
            if other := names.setdefault((record.purgatory, record.hash_low, record.hash_high), index) - index:
                self.wrong(f"ids {index} and {index + other} are the same")
            if record.state == IdState.SETTLED:
                settled.append((record.settled_ns, index))
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
            got = list(walk.settled_ids(reader, self.ids))
            if set(got) != {index for _, index in settled}:
                self.stale(
                    f"settled ids: the list holds {some(sorted(got))}, and it is {some(sorted(i for _, i in settled))}"
                )
            times = [self.ids[index].settled_ns for index in got]
            if times != sorted(times):
                self.stale(f"settled ids do not stand in order of settling: {some(times)}")
        self.check_chains(
            "id",
            Region.ID_TABLE,
            self.ids,
            self.id_used,
            lambda record: hashing.id_head(record.hash_low, reader.id_table.count),
        )

    def check_blocks(self) -> None:
        """Every blob that is named: its chain is as long as it says, shares no block, and its references add up."""
        self.block_used: set[int] = set()
        for first, refs in self.blob_refs.items():
            if first >= len(self.blocks):
                self.wrong(f"block {first} is named {refs} times, and was never used")
                continue
            head = self.blocks[first]
            if head.refs != refs:
                self.stale(f"block {first} says that it is named {head.refs} times, and it is named {refs} times")
            what = f"blob at block {first}"
            needed = -(-head.length // layout.BLOCK_DATA)
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
        """In each region that hands out records: free and in use are disjoint, and together all that was ever used."""
        in_use: dict[Region, tuple[Sequence[Any], Iterable[int]]] = {
            Region.OPS: (self.ops, self.live_ops),
            Region.NODES: (self.nodes, self.node_used),
            Region.KEYS: (self.keys, self.key_used),
            Region.BLOCKS: (self.blocks, self.block_used),
            Region.IDS: (self.ids, self.id_used),
            Region.ANSWERS: (self.answers, self.answer_used),
        }
        for region, (records, used_by) in in_use.items():
            used = set(used_by)
            row = self.reader.region(region)
            if row.in_use != len(used):
                self.stale(f"{region.name} says that {row.in_use} records are in use, and {len(used)} are")
            if region not in layout.FREE_LINKS:
                continue
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
            said = {name: table[first + at].value for name, at in positions.items()}
            for name, is_ in (("pending", self.pending_in[number]), ("watched", self.watched_in[number])):
                if said[name] != is_:
                    self.stale(f"purgatory {number} says {name}={said[name]}, and it is {is_}")
            ended = sum(said[name] for name in ("completed", "expired", "cancelled", "failed"))
            if said["registered"] != said["pending"] + ended:
                self.stale(
                    f"purgatory {number} says registered={said['registered']}, which is not pending={said['pending']} "
                    f"plus settled={ended}"
                )

    # blobs -----------------------------------------------------------------------------------------------------------

    def refer_to_blob(self, blob: int) -> None:
        if blob:
            self.blob_refs[blob - 1] += 1

    def blob_length(self, blob: int) -> int:
        return self.blocks[blob - 1].length if 0 < blob <= len(self.blocks) else 0


def some(values: Sequence[int]) -> str:
    """A few of many numbers, for a sentence."""
    shown = ", ".join(map(str, values[:8]))
    return f"{shown}, ... ({len(values)} in all)" if len(values) > 8 else shown or "none"
