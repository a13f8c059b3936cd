"""Channels over sockets of ZeroMQ, and pollers of descriptors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from support.real.patience import until
from timerd_wire.channel import Channel
from timerd_wire.poller import Poller


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{os.path.relpath(tmp_path)}/s"


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def pair(context: zmq.Context[zmq.Socket[bytes]], address: str) -> Iterator[tuple[Any, Channel]]:
    """A ROUTER of pyzmq, and a channel whose DEALER is connected to it."""
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.bind(address)
    dealer.connect(address)
    channel = Channel(dealer)
    yield router, channel
    channel.close(0)
    router.close(0)


def test_frames_go_both_ways(pair: tuple[Any, Channel]) -> None:
    router, channel = pair
    large = os.urandom(300_000)
    for frame in (b"", b"up", large):
        assert channel.send(frame)
        routing, received = router.recv_multipart()
        assert received == frame
        router.send_multipart([routing, frame + b"!"])
        assert until(channel.receive) == frame + b"!"


def test_nothing_to_receive_is_no_error(pair: tuple[Any, Channel]) -> None:
    _, channel = pair
    assert channel.receive() is None
    assert not channel.events() & zmq.POLLIN


def test_a_socket_shows_whether_it_can_send_or_receive(pair: tuple[Any, Channel]) -> None:
    router, channel = pair
    assert until(lambda: channel.events() & zmq.POLLOUT)
    channel.send(b"x")
    router.send_multipart(router.recv_multipart())
    assert until(lambda: channel.events() & zmq.POLLIN)


def test_a_message_of_several_parts_is_an_empty_frame(pair: tuple[Any, Channel]) -> None:
    router, channel = pair
    channel.send(b"up")
    routing, _ = router.recv_multipart()
    router.send_multipart([routing, b"two", b"parts"])
    router.send_multipart([routing, b"one"])
    received: list[bytes] = []
    while len(received) < 2:
        if (frame := channel.receive()) is not None:
            received.append(frame)
    assert received == [b"", b"one"], "nothing of the first message is left"


def test_a_frame_without_a_receiver_is_not_sent(context: Any, tmp_path: Path) -> None:
    lonely = context.socket(zmq.DEALER)
    lonely.set(zmq.LINGER, 0)
    lonely.set(zmq.IMMEDIATE, 1)
    lonely.connect(f"ipc://{os.path.relpath(tmp_path)}/nobody")
    channel = Channel(lonely)
    assert channel.send(b"x") is False
    channel.close(0)


def test_a_closed_channel_raises(context: Any) -> None:
    channel = Channel(context.socket(zmq.DEALER))
    channel.close(0)
    for call in (channel.receive, channel.events, lambda: channel.send(b"x")):
        with pytest.raises(zmq.ZMQError):
            call()


def test_a_poller_returns_the_readable_descriptors_or_none_after_its_time() -> None:
    poller, bells = Poller(), [os.eventfd(0) for _ in range(3)]
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


def test_a_poller_waits_for_less_than_a_millisecond() -> None:
    # A poller that counts in milliseconds never waits for less than one millisecond. This poller can, but on a slow
    # machine not each time.
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
