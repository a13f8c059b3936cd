"""The names that an arena has now, and which of them are near a name that it does not have: keys, ids, clients.

The arena has only a hash of an id. So ids that are near a text are found by the hashes of all texts at one edit from
it.
"""

from __future__ import annotations

import argparse
import glob
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timerctl.instance import PURGATORY, command_line
from timerctl.listing import Row, hint
from timerctl.show.text import key_of, word
from timerd_client.protocol.session import CALLS
from timerd_shm.declare.limits import ID_SIZE_MAX
from timerd_shm.declare.states import ClientState, Condition, IdState, KeyKind
from timerd_shm.read.hashing import id_hash
from timerd_shm.read.near import NEAR_MAX, ONE_EDIT_FROM, near, one_edit
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import label, plain
from timerd_shm.read.watched import watches, watermarks

LETTERS = range(0x20, 0x7F)  # an id with other bytes is not looked for
ID_COMPARED = 64  # bytes; a longer text has too many texts at one edit


class NearKey(NamedTuple):
    """A key that is near a given one."""

    name: bytes
    watched: bool
    target: int | None  # the lowest watermark that is waited for; None if an event is waited for, or nothing
    watermark: int | None


def purgatories_of(reader: ArenaReader) -> dict[int, str]:
    """The purgatories in use, by index."""
    return {index: reader.purgatory_name(index) for index, each in enumerate(reader.purgatories) if each.state}


def near_keys(
    reader: ArenaReader, key: bytes, purgatory: str | None = None, *, watched: bool = True, marked: bool = True
) -> list[NearKey]:
    """Keys near this one, in the purgatory or in any: those that are `watched`, and those that have a watermark."""
    names = purgatories_of(reader)
    waits: dict[bytes, set[int | None]] = {}
    marks: dict[bytes, int] = {}
    for at, name, watermark in watermarks(reader):
        if purgatory in (None, names.get(at)):
            marks[name] = watermark
    for each in watches(reader) if watched else ():
        if purgatory in (None, names.get(each.purgatory)):
            waits.setdefault(each.name, set()).add(each.target if each.kind == KeyKind.WATERMARK else None)
    found = near(key, {**waits, **(marks if marked else {})})
    return [NearKey(name, name in waits, _lowest(waits.get(name)), marks.get(name)) for name in found]


def _lowest(targets: set[int | None] | None) -> int | None:
    """The lowest watermark that is waited for, unless an event is waited for."""
    known = [target for target in targets or () if target is not None]
    return min(known) if targets and len(known) == len(targets) else None


def near_ids(reader: ArenaReader, text: bytes) -> list[bytes]:
    """Ids of pending operations that differ from the text by one edit, or by case alone."""
    if not ONE_EDIT_FROM <= len(text) <= ID_COMPARED:
        return []
    calls = {index for index, name in purgatories_of(reader).items() if name == CALLS}
    pending = {
        struct.pack("<QQ", record.hash_low, record.hash_high)
        for record in reader.ids.used()
        if record.state == IdState.LIVE and record.purgatory not in calls
    }
    if not pending:
        return []
    likely = dict.fromkeys([text.lower(), text.upper(), text.title(), *one_edit(text, LETTERS)])
    found = [each for each in likely if each != text and len(each) <= ID_SIZE_MAX and id_hash(each) in pending]
    return near(text, found)[:NEAR_MAX]


def slots_of(reader: ArenaReader, text: str) -> set[int]:
    """The slots of the clients with this name, and the slot with this number. Several clients may share a name."""
    return {
        slot
        for slot, client in enumerate(reader.clients)
        if client.state != ClientState.FREE and text in (str(slot), label(client.name[: client.name_length]))
    }


# hints ----------------------------------------------------------------------------------------------------------------


def with_option(name: str, value: bytes | str) -> list[str]:
    """An option of a command line that is suggested: `--key orders/7`, or `--key=-x`. For --match it is a pattern."""
    text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
    text = glob.escape(plain(key_of(text))) if name == "--match" else text
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def of_key(reader: ArenaReader, arguments: argparse.Namespace, text: bytes, verb: str = "ops") -> Iterator[Row]:
    """Hints if the text is a key: how many operations watch it, and the command that lists them, or that acts on it."""
    names = purgatories_of(reader)
    counts: dict[str, int] = {}
    for watch in watches(reader, text):
        name = names.get(watch.purgatory, "")
        counts[name] = counts.get(name, 0) + 1
    counts.pop("", None)
    for name, count in sorted(counts.items()):
        where = "" if name == PURGATORY else f" of purgatory {name}"
        what = f"{count} operation{'s watch' if count > 1 else ' watches'} the key {word(plain(text))}{where}"
        if verb == "ops":
            yield hint("key", what, command_line(arguments, "ops", purgatory=name, options=with_option("--key", text)))
        else:
            yield hint("key", what, command_line(arguments, verb, text, purgatory=name))
    for at, key, watermark in watermarks(reader) if not counts and verb == "ops" else ():
        if key == text and at in names:
            what = f"the key {word(plain(text))} has the watermark {watermark}, and nothing watches it"
            yield hint("key", what, command_line(arguments, "keys", options=with_option("--match", text)))


def of_near_keys(
    reader: ArenaReader, arguments: argparse.Namespace, text: bytes, verb: str, option: str | None = None
) -> Iterator[Row]:
    """Hints at keys that are near the text: a command with the key behind it, or with the key as an option."""
    purgatory = getattr(arguments, "purgatory", None)
    for each in near_keys(reader, text, purgatory, marked=verb == "keys"):
        shown = plain(each.name)
        line = (
            command_line(arguments, verb, each.name, purgatory=purgatory or PURGATORY)
            if option is None
            else command_line(arguments, verb, purgatory=purgatory or PURGATORY, options=with_option(option, each.name))
        )
        yield hint("near", f"there is a key near it: {word(shown)}", line, key=shown)


def of_silent_keys(reader: ArenaReader, arguments: argparse.Namespace) -> Iterator[Row]:
    """Hints for `timerctl subscribe` without an event: keys near those that no program waits for, or advances."""
    purgatory = arguments.purgatory or PURGATORY
    names = purgatories_of(reader)
    marked = {name for at, name, _ in watermarks(reader) if names.get(at) == purgatory}
    for key in arguments.keys:
        used = (
            reader.ops[each.op].condition for each in watches(reader, key) if names.get(each.purgatory) == purgatory
        )
        if key not in marked and all(condition == Condition.OBSERVE for condition in used):
            for each in near_keys(reader, key, purgatory):
                if each.name not in arguments.keys:
                    line = command_line(arguments, "subscribe", each.name, purgatory=purgatory)
                    yield hint("near", f"there is a key near {word(plain(key))}: {word(plain(each.name))}", line)


def of_near_names(
    arguments: argparse.Namespace, what: str, given: str, known: Iterable[str], verb: str, option: str
) -> Iterator[Row]:
    """Hints at names that are near a given one: of clients, purgatories, groups or calls."""
    for other in near(key_of(given), {key_of(name) for name in known if name}):
        shown = plain(other)
        yield hint(
            "near",
            f"there is a {what} of nearly this name: {word(shown)}",
            command_line(arguments, verb, options=with_option(option, other)),
        )
