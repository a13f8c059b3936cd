"""Outcomes go only to their client, and nobody can burden the daemon with subscriptions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import zmq

import timerd as td
from support.fakes.networks import World, fire
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.rig.commands import Key, Register
from support.rig.harness import S
from timerd_shm.declare.wire import UpKind
from timerd_wire.outlet import SUBSCRIBE, UNSUBSCRIBE, connect_outlet

KEY = (Key(b"k"),)
MORE_BYTES = 32 << 20
WORK_S = 0.5
TURN_NS = 20_000_000
FLOOD = 100_000  # subscriptions. When one trie had those of all clients, they took 114 MB, and a turn took a second


# real sockets -----------------------------------------------------------------------------------------------------


def assert_unhurt(daemon: Daemon, attack: Callable[[], None]) -> None:
    """Beside an attack a bystander is served, and neither the daemon's memory nor its turns are burdened.

    In a virtual machine, the daemon's CPU time also contains time that the host has taken. So an attack that seems to
    take too much is run again: one of three runs has to stay below the bound.
    """
    process = psutil.Process(daemon.pid)
    before = process.memory_info().rss
    took_s: list[float] = []
    while not took_s or (took_s[-1] >= WORK_S and len(took_s) < 3):
        started = process.cpu_times()
        with td.connect(timeout=PATIENCE_S) as bystander:
            attack()
            assert bystander.register("k", timeout=0).result(PATIENCE_S).state is td.State.EXPIRED
        spent = process.cpu_times()
        took_s.append(spent.user + spent.system - started.user - started.system)
        grown = process.memory_info().rss - before
        assert grown < MORE_BYTES, f"the daemon has grown by {grown:,} bytes"
    assert took_s[-1] < WORK_S, f"the daemon has worked for {took_s} s"


def flood(socket: zmq.Socket[Any]) -> None:
    """Subscribe to FLOOD prefixes, as fast as the socket takes them, for two seconds at most."""
    end = time.monotonic() + 2
    for number in range(FLOOD):
        if time.monotonic() > end:
            return
        socket.send(SUBSCRIBE + number.to_bytes(3, "little") + os.urandom(13))


@contextmanager
def outlet(daemon: Daemon, session: bytes) -> Iterator[zmq.Socket[Any]]:
    """A socket of libzmq at the daemon's outlet, which shows this session."""
    context: zmq.Context[Any] = zmq.Context()
    made = context.socket(zmq.XSUB)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.SNDHWM, 0)
    try:
        connect_outlet(made, daemon.paths.outcomes_endpoint, session)
        yield made
    finally:
        context.destroy(linger=0)


def counter(daemon: Daemon, name: str) -> int:
    return int(daemon.stats()["counters"][name])


@pytest.mark.long
def test_subscriptions_of_a_stranger_are_not_read(daemon: Daemon) -> None:
    def attack() -> None:
        before = counter(daemon, "frames_unknown_session")
        with outlet(daemon, os.urandom(16)) as stranger:
            flood(stranger)
            eventually(lambda: counter(daemon, "frames_unknown_session") > before, "the stranger was not refused")

    assert_unhurt(daemon, attack)


@pytest.mark.long
def test_subscriptions_of_a_client_close_its_outlet_and_harm_no_other_client(daemon: Daemon) -> None:
    def attack() -> None:
        before = counter(daemon, "outlets_shut")
        with td.connect(timeout=PATIENCE_S) as member:
            with outlet(daemon, member._link.protocol.session.secret) as thief:
                flood(thief)
                eventually(lambda: counter(daemon, "outlets_shut") > before, "the outlet was not closed")
            # The client's own outcomes are kept, and arrive after it has connected again.
            assert member.register("k", timeout=0.1).result(PATIENCE_S).state is td.State.EXPIRED

    assert_unhurt(daemon, attack)


# a network in memory ----------------------------------------------------------------------------------------------


def test_a_subscriber_gets_only_its_own_outcomes(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    for mischief in (b"", bytes(16), world.core.topic(alice.slot).to_bytes(8, "little"), bob.session[:15]):
        bob.subscribe(mischief)
    world.settle()
    assert world.counter("frames_unknown_session") == 4
    bob.take_published()
    alice.send(Register(KEY, timeout_ns=S), fire())
    world.settle()
    assert bob.take_published() == []
    assert len(alice.take_published()) == 1


def test_a_message_that_is_no_subscription_closes_the_outlet_and_nothing_is_lost(world: World) -> None:
    """Another prefix, an empty message, rubbish: only this client's outlet is closed.

    Its outcome is kept, and announced when the client is back.
    """
    alice, bob = world.client("alice"), world.client("bob")
    for number, message in enumerate((SUBSCRIBE + b"x", b"", b"\x02", UNSUBSCRIBE + bytes(16)), 1):
        world.network.up_subscriptions.append((bob.slot, message))
        world.settle()
        assert bob.slot not in world.network.outlets and alice.slot in world.network.outlets
        bob.send(Register(KEY, timeout_ns=S), fire())
        alice.send(Register(KEY, timeout_ns=S), fire())
        world.settle()
        assert bob.take_published() == [] and alice.take_published()
        bob.subscribe()
        world.settle()
        assert bob.take_published()[-1].outcome_newest == number
        assert world.counter("outlets_shut") == number


def test_the_newest_connection_that_shows_a_session_has_its_outcomes(world: World) -> None:
    bob, thief = world.client("bob"), -1  # a number that no peer has
    world.network.asking.append((thief, bob.session))  # only bob can do this: nobody else knows his session
    world.settle()
    bob.take_published()
    bob.send(Register(KEY, timeout_ns=S), fire())
    world.settle()
    assert bob.take_published() == [] and len(world.network.published[thief]) == 2
    bob.subscribe()
    world.settle()
    assert bob.take_published()[-1].outcome_newest == 1


def test_the_end_of_a_connection_ends_the_subscription_of_its_client_alone(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    world.network.up_subscriptions.append((bob.slot, UNSUBSCRIBE))
    world.settle()
    for each in (alice, bob):
        each.send(Register(KEY, timeout_ns=S), fire())
    world.settle()
    assert alice.take_published() and not bob.take_published()
    assert world.counter("outlets_shut") == 0


def test_an_outlet_ends_with_its_session(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    world.network.up_subscriptions.append((bob.slot, b"rubbish"))
    world.settle()
    for each in (alice, bob):
        each.say(UpKind.BYE)
    world.settle()
    assert world.network.outlets == {}


def test_outcomes_published_before_a_subscription_are_announced_with_it(world: World) -> None:
    alice = world.client("alice")
    world.network.leave(alice.subscriber)
    alice.send(Register(KEY, timeout_ns=S), fire())
    world.settle()
    assert alice.take_published() == []
    alice.subscribe()
    world.settle()
    report = alice.take_published()[-1]
    assert (report.outcomes, report.outcome_newest) == (0, 1)
    assert report.outcome_first > report.outcome_last, "an empty report covers no outcome"
