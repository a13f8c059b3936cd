"""Every error code, met as a user meets it, from one daemon: by name, with value, limit and remedy."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

import msgpack
import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, stop
from timerd import at_least
from timerd.config.command_line import read_command_line
from timerd.core import Core
from timerd.host.lock import InstanceLock
from timerd_client.hot.commands import KEY_COMMAND_SIZE, REGISTER_SIZE, pack_key, pack_register
from timerd_client.link.questions import query
from timerd_shm.declare.errors import ErrorCode, TimerdError, error_for
from timerd_shm.declare.fields import offset_of, size_of, struct_of
from timerd_shm.declare.limits import KEY_SIZE_MAX, KEYS_MAX, PAYLOAD_SIZE_MAX, WINDOW_COMMANDS_MAX
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.declare.states import Condition, KeyKind
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, CommandKind, RegisterFlag, ReportHeader, UpKind
from timerd_shm.host.paths import InstancePaths, open_arena_file
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.read.reader import ArenaReader

CAPACITY, QUOTA, IDS = 2_048, 1_024, 64


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    directory = Path(tempfile.mkdtemp(prefix="td-"))
    with Daemon(directory, f"--ids={IDS}") as daemon:
        yield daemon
    shutil.rmtree(directory)


@pytest.fixture
def client(served: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[td.Client]:
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(served.paths.directory))
    with td.connect(timeout=PATIENCE_S) as made:
        yield made


Way = Callable[[td.Client, Daemon], object]
WAYS: dict[ErrorCode, tuple[Way, tuple[str, ...]]] = {}


def meets(code: ErrorCode, *words: str) -> Callable[[Way], Way]:
    """Declare how a user meets a code, and words of its message: values, limits, remedies."""

    def declare(way: Way) -> Way:
        assert code not in WAYS
        WAYS[code] = way, words
        return way

    return declare


def refused_frame(daemon: Daemon, version: int) -> TimerdError:
    """The answer to a client of the given version of the protocol."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVTIMEO, int(1e3 * PATIENCE_S))
        socket.connect(daemon.paths.commands_endpoint)
        socket.send(struct_of(CommandHeader).pack(version, UpKind.HELLO, 0, 0, 0, bytes(16), 1, 0, 0))
        answer = msgpack.unpackb(socket.recv()[size_of(ReportHeader) :])
    return error_for(answer["code"], answer["message"])


def arena_file(daemon: Daemon, change: Callable[[bytearray], None]) -> ArenaReader:
    """A reader of a copy of the arena, in which `change` has changed something."""
    descriptor = open_arena_file(daemon.paths)
    copy = bytearray(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    os.close(descriptor)
    change(copy)
    with tempfile.TemporaryFile() as file:
        file.write(copy)
        file.flush()
        return ArenaReader.from_descriptor(os.dup(file.fileno()))


@meets(ErrorCode.MALFORMED, "a command")
def malformed(client: td.Client, _: Daemon) -> None:
    client._ask(pack_key(99, 0, 0, 1, KEY_COMMAND_SIZE + 1, 1, 0, 0) + b"k").answer_in_time(PATIENCE_S)


@meets(ErrorCode.UNSUPPORTED_VERSION, "77", str(PROTOCOL_VERSION))
def unsupported(_: td.Client, daemon: Daemon) -> None:
    raise refused_frame(daemon, 77)


@meets(ErrorCode.NOT_SUPPORTED, "it knows")
def not_supported(client: td.Client, _: Daemon) -> None:
    query(client._link, {"query": "the weather"}).answer_in_time(PATIENCE_S)


@meets(ErrorCode.ARENA_FULL, f"{CAPACITY} of {CAPACITY}", "retry later", "--capacity")
def arena_full(client: td.Client, _: Daemon) -> None:
    with td.connect(timeout=PATIENCE_S) as one, td.connect(timeout=PATIENCE_S) as other:
        for each in (one, other):
            each.register_many(["full"] * QUOTA, timeout=None)
            each.flush()
        client.register_wait("one more", timeout=1)


@meets(ErrorCode.QUOTA_EXCEEDED, f"{QUOTA} operations", "--quota-operations")
def quota(client: td.Client, _: Daemon) -> None:
    client.register_many(["many"] * QUOTA, timeout=None)
    client.register_wait("one more", timeout=1)


@meets(ErrorCode.INVALID_KEY, str(KEY_SIZE_MAX))
def invalid_key(client: td.Client, _: Daemon) -> None:
    client.fire("")


@meets(ErrorCode.KEY_TOO_LONG, "300", str(KEY_SIZE_MAX))
def key_too_long(client: td.Client, _: Daemon) -> None:
    client.register("k" * 300, timeout=1)


@meets(ErrorCode.TOO_MANY_KEYS, "65", str(KEYS_MAX))
def too_many_keys(client: td.Client, _: Daemon) -> None:
    client.register([f"k{n}" for n in range(65)], timeout=1)


@meets(ErrorCode.PAYLOAD_TOO_LARGE, "70000", str(PAYLOAD_SIZE_MAX))
def payload(client: td.Client, _: Daemon) -> None:
    client.register("k", timeout=1, payload=bytes(70_000))


@meets(ErrorCode.TIMEOUT_OUT_OF_RANGE, "-1")
def timeout(client: td.Client, _: Daemon) -> None:
    client.register("k", timeout=-1)


@meets(ErrorCode.OPERATION_EXISTS, "'job'", "pending", "replace")
def exists(client: td.Client, _: Daemon) -> None:
    client.register("k", timeout=None, id="job")
    client.register_wait("k", timeout=None, id="job")


@meets(ErrorCode.UNKNOWN_OPERATION, "'nobody'", "never registered")
def unknown(client: td.Client, _: Daemon) -> None:
    client.reschedule_wait("nobody", 1)


@meets(ErrorCode.MARK_TOO_OLD, "Take a new mark, check, register again")
def mark_too_old(client: td.Client, _: Daemon) -> None:
    mark = client.mark()
    client.fire_many(["old"] * 3_000)
    client.flush()
    client.register("old", timeout=1, since=mark).result(PATIENCE_S).unwrap()


@meets(ErrorCode.TOO_OLD_TO_TELL, "id")
def too_old_to_tell(client: td.Client, _: Daemon) -> None:
    called_ns = time.monotonic_ns()
    for n in range(2 * IDS):
        client.register("k", timeout=0, id=f"done {n}").result(PATIENCE_S)
    with pytest.MonkeyPatch.context() as patch:  # as if the call had been on its way for a long time
        patch.setattr(client._link, "now_ns", lambda: called_ns)
        late = client.register("k", timeout=60, id="late")
    late.result(PATIENCE_S).unwrap()


@meets(ErrorCode.UNAVAILABLE, "nobody", "timerd")
def unavailable(_: td.Client, daemon: Daemon) -> None:
    td.connect("nobody", timeout=0.1)


@meets(ErrorCode.BACKPRESSURE, f"{WINDOW_COMMANDS_MAX}")
def backpressure(client: td.Client, daemon: Daemon) -> None:
    stop(daemon.pid)
    try:
        client.fire_many(["k"] * (WINDOW_COMMANDS_MAX + 1))
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@meets(ErrorCode.CLOSED, "td.client()")
def closed(client: td.Client, _: Daemon) -> None:
    client.close()
    client.fire("k")


@meets(ErrorCode.LAYOUT_MISMATCH, "version")
def layout_mismatch(_: td.Client, daemon: Daemon) -> None:
    def change(arena: bytearray) -> None:
        arena[offset_of(ArenaHeader, "layout_version")] ^= 0x40

    arena_file(daemon, change)


@meets(ErrorCode.ARENA_NOT_READY)
def not_ready(_: td.Client, daemon: Daemon) -> None:
    def change(arena: bytearray) -> None:
        at = offset_of(ArenaHeader, "layout_version")
        arena[at : at + 4] = bytes(4)

    arena_file(daemon, change)


@meets(ErrorCode.ARENA_DAMAGED, "names what is not there", "timerctl check", "timerctl destroy")
def damaged(_: td.Client, daemon: Daemon) -> None:
    descriptor = open_arena_file(daemon.paths)
    try:
        arena = bytearray(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    finally:
        os.close(descriptor)
    at = offset_of(ArenaHeader, "tail")
    arena[at : at + 8] = b"\xff" * 8
    Core(arena, time.monotonic_ns(), bytes(16))


@meets(ErrorCode.ARENA_TRUNCATED, "bytes")
def truncated(_: td.Client, daemon: Daemon) -> None:
    def change(arena: bytearray) -> None:
        del arena[len(arena) // 2 :]

    arena_file(daemon, change)


@meets(ErrorCode.SESSION_GONE, "unknown")
def session_gone(client: td.Client, daemon: Daemon) -> None:
    operation = client.register_wait("k", timeout=None)
    daemon.destroy()
    daemon.start()
    error = operation.result(PATIENCE_S).error
    assert error is not None
    raise error


@meets(ErrorCode.INVALID_NAME, "Not A Name", "[a-z0-9_-]{1,32}")
def invalid_name(client: td.Client, _: Daemon) -> None:
    client.purgatory("Not A Name")


@meets(ErrorCode.INVALID_CONDITION, "3", "2")
def invalid_condition(client: td.Client, _: Daemon) -> None:
    client.register(["a", "b"], timeout=1, when=at_least(3))


@meets(ErrorCode.INSTANCE_RUNNING, "--instance")
def running(_: td.Client, daemon: Daemon) -> None:
    InstanceLock(daemon.paths)


@meets(ErrorCode.INVALID_CONFIG, "--capacity", "3", "16")
def invalid_config(_: td.Client, __: Daemon) -> None:
    read_command_line(["--capacity=3"], {})


@meets(ErrorCode.RESOURCE_LIMIT, "107")
def resource_limit(_: td.Client, __: Daemon) -> None:
    _ = InstancePaths(Path("/tmp") / ("x" * 120), "default").commands_endpoint  # type: ignore[assignment]


@meets(ErrorCode.INVALID_VALUE, "0", "1")
def invalid_value(client: td.Client, _: Daemon) -> None:
    client.fire("k", amount=0)


@meets(ErrorCode.KEY_FAILED, "leader")
def key_failed(client: td.Client, _: Daemon) -> None:
    operation = client.register("leader", timeout=None)
    client.fail("leader", code=6)
    operation.result(PATIENCE_S).unwrap()


@meets(ErrorCode.NOT_A_MEMBER)
def not_a_member(client: td.Client, _: Daemon) -> None:
    flags = RegisterFlag.NO_MARK | RegisterFlag.WANTS_ANSWER | RegisterFlag.FOR_GROUP
    fixed = pack_register(
        CommandKind.REGISTER, 0, flags, REGISTER_SIZE + 3, Condition.AT_LEAST, 1, 1, 0, 0, 0, 10**9, 0, 0, 0
    )
    client._ask(fixed + bytes((1, KeyKind.EVENT)) + b"k").answer_in_time(PATIENCE_S)


@meets(ErrorCode.CHECK_INCOMPLETE, "'looked-at'", "0.2 s", "so far: 0")
def check_incomplete(client: td.Client, _: Daemon) -> None:
    looks, going_on = list[int](), threading.Event()

    def slow() -> bool:
        looks.append(1)
        return len(looks) > 1 and going_on.wait(PATIENCE_S)

    with td.connect(timeout=PATIENCE_S) as owner:
        delayed = owner.try_complete_else_watch(slow, "looked-at", timeout=None)
        owner.flush()
        try:
            client.check_and_complete("looked-at", timeout=0.2)
        finally:
            going_on.set()
            delayed.settled(PATIENCE_S)


def test_each_code_has_a_case_that_meets_it() -> None:
    assert set(WAYS) == set(ErrorCode) - {ErrorCode.NONE} == set(TimerdError.by_code)


@pytest.mark.parametrize("code", WAYS, ids=lambda code: code.name.lower())
def test_each_code_reaches_a_user_as_an_error_with_value_limit_and_remedy(
    code: ErrorCode, client: td.Client, served: Daemon
) -> None:
    way, words = WAYS[code]
    with pytest.raises(TimerdError) as caught:
        way(client, served)
    assert caught.value.code is code, repr(caught.value)
    assert isinstance(caught.value, TimerdError.by_code[code])
    said = str(caught.value)
    missing = [word for word in words if word not in said and word not in said.replace(",", "")]
    assert not missing, f"{said!r} does not say {missing}"
