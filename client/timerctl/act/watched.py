"""The watchers of a key just before an event on it; if there were none, hints at what the event was meant for.

The daemon counts the operations that an event completes, not the operations that watch the key. So the watchers are
counted in the arena just before the event. A registration or an outcome between the count and the event is not seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

from timerctl.instance import PURGATORY, command_line, open_arena, paths_of
from timerctl.listing import hint
from timerctl.show.text import word
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.states import Condition, KeyKind
from timerd_shm.read.near import near
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain
from timerd_shm.read.watched import watches, watermarks


class Watched(NamedTuple):
    """A key as it stood in the arena."""

    events: int  # operations that wait for an event on the key
    targets: tuple[int, ...]  # the watermarks that operations wait for, the lowest first
    owned: int  # operations whose owners evaluate the condition when an event comes on the key
    subscriptions: int
    watermark: int | None
    elsewhere: dict[str, int]  # for each other purgatory, how many of its operations watch a key of this name

    def meets(self, verb: str) -> bool:
        """Whether the event of the command `verb` concerned a watcher of the key, or its watermark."""
        if verb == "forget":
            return self.watermark is not None
        if verb == "advance":
            return bool(self.targets or self.owned or self.subscriptions)
        others = len(self.targets) if verb in ("fail", "cancel-for-key") else 0
        return bool(self.events or self.owned or others or (verb != "cancel-for-key" and self.subscriptions))

    def row(self) -> dict[str, Any]:
        """These facts for programs."""
        return {
            "events": self.events,
            "advances": len(self.targets),
            "owned": self.owned,
            "subscriptions": self.subscriptions,
            "watermark": self.watermark,
        }


def watched(arguments: argparse.Namespace) -> Watched | None:
    """The key of the command line as it stands in the arena now; None if the arena cannot be read."""
    try:
        with open_arena(paths_of(arguments)) as reader:
            return _watched(reader, arguments.key, arguments.purgatory or PURGATORY)
    except (OSError, TimerdError):
        return None


def _watched(reader: ArenaReader, key: bytes, purgatory: str) -> Watched:
    names = _names(reader)
    targets: list[int] = []
    elsewhere: dict[str, int] = {}
    events = owned = subscriptions = 0
    for watch in watches(reader, key):
        if (name := names.get(watch.purgatory)) != purgatory:
            if name is not None:
                elsewhere[name] = elsewhere.get(name, 0) + 1
        elif watch.kind == KeyKind.WATERMARK:
            targets.append(watch.target)
        elif watch.kind == KeyKind.EVENT:
            events += 1
        elif reader.ops[watch.op].condition == Condition.OWNER:
            owned += 1
        else:
            subscriptions += 1
    marks = (mark for at, name, mark in watermarks(reader) if name == key and names.get(at) == purgatory)
    return Watched(events, tuple(sorted(targets)), owned, subscriptions, next(marks, None), elsewhere)


def _names(reader: ArenaReader) -> dict[int, str]:
    """The purgatories in use, by index."""
    return {index: reader.purgatory_name(index) for index, each in enumerate(reader.purgatories) if each.state}


# for people -----------------------------------------------------------------------------------------------------------


def operations(number: int, what: str = "operation") -> str:
    """No operation, 1 operation, 2 operations."""
    return f"{number or 'no'} {what}{'s' if number > 1 else ''}"


def sentence(arguments: argparse.Namespace, verb: str, seen: Watched | None) -> str:
    """The watchers and the watermark just before the command, in a sentence."""
    if seen is None:
        return "The arena cannot be read here, so it is not known what watched the key: `timerctl check` says why."
    key = word(plain(arguments.key))
    had = f"{key} had {'no watermark' if seen.watermark is None else f'the watermark {seen.watermark}'}"
    if verb == "forget":
        return f"Just before, {had}."
    parts = []
    if verb == "advance":
        due = sum(target <= arguments.offset for target in seen.targets)
        of_these = f", {due} of them for {arguments.offset} or less" if seen.targets else ""
        parts.append(f"{operations(len(seen.targets))} waited for it{of_these}")
    else:
        number = seen.events + (0 if verb == "fire" else len(seen.targets))
        parts += [operations(number)] if number else []
    if seen.owned:
        parts.append(f"{operations(seen.owned)} whose owners look")
    if seen.subscriptions and verb != "cancel-for-key":
        parts.append(operations(seen.subscriptions, "subscription"))
    listed = ", and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "nothing"
    return f"Just before, {had}; {listed}." if verb == "advance" else f"Just before, {listed} watched {key}."


# what was meant -------------------------------------------------------------------------------------------------------


def hints(arguments: argparse.Namespace, verb: str, seen: Watched) -> Iterator[dict[str, Any]]:
    """Hints at what was meant by a command that met nothing: each a sentence with a command line.

    If no watermark, event or purgatory explains why the command met nothing, a similar key may. near() finds similar
    keys, and bounds the search.
    """
    if seen.meets(verb):
        return
    key, purgatory, rest = arguments.key, arguments.purgatory or PURGATORY, _rest(arguments, verb)
    explained = False
    if verb == "fire" and seen.targets:
        text = f"{operations(len(seen.targets))} wait{'s' * (len(seen.targets) == 1)} for its watermark"
        yield hint(
            "watermark", text, command_line(arguments, "advance", key, str(seen.targets[0]), purgatory=purgatory)
        )
        explained = True
    elif verb == "fire" and seen.watermark is not None:
        line = command_line(arguments, "advance", key, "OFFSET", purgatory=purgatory)
        yield hint("watermark", f"the key has a watermark, {seen.watermark}", line)
        explained = True
    if verb == "advance" and seen.events:
        text = f"{operations(seen.events)} wait{'s' * (seen.events == 1)} for an event on it, not for a watermark"
        yield hint("event", text, command_line(arguments, "fire", key, purgatory=purgatory))
        explained = True
    for other, number in sorted(seen.elsewhere.items()):
        text = f"{operations(number)} of purgatory {other} watch{'es' * (number == 1)} a key of this name"
        yield hint("purgatory", text, command_line(arguments, verb, key, *rest, purgatory=other))
        explained = True
    if not explained and (verb != "advance" or seen.watermark is None):
        for name, target in _near(arguments, verb, key, purgatory):
            # A watermark's key is advanced, an event's key is fired.
            instead, words = verb, rest
            if verb in ("fire", "advance"):
                instead, words = ("fire", []) if target is None else ("advance", rest or [str(target)])
            line = command_line(arguments, instead, name, *words, purgatory=purgatory)
            yield hint("near", f"there is a key near it: {word(plain(name))}", line, key=plain(name))


def _rest(arguments: argparse.Namespace, verb: str) -> list[str]:
    return [str(arguments.offset)] if verb == "advance" else []


def _near(arguments: argparse.Namespace, verb: str, key: bytes, purgatory: str) -> list[tuple[bytes, int | None]]:
    """Keys near this one, each with the watermark that is waited for or set; None if an event is waited for."""
    known: dict[bytes, int | None] = {}
    waits: dict[bytes, set[int | None]] = {}
    try:
        with open_arena(paths_of(arguments)) as reader:
            names = _names(reader)
            for at, name, watermark in watermarks(reader):
                if names.get(at) == purgatory and verb != "cancel-for-key":
                    known[name] = watermark
            for each in watches(reader) if verb != "forget" else ():
                if names.get(each.purgatory) == purgatory:
                    waits.setdefault(each.name, set()).add(each.target if each.kind == KeyKind.WATERMARK else None)
            for name, found in waits.items():
                known[name] = None if None in found else min(target for target in found if target is not None)
            return [(name, known[name]) for name in near(key, known)]
    except (OSError, TimerdError):
        return []
