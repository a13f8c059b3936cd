"""Hints for an id that no operation has: a call of this id or name, another purgatory, a name spelt nearly alike."""

from __future__ import annotations

import argparse
import glob
from collections.abc import Iterator

from timerctl.instance import PURGATORY, command_line
from timerctl.listing import Row, hint
from timerctl.show.text import key_of, word
from timerd_client.groups.listing import listed
from timerd_client.protocol.session import CALLS
from timerd_shm.read.near import near
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain

from .find import Found, meant
from .handlers import Handlers

IDS_NAMED = 3


def meant_instead(reader: ArenaReader, arguments: argparse.Namespace) -> Iterator[Row]:
    """Hints for `timerctl explain`: calls of this name, and ids and names of calls that are near it."""
    text: bytes = arguments.what
    yield from of_name(reader, arguments, text)
    known = list(listed(reader))
    ids = {key_of(call.id) for call in known}
    for other in near(text, ids):
        yield hint("near", f"a call has the id {word(plain(other))}: did you mean it?", explained(arguments, other))
    for other in near(text, {call.name_bytes for call in known} - ids):
        line = command_line(arguments, "calls", options=[matching(other)])
        yield hint("near", f"calls have the name {word(plain(other))}: did you mean one of them?", line)


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
    """Hints for a command on the operation of an id, if a call, or another purgatory, has this id."""
    for each in meant(reader, text, "id", None):
        if not isinstance(each, Found):
            continue
        purgatory = reader.purgatory_name(each.op.purgatory)
        if purgatory == CALLS:
            line = command_line(arguments, f"calls {verb}" if verb == "cancel" else "explain", text)
            yield hint("call", f"a call has the id {word(plain(text))}", line)
        elif purgatory != (arguments.purgatory or PURGATORY):
            options = ["--timeout", "TIME"] if verb == "reschedule" else []
            line = command_line(arguments, verb, text, purgatory=purgatory, options=options)
            yield hint("purgatory", f"purgatory {purgatory} has an operation of id {word(plain(text))}", line)


def matching(name: bytes) -> str:
    """The option of `timerctl calls` for calls of this name: a name may have *, ? and [, which are a pattern there."""
    return f"--match={glob.escape(plain(name))}"


def explained(arguments: argparse.Namespace, id: bytes) -> str:
    return command_line(arguments, "explain", id)
