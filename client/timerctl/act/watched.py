"""The watchers of a key just before an event on it; if there were none, hints at what the event was meant for.

The daemon counts the operations that an event completes, not the operations that watch the key. So the watchers are
counted in the arena just before the event. A registration or an outcome between the count and the event is not seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

from timerctl.instance import PURGATORY, command_line, open_arena, paths_of
from timerctl.known import NearKey, near_keys, purgatories_of
from timerctl.listing import hint
from timerctl.show.text import word
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.states import Condition, KeyKind
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain
from timerd_shm.read.watched import watches, watermarks

OFFSET = "OFFSET"  # in a command line that is suggested: any number beyond the watermark


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
    names = purgatories_of(reader)
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
    if verb == "advance" and seen.watermark is not None and seen.watermark >= arguments.offset:
        had += ", which stays"
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
    if seen.subscriptions:
        parts.append(operations(seen.subscriptions, "subscription"))
    listed = ", and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "nothing"
    if verb == "advance":
        return f"Just before, {had}; {listed}."
    if verb == "fire" and seen.targets:  # they watch the key, too
        also = f", and {len(seen.targets)} for its watermark" if parts else ""
        return f"Just before, {listed} waited for an event on {key}{also}."
    stays = " A subscription is not cancelled: its owner closes it." if verb == "cancel-for-key" else ""
    return f"Just before, {listed} watched {key}.{stays if seen.subscriptions else ''}"


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
        offset = next((text for each in seen.targets if (text := _beyond(str(each), seen.watermark)) != OFFSET), OFFSET)
        yield hint("watermark", text, command_line(arguments, "advance", key, offset, purgatory=purgatory))
        explained = True
    elif verb == "fire" and seen.watermark is not None:
        line = command_line(arguments, "advance", key, OFFSET, purgatory=purgatory)
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
        for near in _near(arguments, verb, purgatory):
            # A watermark's key is advanced, an event's key is fired.
            instead, words, has = verb, rest, ""
            if verb in ("fire", "advance"):
                instead, words = "fire", []
                if near.target is not None or not near.watched:
                    instead, words = "advance", [_beyond((rest or [str(near.target)])[0], near.watermark)]
                    has = f", which has the watermark {near.watermark}" if words == [OFFSET] else ""
            line = command_line(arguments, instead, near.name, *words, purgatory=purgatory)
            shown = plain(near.name)
            yield hint("near", f"there is a key near it: {word(shown)}{has}", line, key=shown)


def _rest(arguments: argparse.Namespace, verb: str) -> list[str]:
    return [str(arguments.offset)] if verb == "advance" else []


def _near(arguments: argparse.Namespace, verb: str, purgatory: str) -> list[NearKey]:
    """Keys near that of the command line which the command could meet."""
    try:
        with open_arena(paths_of(arguments)) as reader:
            marked = verb not in ("fail", "cancel-for-key")
            return near_keys(reader, arguments.key, purgatory, watched=verb != "forget", marked=marked)
    except (OSError, TimerdError):
        return []


def _beyond(offset: str, watermark: int | None) -> str:
    """An offset for a command line that is suggested: a number only if it raises the watermark."""
    return offset if offset.isdecimal() and (watermark is None or int(offset) > watermark) else OFFSET
