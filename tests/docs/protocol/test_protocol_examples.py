"""The examples in bytes of PROTOCOL.md: a daemon takes the page's frames up, and sends the page's frames down.

The bytes and the values are read from the page. Their generator gives the client's secrets, and the times.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import msgpack
from support.fakes import networks
from support.fakes.networks import World
from support.real.trees import ROOT
from support.site import generator
from timerd.clients.messages import read_hello, read_query
from timerd.zmtp.peer import Peer, Side
from timerd_client.hot.commands import operation_command
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import fields, size_of, struct_of, unpack
from timerd_shm.declare.states import Condition, Orphans, Outcome
from timerd_shm.declare.wire import (
    CommandFlag,
    CommandHeader,
    CommandKind,
    DownFlag,
    DownKind,
    KeyCommand,
    OperationCommand,
    OutcomeFlag,
    OutcomeRecord,
    RegisterCommand,
    RegisterFlag,
    ReportHeader,
    UpKind,
    WireAnswer,
)
from timerd_wire.outlet import SUBSCRIBE, USER
from timerd_wire.packets import SUBSCRIBE as SUBSCRIBE_PACKET

examples = generator().generate.wire_examples
EXAMPLE = re.compile(r"^\*\*([^*]+)\*\*, (\d+) bytes .*?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UP, DOWN = size_of(CommandHeader), size_of(ReportHeader)
CONNECTION = 1
REGISTER, FIRE = "COMMANDS with a REGISTER", "COMMANDS with a FIRE"
AGAIN, CONFIRMATION, REPORT = "COMMANDS, sent again", "REPORT that confirms", "REPORT with an outcome and an answer"
NOT_FRAMES = {"PLAIN's HELLO", "The subscription", "SUBSCRIBE"}
DOWN_FRAMES = {CONFIRMATION, REPORT, *DownKind.__members__}
REST = (Condition, Outcome, ErrorCode)


class Shown:
    """An example as the page has it."""

    def __init__(self, size: str, block: str) -> None:
        lines = block.splitlines()
        self.data = bytes.fromhex("".join(line[: examples.HEX_WIDTH] for line in lines))
        named = [line[examples.HEX_WIDTH :].strip() for line in lines]
        self.meaning = ", ".join(line for line in named if line)
        assert len(self.data) == int(size)

    @property
    def map(self) -> dict[str, Any]:
        """The values of its map, as the page names them; for bytes their number."""
        entries = self.meaning.partition("a map of ")[2].partition(", ")[2]
        entries = re.sub(r": (\d+) bytes", r": \1", entries).replace(": nil", ": null")
        found: dict[str, Any] = json.loads("{" + entries + "}")
        return found

    def named(self, *records: type[Any]) -> dict[str, str]:
        """The values of the last one of these records, as the page names them. The frame begins with the records."""
        items, start = self.meaning.split(", "), sum(len(fields(record)) for record in records[:-1])
        names = [field.name for field in fields(records[-1])]
        pairs = [item.partition(" ") for item in items[start : start + len(names)]]
        assert [name for name, _, _ in pairs] == names
        return {name: text for name, _, text in pairs}


@pytest.fixture(scope="module")
def page() -> dict[str, Shown]:
    found = EXAMPLE.findall((ROOT / "client/PROTOCOL.md").read_text())
    return {title: Shown(size, block) for title, size, block in found}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A daemon that has the arena and the clock of the page, and will give the session of the page."""
    here = networks.HERE._replace(
        boot_id=examples.BOOT_ID, pid_namespace=examples.PID_NAMESPACE, time_namespace=examples.TIME_NAMESPACE
    )
    monkeypatch.setattr(networks, "HERE", here)
    monkeypatch.setattr(networks, "DAEMON_PID", examples.DAEMON_PID)
    monkeypatch.setattr("timerd.clients.sessions.secrets.token_bytes", lambda size: examples.SESSION[:size])
    return World(incarnation=examples.ARENA).until_quiet()


def at(world: World, time_ns: int) -> None:
    """Let time pass until then. Frames that are published meanwhile are dropped."""
    world.run(time_ns - world.clock.now_ns())
    world.network.published.clear()


def replies(world: World, frame: bytes) -> list[bytes]:
    """The frames with which the daemon answers this one at once, over the same connection."""
    world.network.up.append((CONNECTION, frame))
    world.settle()
    return world.network.answers.pop(CONNECTION, [])


def published(world: World) -> list[bytes]:
    """The frames that were published since the last call."""
    return world.network.published.pop(CONNECTION, [])


def number(text: str, *kinds: type[Any]) -> int:
    """The number for which a value on the page stands. A name is a member of one of these enumerations."""
    if not re.match(r"\d", text):
        return int(next(kind[text] for kind in kinds if text in kind.__members__))
    return int(float(text)) if text.endswith("e9") and not text.startswith("0x") else int(text, 0)


def test_the_page_has_the_examples_of_the_generator(page: dict[str, Shown]) -> None:
    assert {title: each.data for title, each in page.items()} == {e.title: e.data for e in examples.examples()}


def test_a_daemon_plays_the_conversation_of_the_page(page: dict[str, Shown], world: World) -> None:
    data = {title: each.data for title, each in page.items()}
    at(world, examples.HELLO_NS)
    assert replies(world, data["HELLO"]) == [data["WELCOME"]]
    world.network.asking.append((CONNECTION, data["SUBSCRIBE"][1:]))
    world.settle()
    assert published(world)
    at(world, examples.REGISTERED_NS)
    assert replies(world, data[REGISTER]) == []
    at(world, examples.CONFIRMED_NS - 1)
    world.run(1)
    assert published(world) == [data[CONFIRMATION]]
    at(world, examples.FIRED_NS)
    assert data[AGAIN][UP:].startswith(data[FIRE][UP:])
    header = unpack(CommandHeader, data[AGAIN])._replace(first_command=3, count=1)
    assert replies(world, struct_of(CommandHeader).pack(*header) + data[AGAIN][len(data[FIRE]) :]) == [data["EXPECTED"]]
    assert replies(world, data[AGAIN]) == []
    assert published(world) == [data[REPORT]]
    (again,) = replies(world, data["ASK"])
    asked = unpack(ReportHeader, data[REPORT])._replace(flags=DownFlag.ASKED)
    assert again == struct_of(ReportHeader).pack(*asked) + data[REPORT][DOWN:]
    assert replies(world, data["ACK"]) == []
    at(world, examples.ASKED_NS)
    assert replies(world, data["QUERY"]) == [data["RESULT"]]
    unknown = unpack(CommandHeader, data["ACK"])._replace(kind=examples.UNKNOWN_KIND)
    assert replies(world, struct_of(CommandHeader).pack(*unknown)) == [data["ERROR"]]
    assert replies(world, data["BYE"]) == []
    assert replies(world, data["ACK"]) == [data["HELLO_FIRST"]]


def test_the_daemon_reads_the_values_of_maps_that_the_page_names(page: dict[str, Shown]) -> None:
    hello, named = read_hello(page["HELLO"].data), page["HELLO"].map
    assert hello.incarnation == examples.INCARNATION
    read = {**hello._asdict(), "name": hello.name.decode(), "boot_id": len(hello.boot_id)}
    for name in set(named) - {"protocol", "proof"}:
        assert read[name] == named[name], name
    assert read_query(page["QUERY"].data).fields == page["QUERY"].map


@pytest.mark.parametrize("title", ["HELLO", "WELCOME", "QUERY", "RESULT", "ERROR"])
def test_the_maps_are_those_of_msgpack(title: str, page: dict[str, Shown]) -> None:
    data = page[title].data[UP if title in ("HELLO", "QUERY") else DOWN :]
    found = msgpack.unpackb(data)
    assert msgpack.packb(found) == data
    assert {name: len(value) if isinstance(value, bytes) else value for name, value in found.items()} == page[title].map


def test_the_headers_have_the_values_that_the_page_names(page: dict[str, Shown]) -> None:
    for title in set(page) - NOT_FRAMES:
        record: Any = ReportHeader if title in DOWN_FRAMES else CommandHeader
        check(page[title], 0, record)


def test_the_records_have_the_values_that_the_page_names(page: dict[str, Shown]) -> None:
    check(page[REGISTER], UP, CommandHeader, RegisterCommand)
    check(page[FIRE], UP, CommandHeader, KeyCommand)
    check(page[REPORT], DOWN, ReportHeader, OutcomeRecord)
    check(page[REPORT], DOWN + size_of(OutcomeRecord), ReportHeader, OutcomeRecord, WireAnswer)
    cancel = operation_command(CommandKind.CANCEL, 1, flags=CommandFlag.WANTS_ANSWER)
    assert page[AGAIN].data[-size_of(OperationCommand) :] == cancel


def check(shown: Shown, offset: int, *records: type[Any]) -> None:
    """Whether the last one of these records, which stands at `offset`, has the values that the page names."""
    record = records[-1]
    found, named = unpack(record, shown.data, offset), shown.named(*records)
    of_kind = {CommandHeader: UpKind, ReportHeader: DownKind}.get(record, CommandKind)
    names = {"kind": (of_kind,), "orphans": (Orphans,), "flags": (RegisterFlag, OutcomeFlag)}
    for field in fields(record):
        value = getattr(found, field.name)
        assert isinstance(value, bytes) or number(named[field.name], *names.get(field.name, REST)) == value, field.name


def test_the_outlet_takes_the_subscription_of_the_page(page: dict[str, Shown]) -> None:
    side = Side(b"XPUB", (b"XSUB", b"SUB"), message_size_max=64, is_plain=True)
    peer = Peer(side)
    peer.feed(side.greeting())
    assert peer.next() is None
    peer.feed(page["PLAIN's HELLO"].data)
    assert peer.next() == examples.SESSION
    assert USER in page["PLAIN's HELLO"].data
    assert page["The subscription"].data == bytes((0, len(SUBSCRIBE))) + SUBSCRIBE
    assert page["SUBSCRIBE"].data == bytes((SUBSCRIBE_PACKET,)) + examples.SESSION
