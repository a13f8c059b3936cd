"""How each group is served: its backlog, how long the first of it has waited, and members that hold it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from timerctl.look.handlers import is_stopped, who_is
from timerd_shm.declare.records import ClientRecord
from timerd_shm.declare.states import ClientState
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.text import label

NAMED: Final = 3  # members that hold a group up


class Holder(NamedTuple):
    """A member that is silent or stopped, and has outcomes or calls of its group."""

    who: str  # client 3 web-1, pid 4711
    pid: int
    stopped: bool
    silent_ns: int
    held: int


class Group(NamedTuple):
    """A group that has members, operations or outcomes."""

    name: str
    members: int
    silent: int  # members that are silent
    held: int  # outcomes and calls that members have
    pending: int
    backlog: int  # outcomes and calls that are not done, dead letters left out
    letters: int
    bytes: int
    waits_ns: int  # how long the first outcome or call has waited that no member has; 0 if there is none
    holders: list[Holder]


def groups_of(reader: ArenaReader, now_ns: int) -> list[Group]:
    """The groups of an arena. `now_ns` is the time of its clock."""
    clients = [each for each in enumerate(reader.clients) if each[1].state in (ClientState.LIVE, ClientState.SILENT)]
    found = []
    for index, group in enumerate(reader.groups):
        if not group.state or not (group.members or group.pending or group.unacknowledged):
            continue
        own = [(slot, client) for slot, client in clients if client.group == index + 1]
        found.append(
            Group(
                label(group.name[: group.name_length]),
                group.members,
                sum(client.state == ClientState.SILENT for _, client in own),
                sum(_held(client) for _, client in own),
                group.pending,
                group.unacknowledged - group.letters,
                group.letters,
                group.bytes_held,
                _waits_ns(reader, index, now_ns),
                list(islice(_holders(own), NAMED)),
            )
        )
    return found


def _held(client: ClientRecord) -> int:
    return client.held + client.calls_held


def _waits_ns(reader: ArenaReader, group: int, now_ns: int) -> int:
    waited = [_since(reader, walk.waiting, group), _since(reader, walk.waiting_calls, group)]
    return max([0, *(now_ns - since for since in waited if since)])


def _since(reader: ArenaReader, waiting: Callable[[ArenaReader, int], Iterator[int]], group: int) -> int:
    """When the first record of a list has settled; 0 if the list is empty, or has changed while it was read."""
    try:
        first = next(waiting(reader, group), None)
        return 0 if first is None else reader.ops[first].settled_ns
    except DamageError:
        return 0


def _holders(members: list[tuple[int, ClientRecord]]) -> Iterator[Holder]:
    for slot, client in sorted(members, key=lambda each: -_held(each[1])):
        stopped = _held(client) > 0 and is_stopped(client)
        if _held(client) and (stopped or client.state == ClientState.SILENT):
            yield Holder(who_is(slot, client), client.pid, stopped, client.silent_ns, _held(client))
