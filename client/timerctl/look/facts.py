"""All facts of one operation: owner, keys, what it lacks, events on its keys, what would settle it, how to cancel it.

Everything comes from the arena. On a live instance the facts may be of different moments. The ring is searched for
events on the operation's keys, and on keys near them: at most EVENTS_LOOKED of the newest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from timerctl.instance import command_line
from timerctl.listing import Row, hint
from timerctl.show.text import begun, span, word
from timerd_client.groups.listing import CallInfo, listed
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.records import EventRecord, OpRecord, WatchNode
from timerd_shm.declare.states import RULES, ClientState, Condition, EventKind, KeyKind, OpFlag, OpState, Outcome, Tally
from timerd_shm.read import walk
from timerd_shm.read.near import near
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.text import label, plain
from timerd_shm.read.watched import watches, watermarks

from . import calls, clients, ops
from .clocks import Clocks
from .find import Found, id_hash_of, number_of
from .handlers import Handlers, held_in_vain, is_stopped, listeners

EVENTS_LOOKED = 65_536
EVENTS_SHOWN = 3  # of a key: the newest, and older ones of other kinds or clients
COMMANDS_SHOWN = 8
NEAR_KEYS = 4  # for this many missing keys without an event, events on similar keys are looked for
VERBS = {EventKind.FIRE: "fire", EventKind.ADVANCE: "advance", EventKind.FAIL: "fail"}


class KeyFacts(NamedTuple):
    """A key of an operation."""

    name: bytes
    kind: int
    state: str  # missing, satisfied or failed; "watched" for a subscription, a delayed operation or a call
    target: int | None  # the watermark to reach
    watermark: int | None  # the present one
    code: int | None  # given to fail()


class EventsFound(NamedTuple):
    """Events of the ring, the newest first."""

    on_keys: dict[bytes, list[Row]]  # on each missing key
    near: list[Row]  # on keys that are spelt nearly like a missing key
    elsewhere: list[Row]  # on keys with the name of a missing key, in another purgatory


class Facts:
    """The facts of one operation, each a method or an attribute; row() has all of them."""

    def __init__(self, reader: ArenaReader, arguments: argparse.Namespace, found: Found) -> None:
        self.reader = reader
        self.arguments = arguments
        self.index, self.op, self.given = found
        self.header = reader.header()
        self.clocks = Clocks(self.header)
        self.now = self.clocks.now_ns
        self.settled = self.op.state == OpState.SETTLED
        self.purgatory = reader.purgatory_name(self.op.purgatory)
        self.number = self.op.generation << 32 | self.index
        self.call = self._call()
        self.keys = list(self._keys())
        self.rule = RULES.get(self.op.condition)

    # its parts ---------------------------------------------------------------------------------------------------

    def _call(self) -> CallInfo | None:
        if not self.op.flags & OpFlag.CALL:
            return None
        both = chain(*(listed(self.reader, failed=failed, clocks=self.clocks.of_calls) for failed in (False, True)))
        return next((call for call in both if call.op == self.number), None)

    def _keys(self) -> Iterator[KeyFacts]:
        if self.settled and not self.op.flags & OpFlag.KEYS_KEPT:
            return
        nodes: list[WatchNode] = []
        with suppress(DamageError):  # the operation settles while it is read
            nodes += (self.reader.nodes[at] for at in walk.nodes_of(self.reader, self.index))
        wanted = {node.purgatory for node in nodes if node.kind == KeyKind.WATERMARK}
        marks = {name: mark for at, name, mark in watermarks(self.reader) if at in wanted} if wanted else {}
        for node in nodes:
            try:
                name = self.reader.key_name(node)
            except DamageError:
                continue
            if node.kind not in list(KeyKind):  # the node's record is in other use by now, or damaged
                continue
            state = ops.state_of_key(self.op, node)
            is_mark = node.kind == KeyKind.WATERMARK
            yield KeyFacts(
                name,
                node.kind,
                state,
                node.target if is_mark and state != "failed" else None,
                marks.get(name) if is_mark else None,
                node.target if state == "failed" else None,
            )

    def id(self) -> str | None:
        """Its id, as far as it is known: the arena has only a hash, but the plan of a call has the id."""
        if self.call is not None:
            return self.call.shown_id
        return None if self.given is None else plain(self.given)

    def owner(self) -> Row:
        """The client that owns the operation, and its group. If a group owns it: the client that holds it now."""
        slot = self._holder()
        group = None
        if 0 < self.op.group <= len(self.reader.groups):
            record = self.reader.groups[self.op.group - 1]
            live, silent = listeners(self.reader.clients, self.op.group)
            group = {
                "name": label(record.name[: record.name_length]),
                "members": record.members,
                "listeners": live,
                "silent_listeners": silent,
            }
        client = None
        if slot is not None:
            row = clients.row_of(slot, self.reader.clients[slot], None, self.header)
            known = ("slot", "name", "pid", "state", "keeps", "stopped", "ended", "command", "heard_ago_ns", "backlog")
            client = {name: row[name] for name in known}
        return {"client": client, "group": group}

    def missing(self) -> list[KeyFacts]:
        """The keys whose events would change something."""
        return [key for key in self.keys if not self.settled and key.state in ("missing", "watched")]

    # events ------------------------------------------------------------------------------------------------------

    def events(self) -> EventsFound:
        """The newest events on the missing keys, on similar keys, and on keys of the same name in other purgatories."""
        found = EventsFound({}, [], [])
        if self.settled or self.call is not None:
            return found
        wanted = {key.name for key in self.missing()}
        own = {key.name for key in self.keys}
        others: dict[bytes, EventRecord] = {}
        elsewhere: dict[tuple[int, bytes], EventRecord] = {}
        newest = self.header.newest
        for sequence in range(newest, max(self.header.tail, newest - EVENTS_LOOKED + 1, 1) - 1, -1):
            event = self.reader.event(sequence)
            if event.sequence != sequence or event.kind not in VERBS:
                continue
            try:
                name = self.reader.event_key(event)
            except DamageError:
                continue
            if event.purgatory != self.op.purgatory:
                if name in wanted:
                    elsewhere.setdefault((event.purgatory, name), event)
            elif name in wanted:
                self._keep(found.on_keys.setdefault(name, []), self._event(event, name))
            elif name not in own:
                others.setdefault(name, event)
        silent = [name for name in wanted if name not in found.on_keys][:NEAR_KEYS]
        likely = dict.fromkeys(name for key in silent for name in near(key, others, numbers=False))
        found.near.extend(self._event(others[name], name) for name in likely)
        found.elsewhere.extend(self._event(event, name) for (_, name), event in elsewhere.items())
        return found

    @staticmethod
    def _keep(kept: list[Row], event: Row) -> None:
        """Keep an older event of a key, unless a newer one has its kind and its client's name.

        So an event that an operator fires to try something does not hide the events of the program.
        """
        if len(kept) < EVENTS_SHOWN and all(
            (e["kind"], e["client_name"]) != (event["kind"], event["client_name"]) for e in kept
        ):
            kept.append(event)

    def _event(self, event: EventRecord, name: bytes) -> Row:
        client = self.reader.clients[event.client] if event.client < len(self.reader.clients) else None
        is_here = client is not None and client.generation == event.client_generation
        ago_ns = max(self.now - event.effective_ns, 0)
        return {
            "key": plain(name),
            "purgatory": self._purgatory_of(event),
            "kind": VERBS[EventKind(event.kind)],
            "amount": event.amount,
            "limited": bool(event.flags & 1),
            "sequence": event.sequence,
            "ago_ns": ago_ns,
            "before_registration": event.effective_ns < self.op.registered_ns,
            "client": event.client if is_here else None,
            "client_name": label(client.name[: client.name_length]) if client is not None and is_here else None,
        }

    def _purgatory_of(self, event: EventRecord) -> str | None:
        try:
            return self.reader.purgatory_name(event.purgatory)
        except (DamageError, IndexError):
            return None

    # why it waits ------------------------------------------------------------------------------------------------

    def hints(self) -> Iterator[Row]:
        """Why the operation waits, if its keys do not show the reason: sentences, each with a command line or none."""
        op = self.op
        if self.call is not None:
            yield from Handlers(self.reader).why(self.call, self.arguments)
            return
        for key, where, mark in self._marks_elsewhere():
            text = (
                f"{word(plain(key.name))} has the watermark {mark} in purgatory {where}, and the operation waits in "
                f"purgatory {self.purgatory}"
            )
            line = command_line(self.arguments, "advance", key.name, str(key.target), purgatory=self.purgatory)
            yield hint("purgatory", text, line)
        if not 0 < op.group <= len(self.reader.groups):
            return
        record = self.reader.groups[op.group - 1]
        name, (live, silent) = label(record.name[: record.name_length]), listeners(self.reader.clients, op.group)
        slot = self._holder()
        if slot is not None:
            client = self.reader.clients[slot]
            if self.settled and (client.state == ClientState.SILENT or is_stopped(client)):
                yield held_in_vain(slot, client, "its outcome")
        elif not record.members:
            yield hint("group", f"group {name} has no member, so nobody gets its outcome")
        elif not live and silent:
            yield hint(
                "silent",
                f"all members of group {name} that iterate over outcomes() are silent",
                command_line(self.arguments, "clients"),
            )
        elif not live:
            text = f"no member of group {name} iterates over outcomes(), so its outcome waits until one does"
            yield hint("listener", text, command_line(self.arguments, "clients"))

    def _marks_elsewhere(self) -> Iterator[tuple[KeyFacts, str, int]]:
        """Missing keys whose watermark in another purgatory would suffice, with that purgatory's name and watermark."""
        wanted = {key.name: key for key in self.missing() if key.kind == KeyKind.WATERMARK and key.target is not None}
        for at, name, mark in watermarks(self.reader) if wanted else ():
            key = wanted.get(name)
            is_known = at != self.op.purgatory and at < len(self.reader.purgatories)
            if key is not None and key.target is not None and is_known and mark >= key.target:
                yield key, self.reader.purgatory_name(at), mark

    def _holder(self) -> int | None:
        generations = [each.generation if each.state != ClientState.FREE else 0 for each in self.reader.clients]
        return ops.client_of(self.op, generations)

    # what would settle it ----------------------------------------------------------------------------------------

    def tally(self) -> Tally:
        """The numbers by which its condition is decided."""
        op = self.op
        satisfied, amount = (0, op.progress) if op.condition == Condition.TOTAL else (op.progress.bit_count(), 0)
        return Tally(satisfied, op.failed.bit_count(), op.keys, op.needed, amount)

    def more(self, outcome: Outcome, field: str) -> int | None:
        """How many more keys have to be `satisfied` or `failed` for that outcome; None: no number of keys suffices."""
        if self.settled or self.call is not None or self.rule is None or not self.rule.completes:
            return None
        tally = self.tally()
        for number in range(1, tally.keys - tally.satisfied - tally.failed + 1):
            if self.rule.verdict(tally._replace(**{field: getattr(tally, field) + number})) == outcome:
                return number
        return None

    def settles(self) -> Iterator[Row]:
        """The events that would settle it: sentences, each with command lines."""
        op, keys = self.op, self.missing()
        if self.settled:
            return
        if self.call is not None or op.flags & OpFlag.CALL:
            yield _line(f"It is due {_due(op, self.now)}. Then a member of its group runs it.")
            return
        lines = [self.line_for(key) for key in keys]
        if op.condition == Condition.OBSERVE:
            yield _line("It is of a subscription: the next event on any of its keys is its outcome.", *lines)
        elif op.condition == Condition.OWNER:
            yield _line("Its owner decides: an event on any of its keys makes the owner look.", *lines)
        elif op.condition == Condition.TOTAL:
            yield _line(f"It completes when events on its keys add {op.progress} more to its total.", *lines)
        elif (number := self.more(Outcome.COMPLETED, "satisfied")) is not None:
            either = " or failed" if self.more(Outcome.COMPLETED, "failed") is not None else ""
            of = f"{'all' if number == len(keys) else number} of its {len(keys)} missing keys"
            of = of if len(keys) > 1 else "its missing key"
            yield _line(f"It completes when {of} {'is' if number == 1 else 'are'} satisfied{either}.", *lines)
        if (number := self.more(Outcome.FAILED, "failed")) is not None:
            of = "its missing key" if len(keys) == 1 else f"{number} of its missing keys"
            yield _line(f"It fails when {of} {'fails' if number == 1 else 'fail'}.")
        if op.deadline_ns == NO_DEADLINE:
            yield _line("It has no deadline, so it never expires.")
        else:
            yield _line(f"It expires {_due(op, self.now)}.")

    def line_for(self, key: KeyFacts) -> str:
        """The command line that satisfies a key."""
        if key.kind == KeyKind.WATERMARK:
            return command_line(self.arguments, "advance", key.name, str(key.target), purgatory=self.purgatory)
        amount = ["--amount", str(self.op.progress)] if self.op.condition == Condition.TOTAL else []
        return command_line(self.arguments, "fire", key.name, purgatory=self.purgatory, options=amount)

    def cancels(self) -> Iterator[Row]:
        """How to cancel it: sentences, each with command lines."""
        op, call = self.op, self.call
        if call is not None:
            yield from self._cancels_call(call)
        elif self.settled:
            return
        elif self.given is not None:
            yield _line("By its id:", command_line(self.arguments, "cancel", self.given, purgatory=self.purgatory))
        elif op.id_record:
            yield _line(
                "By its id, which its caller knows; the arena has only a hash of it:",
                command_line(self.arguments, "cancel", "ID", purgatory=self.purgatory),
            )
            yield from self._cancels_by_key()
        elif op.condition == Condition.OBSERVE:
            yield _line("Its owner closes the subscription.")
        else:
            yield _line("Its owner calls operation.cancel(): it has no id.")
            yield from self._cancels_by_key()

    def _cancels_call(self, call: CallInfo) -> Iterator[Row]:
        if call.number:
            number = str(call.number)
            yield _line("It is a dead letter: drop it, or make a call of it again.")
            for verb in ("drop", "retry"):
                yield _line("", command_line(self.arguments, f"calls {verb}", number))
        elif call.state in ("runs", "late"):
            yield _line(
                "A call that runs cannot be cancelled. It ends with its process. Then another worker runs it again, "
                "and other calls of this process, too. After as many ended processes as its handler allows "
                "(`deliveries`, 5 by default) it is a dead letter.",
                *([f"kill -9 {call.pid}"] if call.pid else []),
            )
        else:
            group = ["--group", call.group]
            yield _line("By its id:", command_line(self.arguments, "calls cancel", call.id, options=group))

    def _cancels_by_key(self) -> Iterator[Row]:
        if (key := self.key_to_cancel()) is not None:
            name, others = key
            text = "By a key that nothing else watches:"
            if others > 0:
                text = f"By a key. {others} other operation{'' if others == 1 else 's'} on it may be cancelled, too:"
            yield _line(text, command_line(self.arguments, "cancel-for-key", name, purgatory=self.purgatory))

    def key_to_cancel(self) -> tuple[bytes, int] | None:
        """The missing key that the fewest other operations watch, and their number. Subscriptions are not cancelled."""
        if self.op.condition == Condition.OBSERVE:
            return None
        names = {key.name: 0 for key in self.missing()}
        for watch in watches(self.reader):
            is_meant = watch.purgatory == self.op.purgatory and watch.name in names and watch.op != self.index
            if is_meant and self.reader.ops[watch.op].condition != Condition.OBSERVE:
                names[watch.name] += 1
        return min(names.items(), key=lambda item: item[1]) if names else None

    # all of it ---------------------------------------------------------------------------------------------------

    def kind(self) -> str:
        """Its kind, in a word or two."""
        if self.op.flags & OpFlag.CALL:
            if self.call is not None and self.call.number:
                return "dead letter"
            return "scheduled call" if self.op.flags & OpFlag.SCHEDULED else "call"
        if self.op.condition == Condition.OBSERVE:
            return "subscription"
        if self.op.condition == Condition.OWNER:
            return "delayed operation"
        return "group operation" if self.op.group else "operation"

    def row(self) -> Row:
        """All facts, which are also the JSON."""
        op = self.op
        events = self.events()
        looks = op.condition == Condition.OWNER
        return {
            "op": self.number,
            "number": number_of(op.generation, self.index),
            "kind": self.kind(),
            "state": ops.outcome_of(op) if self.call is None else self.call.state,
            "purgatory": self.purgatory,
            "id": self.id(),
            "id_hash": id_hash_of(self.reader, op),
            "command": op.command,
            "owner": self.owner(),
            "condition": ops.condition_of(op),
            "keys": [
                {
                    "key": plain(key.name),
                    "kind": KeyKind(key.kind).name.lower(),
                    "state": key.state,
                    "target": key.target,
                    "watermark": key.watermark,
                    "code": key.code,
                    "events": events.on_keys.get(key.name, []),
                    "command": self.line_for(key) if key in self.missing() and self.call is None else None,
                }
                for key in self.keys
            ],
            "key_count": op.keys,
            "events_on_near_keys": events.near,
            "events_in_other_purgatories": events.elsewhere,
            "keys_to_complete": self.more(Outcome.COMPLETED, "satisfied"),
            "keys_to_fail": self.more(Outcome.FAILED, "failed"),
            "amount_missing": op.progress if op.condition == Condition.TOTAL and not self.settled else None,
            "look": {"due": op.progress > op.failed, "event": op.progress, "looked": op.failed} if looks else None,
            "call": None if self.call is None else calls.row_of(self.call, self.clocks.now, self.arguments.bytes),
            "registered": self.clocks.wall(op.registered_ns),
            "deadline_ns": None if op.deadline_ns == NO_DEADLINE else op.deadline_ns,
            **self.clocks.due(op.deadline_ns),
            "waiting_ns": max(0, (op.settled_ns if self.settled else self.now) - op.registered_ns),
            "settled": self._settled() if self.settled else None,
            "payload": begun(ops.payload_of(self.reader, op), self.arguments.bytes),
            "hints": list(self.hints()),
            "journal": None,
            "settles": list(self.settles()),
            "cancel": list(self.cancels()),
        }

    def _settled(self) -> Row:
        op = self.op
        key = next((key for at, key in enumerate(self.keys) if at == op.settled_key - 1), None)
        return {
            "at": self.clocks.wall(op.settled_ns),
            "ago_ns": max(self.now - op.settled_ns, 0),
            "key_number": op.settled_key or None,
            "key": None if key is None else plain(key.name),
            "code": op.error if op.outcome == Outcome.FAILED and not op.flags & OpFlag.CALL else None,
            "deliveries": op.deliveries,
            "value": begun(ops.blob_of(self.reader, op.value), self.arguments.bytes),
        }


def _due(op: OpRecord, now: int) -> str:
    left = op.deadline_ns - now
    if op.deadline_ns == NO_DEADLINE:
        return "never"
    return f"in {span(left)}" if left > 0 else f"in the next turn of the daemon: its deadline passed {span(-left)} ago"


def _line(text: str, *commands: str) -> Row:
    return {"text": text, "commands": list(commands[:COMMANDS_SHOWN])}
