"""The clients of a journal: their states, and the rising numbers of their commands and outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from timerd_shm.declare.journal import ClientRow
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import ClientFlag, ClientState, Orphans

from .findings import Findings
from .records import Member, Name, Operation, Owner, Text, is_clean
from .turns import Turns
from .words import differing, name_of, shown_owner

FREE, LIVE, SILENT = int(ClientState.FREE), int(ClientState.LIVE), int(ClientState.SILENT)
DEAD, TOMBSTONE = int(ClientState.DEAD), int(ClientState.TOMBSTONE)
LIVING: Final = (LIVE, SILENT)
# For each state, the states that the next CLIENT row may have. LIVE and SILENT may follow themselves: the client begins
# or stops listening, or a silent client no longer keeps what it holds.
NEXT_STATES: Final = {
    FREE: {LIVE},
    LIVE: {LIVE, SILENT, DEAD},
    SILENT: {SILENT, LIVE, DEAD},
    DEAD: {TOMBSTONE, FREE},
    TOMBSTONE: {LIVE, FREE},
}
_LISTENS, _GOODBYE, _KEEPS = int(ClientFlag.LISTENS), int(ClientFlag.GOODBYE), int(ClientFlag.KEEPS)
# Fixed while a client has its slot. But a tombstone has no group, and may come back with another pid, policy and group.
_FACTS: Final = ("owner", "incarnation", "pid", "orphans", "group")
_KEEP, _GROUP = int(Orphans.KEEP), int(Orphans.GROUP)


class Clients:
    """Takes CLIENT rows. `members` has the clients with a slot, by slot and generation."""

    def __init__(self, findings: Findings, turns: Turns) -> None:
        self.members: dict[Name, Member] = {}
        self._generations: dict[int, int] = {}  # the newest generation of each slot
        self._holders: dict[int, Name] = {}  # the client of each slot that is not free
        self._findings = findings
        self._turns = turns

    def start(self) -> None:
        """A daemon has attached to the arena. It counts silent clients as live again."""
        for member in self.members.values():
            if member.state == SILENT:
                member.state, member.flags = LIVE, member.flags & ~_KEEPS

    def sender(self, name: Name, owner: Owner, command: int, operation: int, *, again: bool = False) -> Member | None:
        """The client that sent a command, or None after a finding. `again`: an earlier row may have this command."""
        member = self.members.get(name)
        if member is None or member.state not in LIVING:
            self._findings.report(operation, f"its client {name} is not known, or not live")
            return None
        if member.text != owner:
            self._findings.report(
                operation, f"its row names {shown_owner(owner)}, and client {name} is {shown_owner(member.text)}"
            )
        if command <= member.command - again:
            self._findings.report(operation, f"command {command} of client {name} follows {member.command}")
        member.command = command
        return member

    def client(self, r: ClientRow, text: Owner, group: Text) -> None:
        """A CLIENT row."""
        name, state = (r.client, r.client_generation), r.state
        report = self._findings.report
        self._turns.at(r.at_ns, 0)
        member = self.members.get(name)
        before = FREE if member is None else member.state
        if state not in NEXT_STATES[before]:
            return report(0, f"client {name} is {name_of(ClientState, state)} after {ClientState(before).name}")
        if r.flags & ~(_LISTENS | _GOODBYE | _KEEPS) or r.orphans > _GROUP or not is_clean(r):
            report(0, f"client {name} has flags, a policy or bytes that no daemon writes")
        if member is None:
            if self._generations.get(r.client, r.client_generation - 1) + 1 != r.client_generation:
                report(0, f"client {name} follows generation {self._generations[r.client]} in its slot")
            if (holder := self._holders.get(r.client)) is not None:
                report(0, f"client {name} begins in the slot of client {holder}, which has not left it")
            self._generations[r.client], self._holders[r.client] = r.client_generation, name
            member = self.members[name] = Member(name, state, r.orphans, group, bool(r.flags & _LISTENS))
            member.text, member.incarnation, member.pid = text, (r.incarnation_low, r.incarnation_high), r.pid
            member.flags = r.flags
        elif before == TOMBSTONE and state == LIVE:
            member.orphans, member.group, member.pid = r.orphans, group, r.pid
        self._compare(member, before, r, text, group)
        member.state, member.flags, member.listens = state, r.flags, bool(r.flags & _LISTENS)
        if state == DEAD:
            self._die(member, r.at_ns)
        elif before == DEAD:
            self._is_swept(member, report)
        if state == TOMBSTONE:
            member.group = None
        if state == FREE:
            del self.members[name]
            self._holders.pop(r.client, None)  # in a corrupt journal two clients may share the slot
        return None

    def _compare(self, member: Member, before: int, r: ClientRow, text: Owner, group: Text) -> None:
        """Check that the fields of _FACTS have not changed, and that the flags fit the state."""
        state, flags = r.state, r.flags
        found = (text, (r.incarnation_low, r.incarnation_high), r.pid, r.orphans, group)
        wanted = (member.text, member.incarnation, member.pid, member.orphans, member.group)
        if found != wanted:
            self._findings.report(0, f"client {member.name} has changed: {differing(_FACTS, found, wanted)}")
        if state in LIVING:
            fits = not flags & _GOODBYE and (state == SILENT or not flags & _KEEPS)
            if before == state:
                fits = fits and flags != member.flags and not flags & ~member.flags & _KEEPS
            elif before in LIVING:
                fits = fits and not (flags ^ member.flags) & _LISTENS
        elif state == DEAD:
            fits = not flags & (_LISTENS | _KEEPS)
        else:
            fits = flags == member.flags and (before == TOMBSTONE or bool(flags & _GOODBYE) == (state == FREE))
        if not fits:
            self._findings.report(0, f"client {member.name} cannot have the flags {flags} now")

    def _die(self, member: Member, died_ns: int) -> None:
        """The client has died. Limited events complete its pending operations only if its group adopts them.

        Kept operations without a deadline get a deadline.
        """
        member.kept_ns = self._turns.kept_ns
        for op in member.pending.values():
            self.orphan(op, member, died_ns)
        member.pending.clear()

    @staticmethod
    def orphan(op: Operation, member: Member, died_ns: int) -> None:
        """The client of an operation has died before the operation's OUTCOME row."""
        if op.orphans == _GROUP:
            op.group = member.group
        else:
            op.kept = True
        if op.orphans != _KEEP:
            op.left = member
            member.concerned.add(op)
        elif op.deadline_ns == NO_DEADLINE:
            op.left_ns = died_ns

    @staticmethod
    def _is_swept(member: Member, report: Callable[[int, str], None]) -> None:
        """When a dead client becomes a tombstone, or its slot is freed, none of its operations may be left."""
        for op in member.concerned:
            if op.left is member:
                report(op.number, f"it was neither cancelled nor adopted, although client {member.name} has died")
            if op.holder is member:
                report(op.number, f"client {member.name} still holds it, although the client is dead")
        member.concerned.clear()


def owners_of(op: Operation) -> tuple[Owner, ...]:
    """The owners that a row may name for a pending operation: its group, its client, or none (None)."""
    if op.group:
        return ((op.group, True),)
    if not op.kept:
        return (op.client.text,)
    if op.orphans != _KEEP:
        return (op.client.text,)  # the sweep cancels the operation before another client gets the slot
    return (op.client.text, None) if op.client.state == DEAD else (None,)
