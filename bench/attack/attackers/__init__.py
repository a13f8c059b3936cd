"""The attacks of the suite `overload`: a hostile process, or several, beside three witnesses. Each target has a module.

An attack is a function of an `Attacker`. It goes on while `attacker.is_on()`, and counts in `attacker.acts` what it
did. It uses the public client, libzmq or bare sockets, so it sends only what any neighbour may send. To add one: write
the function, and enter it below.
"""

from __future__ import annotations

from typing import NamedTuple

from timerd_wire.transports import Transport

from . import collisions, connections, crowds, files, frames, members, operations, outlets, packets
from .attacker import Act


class Attack(NamedTuple):
    """An attack, and the daemon beside which it runs."""

    act: Act
    flags: tuple[str, ...] = ()  # of the daemon; {journal}: a directory, {group}: the group of this process
    files: int = 0  # that the daemon may open; 0: as many as this process
    kills: int = 0  # how often the daemon is killed meanwhile; its unit starts it again
    says: str = ""  # a text that the daemon's log must have after the attack
    transport: Transport = "zeromq"  # of the attacker's clients, and of the witnesses
    is_crowd: bool = False  # its processes take the witnesses' processors, so its runs at peace attack another daemon
    is_stranger: bool = False  # the attacker is another user than the witnesses. That needs root


FEW_CLIENTS = ("--clients=64", "--quota-clients=64")
FOR_ALL = ("--unix-group", "{group}")
# Each client may hold half of an arena, so eight attackers would fill the default arena.
FOR_EIGHT = ("--capacity=1000000",)
ATTACKS = {
    "subscriptions-stranger": Attack(outlets.subscribe_as_stranger),
    "subscriptions-member": Attack(outlets.subscribe_as_member),
    "outlets": Attack(outlets.connect_often),
    "unread": Attack(outlets.read_nothing),
    "incarnations": Attack(members.claim_incarnations),
    "slots": Attack(members.take_slots),
    "purgatories": Attack(members.name_purgatories),
    "dropped": Attack(members.drop_clients),
    "dead-fill": Attack(members.fill_and_end, ("--capacity=8192",), says="were dropped to make room"),
    "ids": Attack(operations.use_up_ids),
    "keys64": Attack(operations.register_64_keys),
    "fan": Attack(operations.fire_many_watchers),
    "counting-20": Attack(operations.fire_20_at_counting_watchers),
    "counting-1000": Attack(operations.fire_1000_at_counting_watchers),
    "watermarks": Attack(operations.advance_many_watchers),
    "unhandled": Attack(operations.leave_calls_unhandled),
    "dead-owners": Attack(operations.fire_past_dead_owners, FOR_ALL, is_stranger=True),
    "snapshots": Attack(operations.ask_for_snapshots),
    "ask": Attack(frames.ask_again),
    "refusals": Attack(frames.be_refused_differently),
    "locks": Attack(files.lock_everything, FOR_ALL, kills=1),
    "holds": Attack(files.fill_holds, ("--journal", "{journal}")),
    "connections": Attack(connections.connect_raw),
    "looks": Attack(connections.look_and_leave),
    "stays": Attack(connections.look_for_a_moment),
    "collisions-keys": Attack(collisions.collide_keys),
    "collisions-ids": Attack(collisions.collide_ids),
    "connections-limit": Attack(connections.connect_raw, FEW_CLIENTS, files=400, says="a connection was closed"),
    "midst": Attack(connections.leave_in_the_midst),
    "parts": Attack(connections.send_parts_without_end),
    "large": Attack(connections.hang_in_large_frames),
    "descriptors": Attack(packets.send_descriptors),
    "unix-connections": Attack(connections.connect_packets, transport="unix"),
    "unix-looks": Attack(connections.look_and_leave, transport="unix"),
    "unix-stays": Attack(connections.look_for_a_moment, transport="unix"),
    "unix-midst": Attack(packets.leave_in_the_midst, transport="unix"),
    "unix-parts": Attack(packets.send_parts_without_end, transport="unix"),
    "unix-large": Attack(packets.hang_in_large_frames, transport="unix"),
    "unix-smallest": Attack(packets.send_smallest, transport="unix"),
    "unix-sessions": Attack(packets.show_sessions, transport="unix"),
    "unix-hellos": Attack(packets.greet_in_parts, transport="unix"),
    "unix-unread": Attack(packets.read_nothing, transport="unix"),
    "unread-killed": Attack(crowds.leave_unread_and_die, is_crowd=True),
    "large-crowd": Attack(crowds.hang_in_large_frames),
    "silent": Attack(crowds.stay_silent, files=3_000, is_crowd=True),
    "eight": Attack(crowds.be_eight, FOR_EIGHT, is_crowd=True),
    "unix-eight": Attack(crowds.be_eight, FOR_EIGHT, transport="unix", is_crowd=True),
    "unix-unread-killed": Attack(crowds.leave_packets_unread_and_die, transport="unix", is_crowd=True),
    "unix-parts-crowd": Attack(crowds.hang_in_parts, transport="unix"),
    "unix-continuations": Attack(crowds.continue_nothing, says="a connection was closed", transport="unix"),
    "unix-silent": Attack(crowds.stay_silent_at_packets, files=3_000, transport="unix", is_crowd=True),
    "unix-slots": Attack(members.take_slots, transport="unix"),
    "unix-dropped": Attack(members.drop_clients, transport="unix"),
    "unix-fan": Attack(operations.fire_many_watchers, transport="unix"),
    "unix-watermarks": Attack(operations.advance_many_watchers, transport="unix"),
    "unix-unhandled": Attack(operations.leave_calls_unhandled, transport="unix"),
    "unix-dead-owners": Attack(operations.fire_past_dead_owners, FOR_ALL, transport="unix", is_stranger=True),
    "unix-counting-20": Attack(operations.fire_20_at_counting_watchers, transport="unix"),
    "unix-counting-1000": Attack(operations.fire_1000_at_counting_watchers, transport="unix"),
}
