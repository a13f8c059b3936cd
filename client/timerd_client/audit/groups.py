"""The steps of operations of groups: each GROUP row is compared with the state before it."""

from __future__ import annotations

from timerd_shm.declare.journal import GroupRow, GroupStep
from timerd_shm.declare.states import Orphans

from .clients import DEAD, LIVING, Clients
from .findings import Findings
from .records import Member, Operation, Owner, Text, is_clean
from .turns import Turns
from .words import name_of, shown, shown_owner

_ADOPTED, _DELIVERED, _REQUEUED = int(GroupStep.ADOPTED), int(GroupStep.DELIVERED), int(GroupStep.REQUEUED)
_ACKNOWLEDGED, _DROPPED = int(GroupStep.ACKNOWLEDGED), int(GroupStep.DROPPED)
_BEGAN, _KEPT, _CANCELLED = int(GroupStep.BEGAN), int(GroupStep.KEPT), int(GroupStep.CANCELLED)
_EVICTED = int(GroupStep.EVICTED)
_NUMBERED = (_DELIVERED, _ACKNOWLEDGED, _BEGAN)  # their rows have the holder's number of the outcome
_GROUP = int(Orphans.GROUP)
_STEPS = frozenset(int(step) for step in GroupStep)
DELIVERIES_MAX = 255  # this count stands for 255 or more


class Groups:
    """Takes GROUP rows. `whole`: the audit gets all outcomes of a client, so it knows their numbers."""

    def __init__(self, findings: Findings, turns: Turns, clients: Clients, whole: bool) -> None:
        self._findings = findings
        self._turns = turns
        self._clients = clients
        self._whole = whole

    def group(self, r: GroupRow, op: Operation | None, group: Text, owner: Owner) -> None:
        """A GROUP row. `op` is its operation, or None if the operation is not known."""
        step, name = r.step, (r.client, r.client_generation)
        self._turns.at(r.at_ns, r.operation)
        by_daemon = step in (_DROPPED, _EVICTED) or (step == _KEPT and not r.command)
        member = None if by_daemon else self._clients.members.get(name)
        if step not in _STEPS or op is None or (member is None and not by_daemon):
            return self._findings.report(
                r.operation, f"{name_of(GroupStep, step)}: the operation or client {name} is not known"
            )
        if owner != (member.text if member is not None else None) or (by_daemon and name != (0, 0)):
            self._findings.report(op.number, f"its row names {shown_owner(owner)}, and client {name}")
        if not is_clean(r):
            self._findings.report(op.number, "its row has bytes that are not zero")
        if bool(r.command) != (step in (_ACKNOWLEDGED, _BEGAN, _CANCELLED) or (step == _KEPT and not by_daemon)):
            self._findings.report(op.number, f"its row names the command {r.command}")
        wrong = self._adopted(op, member, group) if step == _ADOPTED else self._step(step, r, op, member, group)
        number = op.outcome_number if step in _NUMBERED else 0
        if r.deliveries != op.deliveries or (self._whole and r.outcome_number != number):
            what = f"{r.deliveries} deliveries, now as outcome {r.outcome_number}"
            self._findings.report(op.number, f"it has {what}, and should have {op.deliveries}, now as {number}")
        if wrong:
            what = f"its group is {shown(op.group)}, and it cannot be {GroupStep(step).name} by {shown(group)} now"
            self._findings.report(op.number, what)
        if step not in (_DELIVERED, _BEGAN):
            op.outcome_number = 0
        return None

    def _step(self, step: int, r: GroupRow, op: Operation, member: Member | None, group: Text) -> bool:
        """Apply a step after the settlement. Returns whether it is wrong."""
        wrong = op.settled is None or op.done or op.group != group
        if step in (_ACKNOWLEDGED, _BEGAN, _CANCELLED) or (step == _KEPT and r.command):
            text = member.text if member is not None else None
            self._clients.sender((r.client, r.client_generation), text, r.command, op.number, again=True)
        of_group = member is not None and member.group == group
        if step == _BEGAN:  # any member may begin to run a call, or give it up: BEGAN stands for both
            return wrong or not op.call or op.letter or not of_group
        holder, op.holder = op.holder, None
        if holder is not None:
            holder.concerned.discard(op)
        if step == _DELIVERED:
            there = member is not None and member.takes(op) and member.group == group
            op.deliveries = min(op.deliveries + 1, DELIVERIES_MAX)
            op.holder = member
            if member is not None:
                op.outcome_number, member.next_outcome = member.next_outcome, member.next_outcome + 1
                member.concerned.add(op)
            return wrong or holder is not None or not there
        if step == _REQUEUED:
            return wrong or holder is not member or member is None or (member.keeps(op) and not op.call)
        was_letter, op.letter, op.done = op.letter, step == _KEPT, step != _KEPT
        if step == _CANCELLED:
            return wrong or not op.call or was_letter
        if step == _EVICTED:  # the share of the maker's user is not checked: a journal does not name the users
            return wrong or holder is not None or was_letter
        if step == _ACKNOWLEDGED or (step == _KEPT and r.command):
            # Any member may report that a call is done: one that was silent has lost the call, but may report it later.
            return wrong or (holder is not member and not (op.call and of_group)) or (step == _KEPT and not op.call)
        if was_letter:
            return wrong or step == _KEPT  # a dead letter is dropped to make room for a newer one
        there = any(m.group == group and m.state in LIVING for m in self._clients.members.values())
        early = r.at_ns - op.settled_ns < self._turns.kept_ns
        # A call is kept as a dead letter, also while members are there: none of them has a handler for it.
        return wrong or holder is not None or early or (op.call != (step == _KEPT)) or (there and not op.call)

    @staticmethod
    def _adopted(op: Operation, member: Member | None, group: Text) -> bool:
        """Apply an adoption. Returns whether it is wrong."""
        died = member is not None and member.state == DEAD and member.group == group
        wrong = not died or op.client is not member or op.orphans != _GROUP
        if op.pending or op.expected is not None:
            wrong = wrong or op.left is not member
            op.left = None
        else:
            wrong = wrong or op.settled is None or op.done or bool(op.group)
            op.group, op.deliveries = group, 1
        return wrong
