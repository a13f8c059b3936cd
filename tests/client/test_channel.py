"""Channels and pollers: the compiled ones and those without do the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from timerd_wire.channel import Channel
from timerd_wire.plain_channel import PlainChannel
from timerd_wire.plain_poller import PlainPoller
from timerd_wire.poller import Poller

CHANNELS = (Channel, PlainChannel)
POLLERS = (Poller, PlainPoller)
PATIENCE_S = 10.0


def until(get: Callable[[], Any]) -> Any:
    """What it gives, as soon as it gives something."""
    end = time.monotonic() + PATIENCE_S
    while not (found := get()):
        assert time.monotonic() < end, f"nothing within {PATIENCE_S:g} s"
        time.sleep(0.001)
    return found


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{os.path.relpath(tmp_path)}/s"


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture(params=CHANNELS, ids=("compiled", "plain"))
def pair(request: Any, context: zmq.Context[zmq.Socket[bytes]], address: str) -> Iterator[tuple[Any, Any]]:
    """A ROUTER and a DEALER that is connected to it."""
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.bind(address)
    dealer.connect(address)
    made = request.param(router), request.param(dealer)
    yield made
    for channel in made:
        channel.close(0)


def test_the_compiled_channel_and_poller_are_built() -> None:
    assert Channel.__module__ == "timerd_wire._channel"
    assert Poller.__module__ == "timerd_wire._poller"


def test_frames_go_both_ways(pair: tuple[Any, Any]) -> None:
    router, dealer = pair
    large = os.urandom(300_000)
    for frame in (b"", b"up", large):
        assert dealer.send(frame)
        routing, received = until(router.receive_routed)
        assert received == frame
        assert router.send_routed(routing, frame + b"!")
        assert until(dealer.receive) == frame + b"!"


def test_nothing_to_receive_is_no_error(pair: tuple[Any, Any]) -> None:
    router, dealer = pair
    assert router.receive_routed() is None
    assert dealer.receive() is None
    assert not dealer.events() & zmq.POLLIN


def test_a_socket_shows_whether_it_can_send_or_receive(pair: tuple[Any, Any]) -> None:
    router, dealer = pair
    assert until(lambda: dealer.events() & zmq.POLLOUT)
    dealer.send(b"x")
    assert until(lambda: router.events() & zmq.POLLIN)


def test_a_message_of_another_number_of_parts_is_an_empty_frame(pair: tuple[Any, Any], address: str) -> None:
    router, dealer = pair
    with zmq.Context() as context, context.socket(zmq.DEALER) as other:
        other.connect(address)
        other.send_multipart([b"two", b"parts"])
        routing, frame = until(router.receive_routed)
        assert frame == b""
        other.send(b"one")
        assert until(router.receive_routed) == (routing, b"one"), "nothing of the first is left"
        dealer.send(b"up")
        routing, _ = until(router.receive_routed)
        router._socket.send_multipart([routing, b"two", b"parts"]) if hasattr(router, "_socket") else None
        if hasattr(router, "_socket"):
            assert until(lambda: dealer.receive() == b"")


def test_a_message_of_very_many_parts_is_dropped_in_steps(context: Any, address: str) -> None:
    # A part takes 2 bytes of its peer's: 9 MiB of them, dropped in one call, were a turn of 2.8 s.
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.bind(address)
    dealer.connect(address)
    dealer.send_multipart([b""] * 10_000)
    dealer.send(b"one")
    channel = Channel(router)
    received = [until(channel.receive_routed)]
    while received[-1][1] != b"one":
        received.append(until(channel.receive_routed))
    assert len(received) > 10, f"{10_000 // len(received)} parts are dropped in a call"
    assert {frame for _, frame in received[:-1]} == {b""}
    assert len({routing for routing, _ in received}) == 1, "the sender is known each time"
    channel.close(0)
    dealer.close(0)


def test_a_frame_without_a_receiver_is_not_sent(pair: tuple[Any, Any], context: Any, tmp_path: Path) -> None:
    lonely = context.socket(zmq.DEALER)
    lonely.set(zmq.LINGER, 0)
    lonely.set(zmq.IMMEDIATE, 1)
    lonely.connect(f"ipc://{os.path.relpath(tmp_path)}/nobody")
    channel = type(pair[0])(lonely)
    assert channel.send(b"x") is False
    channel.close(0)


def test_a_closed_channel_raises(pair: tuple[Any, Any], context: Any) -> None:
    channel = type(pair[0])(context.socket(zmq.DEALER))
    channel.close(0)
    for call in (channel.receive, channel.receive_routed, channel.events, lambda: channel.send(b"x")):
        with pytest.raises(zmq.ZMQError):
            call()


@pytest.mark.parametrize("kind", POLLERS)
def test_a_poller_returns_the_readable_descriptors_or_none_after_its_time(kind: Any) -> None:
    poller, bells = kind(), [os.eventfd(0) for _ in range(3)]
    for bell in bells:
        poller.register(bell)
    assert poller.poll(0) == poller.poll(200_000) == []
    os.eventfd_write(bells[1], 1)
    assert poller.poll(5_000_000_000) == [bells[1]]
    poller.unregister(bells[1])
    assert poller.poll(0) == []
    with pytest.raises(KeyError):
        poller.unregister(bells[1])
    for bell in bells:
        os.close(bell)


def test_the_compiled_poller_waits_for_less_than_a_millisecond() -> None:
    # One that counts in milliseconds never does; on a slow machine this one does now and then.
    poller = Poller()
    waited_ns = until(lambda: [waited_ns for _ in range(20) if (waited_ns := _waited_ns(poller, 100_000)) < 1_000_000])
    assert min(waited_ns) >= 100_000


def _waited_ns(poller: Any, timeout_ns: int) -> int:
    began_ns = time.monotonic_ns()
    poller.poll(timeout_ns)
    return time.monotonic_ns() - began_ns


def test_a_poller_with_too_many_descriptors_raises() -> None:
    poller = Poller()
    for _ in range(8):
        poller.register(0)
    with pytest.raises(ValueError, match="8 of 8 descriptors"):
        poller.register(0)


def test_the_sender_of_a_message_is_the_process_that_has_connected(pair: tuple[Any, Any]) -> None:
    router, dealer = pair
    assert router.sender() == ""
    dealer.send(b"frame")
    until(router.receive_routed)
    assert router.sender().rpartition(":")[2] == str(os.getpid())
    assert router.receive_routed() is None
