"""Gathers the truth of an arena, and checks that it does not contradict itself. check.py then does the rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from timerd_shm.declare import layout
from timerd_shm.declare.layout import BUCKETS, LEVEL_BITS, LEVELS
from timerd_shm.declare.limits import KEYS_MAX, NO_DEADLINE
from timerd_shm.declare.records import KEY_INLINE, ClientRecord, OpRecord, WatchNode, WatermarkRecord
from timerd_shm.declare.states import (
    RULES,
    ClientState,
    Condition,
    EventKind,
    KeyKind,
    OpFlag,
    OpState,
    Orphans,
    Outcome,
    Place,
    Tally,
)
from timerd_shm.read import hashing, walk
from timerd_shm.read.reader import ArenaReader, DamageError

# As plain integers: `&` on an IntFlag makes an object each time, and the check uses `&` for each record.
CALL, GRANTED, KEYS_KEPT = (int(flag) for flag in (OpFlag.CALL, OpFlag.GRANTED, OpFlag.KEYS_KEPT))
PRESENT = (ClientState.LIVE, ClientState.SILENT)
SENTENCES_MAX = 200  # of each kind; further ones are counted


Key = tuple[int, bytes]  # purgatory, and name


class Findings(NamedTuple):
    """Sentences, one for each error."""

    truth: list[str]  # no start repairs it
    derived: list[str]  # the next start rebuilds it


class Truth:
    """One check of one arena: its records, their errors, and the right values of its derived fields."""

    def __init__(self, reader: ArenaReader, cut: bool, seed: bytes | None = None) -> None:
        self.reader = reader
        self.cut = cut
        self.header = reader.header()
        self.found = Findings([], [])
        # The seed of the hashes; None = not known: stored hashes are not checked.
        self.seed = seed if seed is not None and self.header.seed_check == hashing.seed_check(seed) else None
        self.seed_differs = seed is not None and self.seed is None
        self.left_out: Counter[int] = Counter()
        self.ops = list(reader.ops.used())
        self.nodes = dict(reader.nodes.numbered())
        self.watermarks = list(reader.watermarks.used())
        self.blocks = list(reader.blocks.used())
        self.ids = list(reader.ids.used())
        self.answers = list(reader.answers.used())
        self.clients = list(reader.clients)
        self.purgatories = list(reader.purgatories)
        self.groups = list(reader.groups)
        self.users = list(reader.users)
        self.accounts = list(reader.accounts)
        # Gathered from the truth.
        self.live_ops = [index for index, op in enumerate(self.ops) if op.state != OpState.FREE]
        self.node_used: set[int] = set()
        self.blob_refs: Counter[int] = Counter()
        self.watermark_of: dict[Key, int] = {}
        # (key, kind) -> (registration, node)
        self.watchers: dict[tuple[Key, int], list[tuple[int, int]]] = defaultdict(list)
        self.heaps: dict[Key, dict[int, tuple[int, int]]] = defaultdict(dict)  # key -> node -> (target, registration)
        self.bucket_ops: dict[int, set[int]] = defaultdict(set)
        self.pending_of: Counter[int] = Counter()  # client slot -> operations
        self.ids_of: Counter[int] = Counter()  # client slot -> ids of its pending operations
        self.settled_of: dict[int, list[tuple[int, int]]] = defaultdict(list)  # client slot -> (outcome number, op)
        self.nodes_of: Counter[int] = Counter()
        self.bytes_of: Counter[int] = Counter()
        self.held_of: Counter[int] = Counter()  # client slot -> outcomes of its group that it holds
        self.calls_held_of: Counter[int] = Counter()
        self.pending_for: Counter[int] = Counter()  # group -> operations
        self.ids_for: Counter[int] = Counter()
        self.endless_for: Counter[int] = Counter()
        self.settled_for: Counter[int] = Counter()
        self.nodes_for: Counter[int] = Counter()
        self.bytes_for: Counter[int] = Counter()
        self.accounts_of: dict[int, Counter[str]] = defaultdict(Counter)  # account -> what its operations hold
        self.waiting: dict[int, set[int]] = defaultdict(set)  # group -> operations that no member holds now
        self.letters_of: dict[int, list[tuple[int, int]]] = defaultdict(list)  # group -> (number, op) of dead letters
        self.received: set[int] = set()  # operations of groups that are held, and in no list
        self.pending_in: Counter[int] = Counter()  # purgatory -> operations
        self.watched_in: Counter[int] = Counter()
        self.handles: dict[int, OpRecord] = {}

    # findings --------------------------------------------------------------------------------------------------------

    def wrong(self, sentence: str) -> None:
        """Report that the truth contradicts itself."""
        self._add(self.found.truth, sentence)

    def stale(self, sentence: str) -> None:
        """Report that a derived field does not follow from the truth."""
        self._add(self.found.derived, sentence)

    def _add(self, sentences: list[str], sentence: str) -> None:
        if len(sentences) < SENTENCES_MAX:
            sentences.append(sentence)
        else:
            self.left_out[id(sentences)] += 1

    @contextmanager
    def derived_links(self) -> Iterator[None]:
        """Report damage in a walk over derived links as a finding."""
        try:
            yield
        except DamageError as error:
            self.stale(str(error))

    def name_op(self, index: int) -> str:
        op = self.ops[index]
        return f"operation {index} (client {op.client}, command {op.command})"

    def name_key(self, key: Key) -> str:
        return f"key {key[1]!r}" if key[0] == 0 else f"key {key[1]!r} of purgatory {key[0]}"

    # truth, and what follows from it ---------------------------------------------------------------------------------

    def check_header(self) -> None:
        header, reader = self.header, self.reader
        if header.redo_count:
            self.wrong(f"a transaction of {header.redo_count} words is being stored")
        if not header.newest + 1 - reader.events.count <= header.tail <= header.newest + 1 or header.tail == 0:
            self.wrong(f"the ring of {reader.events.count} events says that it holds {header.tail}..{header.newest}")
        if self.seed_differs:
            self.stale("ARENA.seed is not the seed of this arena: the next start makes its hashes anew")
        if not self.purgatories or self.purgatories[0].state != 1:
            self.wrong("there is no default purgatory")
        if not max(header.journal_segment, header.journal_written) <= header.journal_rows:
            self.wrong(
                f"the journal has {header.journal_rows} rows, {header.journal_written} of them written, and its "
                f"segment begins at {header.journal_segment}"
            )
        for region in layout.REGION_RECORDS:
            row = reader.region(region)
            if not row.count:
                self.wrong(f"{region.name} has no records")
            elif row.count != (count := layout.FIXED_COUNTS.get(region, row.count)):
                self.wrong(f"{region.name} has {row.count} records, and every arena has {count}")
            elif row.high_water > row.count:
                self.wrong(f"{region.name}: {row.high_water} of {row.count} records were ever used")
            elif region in layout.FREE_LINKS and not reader.table(region).is_zero_from(row.high_water):
                self.wrong(f"{region.name}: records after the first {row.high_water} are not zero, though never used")

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
                    f"{self.name_op(index)} has registration {op.registration}, and the header says that the newest is "
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
                self.check_account(index, op)
            elif charged and client.state == ClientState.TOMBSTONE:
                self.wrong(f"{self.name_op(index)} is of a client that is a tombstone")
            elif not charged and not op.client_generation and op.orphans == Orphans.KEEP:
                self.check_account(index, op)
            elif not charged:
                self.wrong(
                    f"{self.name_op(index)} has orphans policy {op.orphans} and is of generation "
                    f"{op.client_generation}, and has no client any more"
                )
            if not op.group and (op.flags & CALL or (charged and op.orphans == Orphans.GROUP and not client.group)):
                self.wrong(
                    f"{self.name_op(index)} is a call, or goes to a group when its client dies, and there is no group"
                )
            if charged:
                if other := commands.setdefault((op.client, op.client_generation, op.command), index) - index:
                    self.wrong(f"{self.name_op(index)} and operation {index + other} are of the same command")
                if op.command > client.last_command:
                    self.wrong(
                        f"{self.name_op(index)} is of command {op.command}, and its client's last one is "
                        f"{client.last_command}"
                    )
                self.handles[index] = op
                self.bytes_of[op.client] += self.blob_length(op.payload)
            if op.state == OpState.PENDING:
                self.check_pending(index, op)
                if op.group:
                    self.pending_for[op.group - 1] += 1
                    self.ids_for[op.group - 1] += op.id_record != 0
                    self.endless_for[op.group - 1] += op.deadline_ns == NO_DEADLINE
                self.pending_of[op.client] += charged
                self.ids_of[op.client] += charged and op.id_record != 0
            elif op.state == OpState.SETTLED:
                self.check_settled(index, op, of_client)
            else:
                self.wrong(f"operation {index} has state {op.state}")
            if op.state == OpState.PENDING or op.flags & KEYS_KEPT:
                self.check_nodes(index, op)
                self.nodes_of[op.client] += (op.keys - 1) * charged
                names = self.long_names(index)
                self.bytes_of[op.client] += names * charged
                if op.group:
                    self.nodes_for[op.group - 1] += op.keys - 1
                    self.bytes_for[op.group - 1] += names

    def check_account(self, index: int, op: OpRecord) -> None:
        """Charge what an operation of a group, or one without an owner, holds to its account."""
        number, clients = self.nodes[index].account - 1, len(self.clients)
        kept = clients + len(self.users) * len(self.groups)  # the account of user 0 for operations without an owner
        if not 0 <= number < len(self.accounts):
            return self.wrong(f"{self.name_op(index)} is charged to account {number}, which does not exist")
        user, group = divmod(number - clients, len(self.groups))
        if not op.group:
            if number < kept or not self.users[number - kept].state or op.client_generation:
                self.wrong(f"{self.name_op(index)} has no group, and is charged to account {number}")
        elif number < clients and self.clients[number].state in (ClientState.FREE, ClientState.TOMBSTONE):
            self.wrong(f"{self.name_op(index)} is charged to client {number}, which is not there")
        elif number >= clients and (group != op.group - 1 or user >= len(self.users) or not self.users[user].state):
            self.wrong(f"{self.name_op(index)} of group {op.group - 1} is charged to user {user} and group {group}")
        held = self.accounts_of[number]
        held["pending"] += op.state == OpState.PENDING
        held["outcomes"] += op.state == OpState.SETTLED
        held["bytes_held"] += self.blob_length(op.payload)
        if op.state == OpState.SETTLED:
            held["bytes_held"] += self.blob_length(op.value)
        held["ids"] += op.state == OpState.PENDING and op.id_record != 0
        if op.state == OpState.PENDING or op.flags & KEYS_KEPT:
            held["nodes"] += op.keys - 1
            held["bytes_held"] += self.long_names(index)
        return None

    def check_pending(self, index: int, op: OpRecord) -> None:
        self.pending_in[op.purgatory] += 1
        every = (1 << op.keys) - 1
        if not 1 <= op.keys <= KEYS_MAX or (op.failed & ~every and op.condition != Condition.OWNER):
            self.wrong(f"{self.name_op(index)} has {op.keys} keys, failed 0x{op.failed:x}")
        if op.condition == Condition.TOTAL:
            decided = op.progress == 0 or op.failed == every
        elif op.condition == Condition.OBSERVE:
            decided = bool(op.progress or op.failed)
        elif op.condition == Condition.OWNER:
            decided = False
            if not op.failed <= op.progress <= self.header.newest:
                self.wrong(
                    f"{self.name_op(index)} is to be looked at for event {op.progress} of {self.header.newest}, and "
                    f"its owner has looked at event {op.failed}"
                )
        else:
            if op.progress & ~every or op.progress & op.failed:
                self.wrong(
                    f"{self.name_op(index)} of {op.keys} keys: satisfied 0x{op.progress:x}, failed 0x{op.failed:x}"
                )
            tally = Tally(op.progress.bit_count(), op.failed.bit_count(), op.keys, op.needed)
            rule = RULES.get(op.condition, RULES[Condition.AT_LEAST])
            decided = rule.verdict(tally) is not Outcome.NONE
        if decided:
            self.wrong(
                f"{self.name_op(index)} is pending, though its condition {op.condition} ({op.needed} of {op.keys}) is "
                f"decided: progress 0x{op.progress:x}, failed 0x{op.failed:x}"
            )
        if op.outcome:
            self.wrong(f"{self.name_op(index)} is pending and has outcome {op.outcome}")
        if op.group and op.client_generation:
            self.wrong(f"{self.name_op(index)} is pending and of group {op.group - 1}, yet held by a client")
        if op.deadline_ns != NO_DEADLINE:
            self.check_bucket_of(index, op)
        elif op.bucket:
            self.stale(f"{self.name_op(index)} has no deadline, and says that it is in bucket {op.bucket - 1}")

    def check_bucket_of(self, index: int, op: OpRecord) -> None:
        """Compare the bucket in a pending operation's record with its deadline."""
        tick = self.header.wheel_tick
        due = max(-(-op.deadline_ns // self.header.tick_ns), tick + 1)
        if not 1 <= op.bucket <= LEVELS * BUCKETS:
            self.stale(f"{self.name_op(index)} is due at tick {due} and says that it is in bucket {op.bucket - 1}")
            return
        self.bucket_ops[op.bucket - 1].add(index)
        level, position = divmod(op.bucket - 1, BUCKETS)
        own, present = due >> LEVEL_BITS * level, tick >> LEVEL_BITS * level
        # The bucket comes after the present one, within two spans. The farthest bucket also has all deadlines beyond
        # it.
        reached = own if level < LEVELS - 1 else min(own, present + BUCKETS - 1)
        if not present < own or reached - present >= BUCKETS or reached % BUCKETS != position:
            self.stale(
                f"{self.name_op(index)} is due at tick {due}, seen from {tick}, and is in bucket {level}:{position}"
            )

    def check_settled(self, index: int, op: OpRecord, of_client: bool) -> None:
        self.refer_to_blob(op.value)
        if not Outcome.COMPLETED <= op.outcome <= Outcome.FAILED:
            self.wrong(f"{self.name_op(index)} has settled with outcome {op.outcome}")
        if op.outcome == Outcome.EXPIRED and op.settled_ns < op.deadline_ns:
            self.wrong(f"{self.name_op(index)} expired at {op.settled_ns}, and its deadline was {op.deadline_ns}")
        if op.settled_key > op.keys:
            self.wrong(f"{self.name_op(index)} was settled by key {op.settled_key} of {op.keys}")
        may_go_to_others = op.group or op.orphans == Orphans.GROUP or op.flags & GRANTED
        if may_go_to_others and not op.flags & KEYS_KEPT:
            self.wrong(f"{self.name_op(index)} has settled without its keys, and may go to another client")
        if op.group:
            self.settled_for[op.group - 1] += 1
            self.bytes_for[op.group - 1] += self.blob_length(op.value)
            if not op.client_generation and op.flags & CALL and op.outcome_number:
                self.letters_of[op.group - 1].append((op.outcome_number, index))
                return
            if not op.client_generation:
                self.waiting[op.group - 1].add(index)
                if op.outcome_number:
                    self.wrong(f"{self.name_op(index)} waits in its group, and has outcome number {op.outcome_number}")
                return
        if not of_client:
            self.wrong(f"{self.name_op(index)} has settled and has no client any more, and is kept")
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

    def check_held(self, index: int, op: OpRecord, client: ClientRecord) -> None:
        """Check an outcome of a group that a member holds."""
        held_of = self.calls_held_of if op.flags & CALL else self.held_of
        held_of[op.client] += 1
        if client.state == ClientState.TOMBSTONE or client.group != op.group or not op.deliveries:
            self.wrong(
                f"{self.name_op(index)} of group {op.group - 1} says that it is held by client {op.client} of group "
                f"{client.group - 1} in state {client.state}, after {op.deliveries} deliveries"
            )
        if op.outcome_number > client.acknowledged:
            return
        self.received.add(index)
        if (op.next, op.prev) != (own := self.reader.ops.link(index), own) and not self.cut:
            self.stale(f"{self.name_op(index)} is held and acknowledged, and has links {op.next}, {op.prev}, not {own}")

    def long_names(self, index: int) -> int:
        """Bytes of the names of an operation's keys that lie in blocks."""
        with suppress(DamageError):
            numbers = list(walk.nodes_of(self.reader, index, self.nodes))
            lengths = [walk.record_of(self.nodes, number, "watch nodes").name_length for number in numbers]
            return sum(length for length in lengths if length > KEY_INLINE)
        return 0

    def check_nodes(self, index: int, op: OpRecord) -> None:
        """Check the watch nodes of an operation, with their fields about its keys."""
        pending = op.state == OpState.PENDING
        runs = not pending and op.flags & CALL  # a settled call has times in place of the masks of keys
        decided = 0 if op.condition == Condition.OWNER or runs else op.failed
        if not runs and op.condition not in (Condition.TOTAL, Condition.OWNER):
            decided |= op.progress
        seen_keys: set[Key] = set()
        ordinal = 0
        try:
            for number in walk.nodes_of(self.reader, index, self.nodes):
                node = walk.record_of(self.nodes, number, f"watch nodes of {self.name_op(index)}")
                if number in self.node_used or node.op != index:
                    self.wrong(f"node {number} is of {self.name_op(index)}, and says it is of operation {node.op}")
                    return
                self.node_used.add(number)
                if node.ordinal != ordinal or node.kind >= len(KeyKind):
                    self.wrong(f"node {number} of {self.name_op(index)} has ordinal {node.ordinal}, kind {node.kind}")
                ordinal += 1
                key = self.key_of(f"node {number}", node)
                if key is None:
                    continue
                if node.purgatory != op.purgatory or key in seen_keys:
                    self.wrong(
                        f"{self.name_op(index)} of purgatory {op.purgatory} watches {self.name_key(key)}"
                        f"{' twice' if key in seen_keys else ''}"
                    )
                seen_keys.add(key)
                waits = pending and not decided >> node.ordinal & 1
                if (node.place != Place.NOWHERE) != waits:
                    self.stale(
                        f"node {number} of {self.name_op(index)} says that its place is {node.place}, and key "
                        f"{node.ordinal} {'is waited for' if waits else 'is not waited for'}"
                    )
                if waits:
                    self.watched_in[op.purgatory] += 1
                    self.note_watcher(key, number, node, op)
        except DamageError as error:
            self.wrong(str(error))
        if ordinal != op.keys:
            self.wrong(f"{self.name_op(index)} has {op.keys} keys, and {ordinal} watch nodes")

    def key_of(self, what: str, record: WatchNode | WatermarkRecord) -> Key | None:
        """The key of a node or watermark, whose name and hash are checked; None when its name cannot be read."""
        self.refer_to_blob(record.name_blob)
        try:
            name = self.reader.key_name(record)
        except DamageError as error:
            self.wrong(f"{what}: {error}")
            return None
        if len(name) != record.name_length or self.key_hash(record.purgatory, name, record.hash) != record.hash:
            self.wrong(
                f"{what} of key {name!r} does not have the length {record.name_length} and hash 0x{record.hash:x} "
                "that it says"
            )
        return record.purgatory, name

    def note_watcher(self, key: Key, number: int, node: WatchNode, op: OpRecord) -> None:
        if node.kind != KeyKind.WATERMARK:
            self.watchers[key, node.kind].append((op.registration, number))
            return
        self.heaps[key][number] = (node.target, op.registration)
        if self.watermark_of.get(key, -1) >= node.target and not self.header.unfinished:
            self.wrong(
                f"{self.name_op(node.op)} waits for {self.name_key(key)} to reach {node.target}, and its "
                f"watermark is {self.watermark_of[key]}"
            )

    def check_watermarks(self) -> None:
        for index, record in enumerate(self.watermarks):
            if not record.used:
                continue
            key = self.key_of(f"watermark {index}", record)
            if key is None:
                continue
            if key in self.watermark_of:
                self.wrong(f"watermark {index} is the second one of {self.name_key(key)}")
            self.watermark_of[key] = record.watermark

    def check_ring(self) -> None:
        header, reader = self.header, self.reader
        newest_of: dict[int, int] = {}
        size = 0
        for sequence, event in enumerate(
            walk.events(reader), start=max(header.tail, header.newest + 1 - reader.events.count)
        ):
            if event.sequence != sequence:
                self.wrong(f"event {sequence} is not at its position in the ring: event {event.sequence} is")
                continue
            self.refer_to_blob(event.value)
            self.refer_to_blob(event.key_blob)
            size += self.blob_length(event.value) + self.blob_length(event.key_blob)
            if not EventKind.FIRE <= event.kind <= EventKind.CHECK:
                self.wrong(f"event {sequence} is of kind {event.kind}")
            try:
                hash_ = self.key_hash(event.purgatory, reader.event_key(event), event.key_hash)
            except DamageError as error:
                self.wrong(f"event {sequence}: {error}")
                continue
            if hash_ != event.key_hash:
                self.wrong(f"event {sequence} says its key's hash is 0x{event.key_hash:x}, and it is 0x{hash_:x}")
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
                f"the header says that event {header.unfinished} is being delivered; the ring holds "
                f"{header.tail}..{header.newest}"
            )

    def key_hash(self, purgatory: int, name: bytes, stored: int) -> int:
        """The hash of a key; without the seed, the stored hash."""
        return stored if self.seed is None else hashing.key_hash(self.seed, purgatory, name)

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
