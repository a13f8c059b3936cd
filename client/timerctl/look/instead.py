"""Hints for an id that no operation has.

It may be a number, a key, the id or the name of a call, an id of another purgatory, or be spelt nearly alike.
"""

from __future__ import annotations

import argparse
import glob
from collections.abc import Iterator

from timerctl.instance import PURGATORY, command_line
from timerctl.known import near_ids, near_keys, of_key, with_option
from timerctl.listing import Row, hint
from timerctl.show.text import key_of, word
from timerd_client.groups.listing import listed
from timerd_client.protocol.session import CALLS
from timerd_shm.declare.states import Condition, OpFlag, OpState
from timerd_shm.read.near import near
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain

from .facts import Facts
from .find import Found, by_number, meant
from .handlers import Handlers

IDS_NAMED = 3


def meant_instead(reader: ArenaReader, arguments: argparse.Namespace) -> Iterator[Row]:
    """Hints for `timerctl explain`: calls of this name; ids, keys and names of calls that are near it."""
    text: bytes = arguments.what
    yield from of_name(reader, arguments, text)
    known = list(listed(reader))
    ids = {key_of(call.id) for call in known}
    for other in near(text, ids):
        yield hint("near", f"a call has the id {word(plain(other))}: did you mean it?", explained(arguments, other))
    for other in near(text, {call.name_bytes for call in known} - ids):
        line = command_line(arguments, "calls", options=[matching(other)])
        yield hint("near", f"calls have the name {word(plain(other))}: did you mean one of them?", line)
    yield from near_operations(reader, arguments, "explain", text)


def near_operations(reader: ArenaReader, arguments: argparse.Namespace, verb: str, text: bytes) -> Iterator[Row]:
    """Hints at operations with an id near the text, and at watched keys near it."""
    for id in near_ids(reader, text):
        line = command_line(arguments, verb, id, options=_needed(verb))
        yield hint("near", f"an operation has the id {word(plain(id))}: did you mean it?", line)
    for each in near_keys(reader, text, marked=False):
        shown = plain(each.name)
        line = command_line(arguments, "ops", options=with_option("--key", each.name))
        yield hint("near", f"operations watch the key {word(shown)}: did you mean one of them?", line, key=shown)


def _needed(verb: str) -> list[str]:
    """The options that a command needs."""
    return ["--timeout", "TIME"] if verb == "reschedule" else []


def of_number(reader: ArenaReader, arguments: argparse.Namespace, verb: str, text: bytes) -> Row | None:
    """An error and hints, if a command that takes an id has got the number of an operation; None if it has not."""
    found, what = by_number(reader, text), word(plain(text))
    if found is None or (not isinstance(found, Found) and not found.used):
        return None
    if not isinstance(found, Found) or (found.op.state == OpState.SETTLED and not found.op.flags & OpFlag.CALL):
        line = command_line(arguments, "explain", text, options=["--by", "number"])
        settled = hint("number", "this shows how it settled, if that is known", line)
        return {"error": f"{what} is the number of an operation that has settled", "hints": [settled]}
    facts = Facts(reader, arguments, found)
    takes = f"`timerctl {verb}` takes an id"
    if found.op.flags & OpFlag.CALL:
        line = command_line(arguments, "explain", text, options=["--by", "number"])
        id = "" if facts.call is None else f": {word(facts.call.shown_id)}"
        return {"error": f"{what} is the number of a call, and {takes}", "hints": [hint("call", f"its id{id}", line)]}
    hints: list[Row] = []
    known = "without an id"
    if found.op.id_record:
        known = "with an id, of which the arena has only a hash"
        line = command_line(arguments, verb, "ID", purgatory=facts.purgatory, options=_needed(verb))
        hints.append(hint("id", "its caller knows the id", line))
    elif found.op.condition == Condition.OBSERVE:
        hints.append(hint("owner", "it belongs to a subscription: its owner closes it"))
    else:
        hints.append(hint("owner", f"its owner can {verb} it"))
    if verb == "cancel" and (key := facts.key_to_cancel()) is not None:
        name, others = key
        line = command_line(arguments, "cancel-for-key", name, purgatory=facts.purgatory)
        alone = f"{others} other operation{'s' * (others > 1)}" if others else "no other operation"
        hints.append(hint("key", f"a cancel for the key {word(plain(name))} cancels it, and {alone}", line))
    return {"error": f"{what} is the number of a pending operation {known}, and {takes}", "hints": hints}


def of_name(reader: ArenaReader, arguments: argparse.Namespace, text: bytes) -> Iterator[Row]:
    """Hints if calls, or a handler, have this name: the command takes the id of a call."""
    found = (call for call in listed(reader) if call.name == plain(text) and key_of(call.id) != text)
    ids = [call.shown_id for call in found]
    if ids:
        named = ", ".join(map(word, ids[:IDS_NAMED])) + (", ..." if len(ids) > IDS_NAMED else "")
        calls = f"{len(ids)} call{'s have' if len(ids) > 1 else ' has'} this name"
        line = command_line(arguments, "calls", options=[matching(text)])
        yield hint("name", f"{calls}: give a call's id instead ({named})", line)
        return
    groups = Handlers(reader).elsewhere("", text)
    if groups:
        text_of = f"{word(plain(text))} is the name of a handler of group {', '.join(groups)}, and no call of it waits"
        yield hint("name", text_of, command_line(arguments, "calls"))


def of_another_kind(reader: ArenaReader, arguments: argparse.Namespace, verb: str, text: bytes) -> Iterator[Row]:
    """Hints for a command on an id that a call, a key or another purgatory has, or that is spelt nearly alike."""
    found = list(_elsewhere(reader, arguments, verb, text))
    found += of_key(reader, arguments, text, "cancel-for-key" if verb == "cancel" else "ops")
    yield from found or near_operations(reader, arguments, verb, text)


def _elsewhere(reader: ArenaReader, arguments: argparse.Namespace, verb: str, text: bytes) -> Iterator[Row]:
    for each in meant(reader, text, "id", None):
        if not isinstance(each, Found):
            continue
        purgatory = reader.purgatory_name(each.op.purgatory)
        if purgatory == CALLS:
            line = command_line(arguments, f"calls {verb}" if verb == "cancel" else "explain", text)
            yield hint("call", f"a call has the id {word(plain(text))}", line)
        elif purgatory != (arguments.purgatory or PURGATORY):
            line = command_line(arguments, verb, text, purgatory=purgatory, options=_needed(verb))
            yield hint("purgatory", f"purgatory {purgatory} has an operation of id {word(plain(text))}", line)


def matching(name: bytes) -> str:
    """The option of `timerctl calls` for calls of this name: a name may have *, ? and [, which are a pattern there."""
    return f"--match={glob.escape(plain(name))}"


def explained(arguments: argparse.Namespace, id: bytes) -> str:
    return command_line(arguments, "explain", id)
