"""The bytes that one peer sends: libzmq's bytes are understood, and of any other bytes a bounded number is kept."""

from __future__ import annotations

import random

import pytest

from timerd.zmtp.peer import (
    COMMAND,
    COMMAND_SIZE_MAX,
    EASY_SIZE_MAX,
    LONG,
    MORE,
    READ_SIZE,
    SIGNATURE,
    Peer,
    ProtocolError,
    Side,
    head_of,
)

MOST = 100_000
ROUTER = Side(b"ROUTER", (b"DEALER",), MOST)
XPUB = Side(b"XPUB", (b"XSUB",), 64, is_plain=True)


def greeting(mechanism: bytes = b"NULL", version: int = 3) -> bytes:
    """The greeting that a peer with libzmq sends."""
    return SIGNATURE + bytes((version, 1)) + mechanism.ljust(20, b"\0") + bytes(32)


def frame(body: bytes, flags: int = 0) -> bytes:
    return bytes((flags | LONG,)) + len(body).to_bytes(8, "big") + body


def command(name: bytes, rest: bytes = b"") -> bytes:
    body = bytes((len(name),)) + name + rest
    return bytes((COMMAND, len(body))) + body


def of_type(kind: bytes) -> bytes:
    return b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind + b"\x08Identity" + bytes(4)


NULL_HELLO = greeting() + command(b"READY", of_type(b"DEALER"))
PLAIN_HELLO = greeting(b"PLAIN") + command(b"HELLO", b"\x06timerd\x06secret")


def taken(peer: Peer, data: bytes, size: int = READ_SIZE) -> list[bytes]:
    """Feed the bytes as they would be read, at most `size` at a time. Returns the messages."""
    messages: list[bytes] = []
    while data:
        wanted = min(peer.wanted, size)
        if not wanted:
            return messages
        peer.feed(data[:wanted])
        data = data[wanted:]
        while not peer.is_starved:
            if (message := peer.next()) is not None:
                messages.append(message)
    return messages


def ready(side: Side = ROUTER) -> Peer:
    peer = Peer(side)
    if side.is_plain:
        assert taken(peer, PLAIN_HELLO) == [b"secret"]
        peer.admit()
        taken(peer, command(b"INITIATE", of_type(side.peer_types[0])))
    else:
        taken(peer, NULL_HELLO)
    assert peer.is_ready
    peer.out = b""
    return peer


@pytest.mark.parametrize("size", [1, 2, 7, READ_SIZE])
def test_messages_come_out_as_they_went_in_however_they_are_cut(size: int, rng: random.Random) -> None:
    peer = Peer(ROUTER)
    sizes = (0, 1, 255, 256, EASY_SIZE_MAX, EASY_SIZE_MAX + 1, 40_000)
    messages = [rng.randbytes(each) for each in sizes] + [b"last"]
    wire = NULL_HELLO + b"".join(head_of(message) + message for message in messages)
    assert taken(peer, wire, size) == messages


def test_a_plain_peer_is_asked_for_its_session_before_anything_else_is_read() -> None:
    peer = Peer(XPUB)
    assert taken(peer, PLAIN_HELLO) == [b"secret"]
    assert not peer.is_ready and peer.wanted == 0, "bytes are read before the peer is admitted"
    peer.admit()
    assert b"WELCOME" in peer.out
    assert taken(peer, command(b"INITIATE", of_type(b"XSUB")) + head_of(b"\1") + b"\1") == [b"\1"]
    assert b"READY" in peer.out and b"XPUB" in peer.out and peer.is_ready


def test_a_message_without_end_is_refused_part_by_part() -> None:
    """libzmq keeps all parts until the last one has come."""
    peer = ready()
    assert taken(peer, frame(b"part", MORE) * 3 + frame(b"last") + frame(b"whole")) == [b""] * 4 + [b"whole"]


def test_a_ping_is_answered_and_each_of_a_thousand_pings_is_a_step_of_its_own() -> None:
    peer = ready()
    peer.feed(command(b"PING", b"\0\0context") * 1_000)
    steps = 0
    while not peer.is_starved:
        steps += peer.next() is None
        assert peer.out in (command(b"PONG", b"context"), b"")
        peer.out = b""
    assert steps >= 1_000, "the caller may not stop between any two pings"


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "greeting"),
        (greeting(version=1), "greeting"),
        (SIGNATURE + b"\2", "greeting"),
        (greeting(b"PLAIN"), "mechanism b'PLAIN'"),
        (greeting() + command(b"HELLO"), "READY was expected"),
        (greeting() + command(b"READY", of_type(b"SUB")), "b'SUB'"),
        (greeting() + command(b"READY", b"\x0bSocket-Type\xff\xff\xff\xff"), "a property ends"),
        (greeting() + frame(b"message"), "READY was expected"),
        (greeting() + frame(bytes(COMMAND_SIZE_MAX + 1), COMMAND), "at most 512"),
        (greeting() + bytes((COMMAND, 0)), "a command ends"),
        (NULL_HELLO + command(b"READY"), "command b'READY'"),
        (NULL_HELLO + command(b"PING"), "command b'PING'"),
        (NULL_HELLO + bytes((8, 0)), "flags 0x08"),
        (NULL_HELLO + bytes((MORE | COMMAND, 0)), "flags 0x05"),
        (NULL_HELLO + bytes((LONG,)) + b"\xff" * 8, "at most 100,000"),
        (NULL_HELLO + bytes((LONG,)) + (MOST + 1).to_bytes(8, "big"), "100,001 bytes"),
    ],
)
def test_bytes_that_break_the_protocol_are_an_error_that_says_what_was_wrong(wire: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        taken(Peer(ROUTER), wire)


def test_a_large_frame_is_announced_before_its_bytes_are_kept() -> None:
    peer = ready()
    assert peer.large == 0
    head = bytes((LONG,)) + (50_000).to_bytes(8, "big")
    assert taken(peer, head) == []
    assert (peer.large, peer.wanted) == (50_000, 50_000)
    assert taken(peer, bytes(50_000)) == [bytes(50_000)]
    assert (peer.large, peer.wanted) == (0, READ_SIZE)


def test_a_peer_keeps_a_bounded_number_of_bytes_whatever_comes(rng: random.Random) -> None:
    """At most a frame of EASY_SIZE_MAX and one read, or a large frame of its stated size."""
    for _ in range(3_000):
        peer = ready(rng.choice((ROUTER, XPUB))) if rng.random() < 0.7 else Peer(rng.choice((ROUTER, XPUB)))
        sizes = [rng.choice((0, 3, 300, 50_000)) for _ in range(3)]
        wire = bytearray(b"".join(frame(bytes(size), rng.choice((0, MORE, COMMAND))) for size in sizes))
        for _ in range(rng.randrange(4)):
            wire[rng.randrange(min(40, len(wire)))] = rng.randrange(256)
        try:
            taken(peer, bytes(wire), rng.choice((1, 100, READ_SIZE)) if len(wire) < 2_000 else READ_SIZE)
        except ProtocolError:
            continue
        assert peer.large <= MOST and peer.wanted <= max(READ_SIZE, peer.large)
