"""The attacks of bench/overload.py: what one hostile process does beside a bystander, in a module for each target.

An attack is a function of an `Attacker`. It goes on while `attacker.is_on()`, and counts in `attacker.acts` what it
did. It uses the public client or the wire library, so it says what any member of the group may say. To add one: write
the function, and enter it below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import connections, files, frames, members, operations, outlets
from .attacker import Attacker


class Attack(NamedTuple):
    """What the attacker does, and which flags its daemon needs ({journal}: a directory)."""

    act: Callable[[Attacker], None]
    flags: tuple[str, ...] = ()


ATTACKS = {
    "subscriptions-stranger": Attack(outlets.subscribe_as_stranger),
    "subscriptions-member": Attack(outlets.subscribe_as_member),
    "outlets": Attack(outlets.connect_often),
    "unread": Attack(outlets.read_nothing),
    "incarnations": Attack(members.claim_incarnations),
    "slots": Attack(members.take_slots),
    "purgatories": Attack(members.name_purgatories),
    "dropped": Attack(members.drop_clients),
    "ids": Attack(operations.use_up_ids),
    "keys64": Attack(operations.register_64_keys),
    "fan": Attack(operations.fire_many_watchers),
    "snapshots": Attack(operations.ask_for_snapshots),
    "ask": Attack(frames.ask_again),
    "refusals": Attack(frames.be_refused_differently),
    "locks": Attack(files.lock_everything),
    "holds": Attack(files.fill_holds, ("--journal", "{journal}")),
    "connections": Attack(connections.connect_raw),
    "looks": Attack(connections.look_and_leave),
}
