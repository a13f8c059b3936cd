"""Packets of a connected socket, and frames that are cut into packets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from timerd_shm.declare.limits import PACKET_SIZE_MAX
from timerd_wire.packets import FRAME, MORE, PART, Joined, Packets, cut


@pytest.fixture
def pair() -> Iterator[tuple[Packets, socket.socket]]:
    """Packets, and the socket at their other end."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packets = Packets(here.detach())
    there.setblocking(False)
    yield packets, there
    packets.close()
    there.close()


@pytest.mark.parametrize("size", [0, 1, 255, 256, PACKET_SIZE_MAX])
def test_a_packet_has_its_kind_and_its_body(pair: tuple[Packets, socket.socket], size: int) -> None:
    packets, there = pair
    body = os.urandom(size)
    assert packets.receive() is None
    assert packets.send(200, body)
    assert there.recv(1 << 20) == b"\xc8" + body
    there.send(b"\xc9" + body)
    there.send(b"\1next")
    assert (packets.receive(), packets.kind) == (body, 201)
    assert (packets.receive(), packets.kind) == (b"next", 1)
    assert packets.receive() is None


@pytest.mark.parametrize("excess", [1, 2, 50_000])
def test_a_packet_that_is_too_large_is_an_error_and_the_next_one_comes(
    pair: tuple[Packets, socket.socket], excess: int
) -> None:
    packets, there = pair
    there.send(bytes(1 + PACKET_SIZE_MAX + excess))
    there.send(b"\1x")
    with pytest.raises(ValueError, match=r"a packet has \d+ bytes"):
        packets.receive()
    assert packets.receive() == b"x"


def test_nothing_of_a_packet_without_room_is_sent(pair: tuple[Packets, socket.socket]) -> None:
    packets, there = pair
    sent = 0
    while packets.send(FRAME, b"%d" % sent):
        sent += 1
    assert not packets.send(FRAME, b"no room")
    assert [there.recv(100) for _ in range(sent)] == [b"\1%d" % number for number in range(sent)]
    with pytest.raises(BlockingIOError):
        there.recv(1)
    assert packets.send(FRAME, b"room")


def test_a_packet_above_the_kernels_size_is_an_error(pair: tuple[Packets, socket.socket]) -> None:
    packets, _ = pair
    with pytest.raises(OSError, match=r"."):
        packets.send(FRAME, bytes(8 << 20))


def test_the_end_comes_behind_the_last_packets(pair: tuple[Packets, socket.socket]) -> None:
    packets, there = pair
    there.send(b"\1a")
    there.send(b"\1b")
    there.close()
    assert (packets.receive(), packets.receive()) == (b"a", b"b")
    for _ in range(2):
        with pytest.raises(ConnectionResetError, match="the other side has ended"):
            packets.receive()
    with pytest.raises(BrokenPipeError):
        packets.send(FRAME, b"x")


@pytest.mark.parametrize("sends", [False, True], ids=["receives", "sends first"])
def test_unread_packets_at_the_other_end_keep_no_packet_back(pair: tuple[Packets, socket.socket], sends: bool) -> None:
    packets, there = pair
    assert packets.send(FRAME, b"unread")
    there.send(b"\1last")
    there.close()
    if sends:
        with pytest.raises(OSError, match=r"."):
            packets.send(FRAME, b"to nobody")
    assert packets.receive() == b"last"
    with pytest.raises(ConnectionResetError, match="the other side has ended"):
        packets.receive()


def test_an_empty_packet_counts_as_the_end(pair: tuple[Packets, socket.socket]) -> None:
    packets, there = pair
    there.send(b"")
    with pytest.raises(ConnectionResetError, match="the other side has ended"):
        packets.receive()


def test_closed_packets_raise_an_error_and_close_nothing_else(pair: tuple[Packets, socket.socket]) -> None:
    packets, _ = pair
    packets.close()
    other = socket.socket()  # this socket gets the same descriptor
    packets.close()
    with pytest.raises(OSError, match=r"."):
        packets.send(FRAME, b"x")
    with pytest.raises(OSError, match=r"."):
        packets.receive()
    assert other.fileno() >= 0 and os.fstat(other.fileno())
    other.close()


def test_dropped_packets_close_their_socket() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        packets = Packets(here.detach())
        packets.close()
        del packets
        assert there.recv(1) == b""


def test_a_frame_is_cut_and_joined_at_every_edge(rng: Any) -> None:
    edge = PACKET_SIZE_MAX - 4
    sizes = [PACKET_SIZE_MAX + 1, edge + PACKET_SIZE_MAX - 1, edge + PACKET_SIZE_MAX, edge + PACKET_SIZE_MAX + 1]
    for size in (*sizes, rng.randrange(PACKET_SIZE_MAX + 1, 1 << 22)):
        frame, joined = os.urandom(size), Joined()
        packets = list(cut(frame))
        assert [kind for kind, _ in packets] == [PART] + [MORE] * (len(packets) - 1)
        assert max(len(body) for _, body in packets) <= PACKET_SIZE_MAX
        for kind, body in packets[:-1]:
            assert joined.take(kind, body) is None and joined.wanted == size
        assert joined.take(*packets[-1]) == frame
        assert joined.wanted == 0
