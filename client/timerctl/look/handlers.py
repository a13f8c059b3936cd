"""The handlers of each client; and the reasons why a call that is due does not run, each with a command line.

The arena has only the hash of each name that a client handles. The names of the calls in the arena are known, and so is
the hash of each name. A handler is known by name if a call of this name stands in the arena. A misspelt name is near a
handled one if one edit turns it into a name whose hash is among the hashes of the handled names.
"""

from __future__ import annotations

import argparse
import string
from collections.abc import Iterable, Iterator
from typing import Any

from timerctl.instance import command_line
from timerctl.listing import hint
from timerctl.show.text import span
from timerd_client.groups.listing import CallInfo, is_member, members_of, name_hash, names_handled
from timerd_client.protocol.session import CALLS
from timerd_shm.declare.records import ArenaHeader, ClientRecord
from timerd_shm.declare.states import ClientFlag, ClientState, OpFlag, OpState
from timerd_shm.host.process import namespace_inode, process_is_stopped
from timerd_shm.read import walk
from timerd_shm.read.near import near, one_edit
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.text import label, plain

ALPHABET = (string.ascii_letters + string.digits + "_-./:").encode()  # bytes that an edit of a name may put in
TRIED_SIZE_MAX = 64  # bytes of a name for which all names one edit away are tried: 9,000 hashes
NAMED_MAX = 3  # members that a sentence names
SIZE_MIN = 3  # bytes of a name; any two shorter names would be near each other


class Handlers:
    """The names that the members of groups handle."""

    def __init__(self, reader: ArenaReader) -> None:
        self.reader = reader
        self.header: ArenaHeader = reader.header()
        self.clients = list(reader.clients)
        self.groups = [label(each.name[: each.name_length]) if each.state else "" for each in reader.groups]
        names = (reader.purgatory_name(at) if each.state else "" for at, each in enumerate(reader.purgatories))
        self._purgatory = next((at for at, name in enumerate(names) if name == CALLS), None)
        self._known: dict[int, bytes] | None = None
        self._near: dict[tuple[str, bytes], list[bytes]] = {}
        self._members: dict[str, list[tuple[int, tuple[int, ...]]]] = {}

    def hash_of(self, name: bytes) -> int | None:
        """The hash by which clients' records name this handler."""
        return None if self._purgatory is None else name_hash(self._purgatory, name)

    @property
    def known(self) -> dict[int, bytes]:
        """The names of all calls in the arena, by their hashes."""
        if self._known is None:
            found = {name for index, op in enumerate(self.reader.ops.used()) if (name := self._name(index, op))}
            self._known = {name_hash(self._purgatory or 0, name): name for name in found}
        return self._known

    def _name(self, index: int, op: Any) -> bytes | None:
        if not op.flags & OpFlag.CALL or op.state not in (OpState.PENDING, OpState.SETTLED):
            return None
        try:
            return self.reader.key_name(self.reader.nodes[next(walk.nodes_of(self.reader, index))])
        except (DamageError, StopIteration):
            return None  # the call has ended while it was read

    def of(self, client: ClientRecord) -> dict[str, Any]:
        """The handlers of a client: their number, and the names that calls in the arena have."""
        hashes = names_handled(self.reader, client)
        return {"count": len(hashes), "known": sorted(plain(self.known[each]) for each in hashes if each in self.known)}

    def members(self, group: str) -> list[tuple[int, tuple[int, ...]]]:
        """The members of a group, each as its slot and the hashes of the names that it handles."""
        if group not in self._members:
            at = self.groups.index(group) + 1 if group in self.groups else 0
            slots = [slot for slot, each in enumerate(self.clients) if at and is_member(each, at)]
            self._members[group] = [(slot, names_handled(self.reader, self.clients[slot])) for slot in slots]
        return self._members[group]

    def slots_handling(self, group: str, name: bytes) -> list[int]:
        """The slots of the members of a group that handle this name."""
        wanted = self.hash_of(name)
        return [slot for slot, hashes in self.members(group) if wanted in hashes]

    def elsewhere(self, group: str, name: bytes) -> list[str]:
        """Other groups with a member that handles this name."""
        return [other for other in self.groups if other and other != group and self.slots_handling(other, name)]

    def near(self, group: str, name: bytes) -> list[bytes]:
        """Names near this one that members of the group handle."""
        if (group, name) not in self._near:
            self._near[group, name] = self._look_near(group, name)
        return self._near[group, name]

    def _look_near(self, group: str, name: bytes) -> list[bytes]:
        handled = {each for _, hashes in self.members(group) for each in hashes}
        found = near(name, (known for hashed, known in self.known.items() if hashed in handled))
        if found or not handled or not SIZE_MIN <= len(name) <= TRIED_SIZE_MAX:
            return found
        return [other for other in dict.fromkeys(one_edit(name, ALPHABET)) if self.hash_of(other) in handled][:1]

    # why a call waits ------------------------------------------------------------------------------------------------

    def why(self, call: CallInfo, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
        """Why a call that is due does not run, and what helps: sentences, each with a command line or none."""
        name, group = call.name_bytes, call.group
        if call.state in ("deserted", "unhandled"):
            if call.state == "deserted":
                yield hint("group", f"group {group} has no member: start a worker of it")
            else:
                yield hint("handler", f"no member of group {group} handles {call.name}")
            for other in self.near(group, name):
                yield hint("near", f"group {group} handles {plain(other)}: did you mean this name?", name=plain(other))
            for other_group in self.elsewhere(group, name):
                yield hint("group", f"group {other_group} handles {call.name}: did you mean this group?")
        elif call.state in ("silent", "busy"):
            for slot in self.slots_handling(group, name)[:NAMED_MAX]:
                yield self._about(slot, self.clients[slot], call, arguments)
        elif call.client is not None and call.client < len(self.clients):
            member = self.clients[call.client]
            if member.state == ClientState.SILENT or is_stopped(member):
                yield held_in_vain(call.client, member, f"call {call.shown_id}")

    def _about(self, slot: int, member: ClientRecord, call: CallInfo, arguments: argparse.Namespace) -> dict[str, Any]:
        who = who_is(slot, member)
        if is_stopped(member):
            text = f"{who} handles {call.name}, and is stopped: nothing runs there until it goes on"
            return hint("stopped", text, f"kill -CONT {member.pid}")
        if member.state == ClientState.SILENT:
            text = f"{who} handles {call.name}, and has been silent for {span(member.silent_ns)}"
            return hint("silent", text, command_line(arguments, "clients"))
        text = f"{who} handles {call.name}, and has {member.calls_held} calls of {member.calls} that it takes at once"
        return hint("busy", text, command_line(arguments, "calls", options=["--group", call.group]))


def who_is(slot: int, client: ClientRecord) -> str:
    """A client in a few words: client 3 web-1, pid 4711."""
    name = label(client.name[: client.name_length])
    return f"client {slot}{f' {name}' if name else ''}{f', pid {client.pid}' if client.pid else ''}"


def is_stopped(client: ClientRecord) -> bool:
    """Whether the client's process is seen here, and is stopped by a signal or a debugger."""
    if client.pid == 0 or (client.pid_namespace and client.pid_namespace != namespace_inode("pid")):
        return False
    return process_is_stopped(client.pid, client.start_ticks)


def listeners(clients: Iterable[ClientRecord], group: int) -> tuple[int, int]:
    """How many live and how many silent members of a group take outcomes. `group` is the group's index + 1."""
    states = [each.state for each in members_of(clients, group) if each.flags & ClientFlag.LISTENS]
    return states.count(ClientState.LIVE), states.count(ClientState.SILENT)


def held_in_vain(slot: int, client: ClientRecord, what: str) -> dict[str, Any]:
    """The hint that an outcome or a call of a group is with a client that is silent or stopped."""
    left_ns = max(client.takeover_ms * 1_000_000 - client.silent_ns, 0)
    keeps = f", and keeps it for {span(left_ns)}" if client.flags & ClientFlag.KEEPS else ""
    if is_stopped(client):
        return hint("stopped", f"{who_is(slot, client)} has {what}, and is stopped{keeps}", f"kill -CONT {client.pid}")
    return hint("silent", f"{who_is(slot, client)} has {what}, and has been silent for {span(client.silent_ns)}{keeps}")
