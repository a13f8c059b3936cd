"""Wrong arguments raise at once: the error names the argument, the value and the limit."""

from __future__ import annotations

import asyncio
import inspect
import math
import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import Face
from support.real.patience import PATIENCE_S
from timerd.clients.session import client_name
from timerd_client import aio
from timerd_client.arguments import (
    group_of,
    id_hash,
    key_bytes,
    label_of,
    mark_of,
    name_of,
    orphans_of,
    payload_bytes,
    timeout_ns,
    watch,
)
from timerd_client.conditions import ALL, ALL_SETTLED, ANY, When, at_least, total
from timerd_client.errors import (
    ErrorCode,
    InvalidConditionError,
    InvalidKeyError,
    InvalidNameError,
    InvalidValueError,
    KeyTooLongError,
    NotAMemberError,
    OperationFailed,
    PayloadTooLargeError,
    TimeoutOutOfRangeError,
    TimerdUnavailableError,
    TooManyKeysError,
)
from timerd_client.link.flush import unacknowledged
from timerd_client.mark import Mark
from timerd_shm.declare.limits import (
    KEY_SIZE_MAX,
    KEYS_MAX,
    MET_SHIFT,
    NAME_FORM,
    NAME_SIZE_MAX,
    NO_DEADLINE,
    PAYLOAD_SIZE_MAX,
    TIMEOUT_NS_MAX,
)
from timerd_shm.declare.states import Condition, Orphans, Outcome
from timerd_shm.declare.wire import Met
from timerd_wire.refusals import Subject, refusal


@pytest.mark.parametrize(
    ("timeout", "ns"),
    [
        (0, 0),
        (0.0, 0),
        (1, 10**9),
        (0.25, 250_000_000),
        (1e-9, 1),
        (timedelta(seconds=2, microseconds=5), 2_000_005_000),
        (timedelta(days=3650), 3650 * 86_400 * 10**9),
        (TIMEOUT_NS_MAX // 10**9, TIMEOUT_NS_MAX),
        (None, NO_DEADLINE),
    ],
)
def test_timeouts_are_seconds(timeout: Any, ns: int) -> None:
    assert timeout_ns(timeout) == ns


@pytest.mark.parametrize(
    "timeout",
    [-1, -0.001, math.nan, math.inf, -math.inf, 1e300, TIMEOUT_NS_MAX, "5", True, b"1", timedelta(days=-1), 1j],
)
def test_other_timeouts_are_refused_with_their_value(timeout: Any) -> None:
    with pytest.raises(TimeoutOutOfRangeError, match="timeout="):
        timeout_ns(timeout)


@pytest.mark.parametrize("key", ["", b"", 5, None, "\ud800", bytearray(b"k")])
def test_a_key_is_1_to_255_bytes_of_str_or_bytes(key: Any) -> None:
    with pytest.raises(InvalidKeyError):
        key_bytes(key)
    with pytest.raises(InvalidKeyError):
        watch([key], ANY)


def test_the_length_of_a_key_counts_in_bytes() -> None:
    assert len(key_bytes("é" * 127)) == 254
    with pytest.raises(KeyTooLongError, match=f"256 bytes of at most {KEY_SIZE_MAX}"):
        key_bytes("é" * 128)


def test_keys_are_one_or_several_or_a_dict_of_watermarks() -> None:
    assert watch("a", ANY).names == ("a",)
    assert watch(["a", b"b"], ALL)[2:] == (Condition.AT_LEAST, 2, 0)
    assert watch({"a": 5, "b": None}, ANY).encoded == b"\x01\x01" + (5).to_bytes(8, "little") + b"a" + b"\x01\x00b"
    assert watch((key for key in "abc"), at_least(2)).needed == 2
    assert watch(["a", "b"], ALL_SETTLED).condition == Condition.ALL_SETTLED
    assert watch("a", total(7)).total == 7


@pytest.mark.parametrize(
    ("keys", "when", "error"),
    [
        ([], ANY, InvalidKeyError),
        ({}, ALL, InvalidKeyError),
        (["a", "a"], ANY, InvalidKeyError),
        (["a", b"a"], ANY, InvalidKeyError),
        (5, ANY, InvalidKeyError),
        ([["a"]], ANY, InvalidKeyError),
        ([str(index) for index in range(KEYS_MAX + 1)], ANY, TooManyKeysError),
        (["a", "b"], at_least(3), InvalidConditionError),
        ({"a": 1}, total(5), InvalidConditionError),
        ("a", "ALL", InvalidConditionError),
        ({"a": -1}, ANY, InvalidValueError),
        ({"a": 1 << 64}, ANY, InvalidValueError),
        ({"a": 1.5}, ANY, InvalidValueError),
    ],
)
def test_keys_that_cannot_be_watched_are_refused(keys: Any, when: When, error: type[Exception]) -> None:
    with pytest.raises(error):
        watch(keys, when)


def test_wrong_keys_are_refused_with_count_and_remedy() -> None:
    with pytest.raises(TooManyKeysError, match=r"^70 keys, and an operation watches 64 at most"):
        watch([str(index) for index in range(70)], ANY)
    with pytest.raises(TooManyKeysError, match=r"^more keys, and an operation watches 64 at most"):
        watch(map(str, range(70)), ANY)
    with pytest.raises(
        InvalidConditionError, match=r"at_least\(3\) of 2 keys .* give 3 keys or more, or at_least\(2\)"
    ):
        watch(["a", "b"], at_least(3))
    for long in ("x" * 300, b"x" * 300):
        with pytest.raises(KeyTooLongError, match=rf"^key b?'{'x' * 40}'\.\.\. has 300 bytes"):
            key_bytes(long)
    with pytest.raises(KeyTooLongError, match=rf"^id '{'x' * 40}'\.\.\. has 300 bytes"):
        id_hash("x" * 300)


def test_the_error_shows_the_longest_timeout_as_ten_years() -> None:
    with pytest.raises(TimeoutOutOfRangeError, match=r"0 to 316224000 s \(10 years\)"):
        timeout_ns(TIMEOUT_NS_MAX)


@pytest.mark.parametrize("name", ["", "worker 7", "a/b", "漢字", "x" * 32])
def test_a_clients_name_is_a_label(name: str) -> None:
    assert label_of(name) == name


@pytest.mark.parametrize(
    ("name", "says"), [("a\nb", "not printable"), (5, "not printable"), ("漢" * 11, "33 bytes of at most 32")]
)
def test_a_label_that_a_table_cannot_show_is_refused(name: Any, says: str) -> None:
    with pytest.raises(InvalidNameError, match=says):
        label_of(name)


def test_64_keys_are_allowed() -> None:
    assert len(watch([str(index) for index in range(KEYS_MAX)], ALL).names) == KEYS_MAX


@pytest.mark.parametrize("k", [0, -1, 65, 1.0, True, "2"])
def test_at_least_accepts_1_to_64(k: Any) -> None:
    with pytest.raises(InvalidConditionError):
        at_least(k)


@pytest.mark.parametrize("amount", [0, -1, 1 << 64, 1.5])
def test_total_accepts_a_positive_amount(amount: Any) -> None:
    with pytest.raises(InvalidConditionError):
        total(amount)


def test_payloads_are_bytes_of_at_most_64_kib() -> None:
    assert payload_bytes(memoryview(b"abc")) == b"abc"
    assert len(payload_bytes(bytes(PAYLOAD_SIZE_MAX))) == PAYLOAD_SIZE_MAX
    with pytest.raises(PayloadTooLargeError, match=f"65537 bytes; at most {PAYLOAD_SIZE_MAX}"):
        payload_bytes(bytes(PAYLOAD_SIZE_MAX + 1))
    with pytest.raises(InvalidValueError, match="str"):
        payload_bytes("text")


def test_names_ids_and_policies_are_checked() -> None:
    assert name_of("purgatory", "a-b_9") == "a-b_9"
    for name in ("", "A", "a" * 33, "a/b", 5):
        with pytest.raises(InvalidNameError):
            name_of("purgatory", name)
    assert len(id_hash("session/9")) == 16
    assert id_hash("x") == id_hash(b"x")
    for identifier in ("", b"", 5, "\udcff"):
        with pytest.raises(InvalidKeyError):
            id_hash(identifier)
    with pytest.raises(KeyTooLongError):
        id_hash("x" * 256)
    assert orphans_of("group", "web") is Orphans.GROUP
    with pytest.raises(NotAMemberError, match="group=NAME"):
        orphans_of("group", None)
    with pytest.raises(InvalidValueError):
        orphans_of("drop", "web")
    assert (group_of("web"), group_of(None)) == ("web", None)
    with pytest.raises(InvalidNameError, match="group 'Web'"):
        group_of("Web")


def test_a_value_that_is_no_mark_is_refused() -> None:
    assert mark_of(Mark(1, 2, 3)) == Mark(1, 2, 3)
    for since in (5, (1, 2, 3, b""), Mark(1, -1), Mark(1, 1 << 64), Mark(1, 2, -1), Mark(1, "2")):  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError):
            mark_of(since)


def test_marks_conditions_and_failures_can_be_pickled() -> None:
    for value in (Mark(1, 2, 3, b"m"), ANY, total(5)):
        assert pickle.loads(pickle.dumps(value)) == value
    failure = pickle.loads(pickle.dumps(OperationFailed("no", 6, b"v")))
    assert (str(failure), failure.fail_code, failure.value) == ("no", 6, b"v")


def met(what: int, limit: int) -> int:
    return what << MET_SHIFT | limit


@pytest.mark.parametrize(
    ("code", "value", "says"),
    [
        (ErrorCode.ARENA_FULL, met(Met.OPERATIONS, 64), "64 of 64 operations are .* a larger --capacity"),
        (ErrorCode.ARENA_FULL, met(Met.NODES, 64), "64 of 64 watch nodes .* a larger --nodes or --capacity"),
        (ErrorCode.ARENA_FULL, met(Met.WATERMARKS, 64), "64 of 64 watermarks .* `timerctl forget KEY`.* --watermarks"),
        (ErrorCode.ARENA_FULL, met(Met.BLOCKS, 64), "no room in 64 blocks of 112 bytes .* a larger --blocks"),
        (ErrorCode.ARENA_FULL, met(Met.IDS, 64), "64 of 64 ids .* a larger --ids"),
        (ErrorCode.PAYLOAD_TOO_LARGE, met(Met.BLOCKS, 64), "more than the 7168 bytes that this arena has"),
        (ErrorCode.PAYLOAD_TOO_LARGE, 65_536, "65,536 bytes"),
        (ErrorCode.ARENA_FULL, met(99, 64), "Every record of one kind is in use"),  # as a newer daemon may send it
        (ErrorCode.QUOTA_EXCEEDED, met(Met.OPERATIONS, 64), "this client holds 64 operations.* --quota-operations"),
        (ErrorCode.QUOTA_EXCEEDED, met(Met.OUTCOMES, 64), "64 unacknowledged outcomes.* a larger --quota-outcomes"),
        (ErrorCode.QUOTA_EXCEEDED, met(Met.NODES, 64), "this client would hold more than 64 watch .* --quota-nodes"),
        (ErrorCode.QUOTA_EXCEEDED, met(Met.IDS, 64), "64 pending operations with ids.* a larger --quota-ids"),
        (ErrorCode.QUOTA_EXCEEDED, met(Met.WATERMARKS, 64), "64 watermarks.* a larger --quota-watermarks"),
        (ErrorCode.QUOTA_EXCEEDED, met(Met.BYTES, 99), "payload of 100 bytes.* 99 bytes in all; pass .* --quota-bytes"),
        (
            ErrorCode.QUOTA_EXCEEDED,
            met(Met.BYTES, 200),
            "this client holds nearly all of 200 bytes .* a payload of 100 needs more than is left: .* --quota-bytes",
        ),
        (ErrorCode.OPERATION_EXISTS, 0, r"id 'job/7' exists in purgatory 'nightly' \(it is pending\)"),
        (ErrorCode.OPERATION_EXISTS, Outcome.EXPIRED, r"'job/7' exists .* \(it has settled: expired\)"),
        (ErrorCode.UNKNOWN_OPERATION, 0, "no operation of id 'job/7' is pending in purgatory 'nightly'"),
        (ErrorCode.NOT_SUPPORTED, 13, "command 13"),
    ],
)
def test_a_refusal_names_the_limit_that_was_met(code: ErrorCode, value: int, says: str) -> None:
    error = refusal(code, value, Subject("job/7", "nightly", 100))
    assert error.code == code
    assert re.search(says, str(error)), str(error)


def test_every_quota_fits_a_line_of_the_log_with_the_longest_name() -> None:
    name = client_name(4_095, b"x" * NAME_SIZE_MAX, 4_194_304)
    for what in Met:
        about = Subject(holder=name, bytes_held=10**9)
        message = str(refusal(ErrorCode.QUOTA_EXCEEDED, met(what, 10**9), about))
        assert len(message) < 224, f"{len(message)}: {message}"
        assert what in (Met.NOTHING, Met.BLOCKS) or name in message, message


WAITS: dict[str, tuple[Callable[[Face, Any], object], type[Exception], str]] = {
    "wait_for": (
        lambda _, c: c.wait_for(True, "k", timeout=1),
        InvalidValueError,
        "predicate=True is bool: give a function",
    ),
    "try_complete_else_watch": (
        lambda _, c: c.try_complete_else_watch(5, "k", timeout=1),
        InvalidValueError,
        "try_complete=5 is int: give a function",
    ),
    "wait_for no keys": (
        lambda _, c: c.wait_for(bool, 5, timeout=1),
        InvalidKeyError,
        "an iterable of them, or a dict",
    ),
    "try_complete_else_watch no keys": (
        lambda _, c: c.try_complete_else_watch(bool, 5, timeout=1),
        InvalidKeyError,
        "an iterable of them; events on any of them count",
    ),
    "result": (
        lambda _, c: c.register("k", timeout=9).result("x"),
        TimeoutOutOfRangeError,
        "timeout='x': give the time to wait, as seconds or a timedelta",
    ),
    "outcomes of a batch": (
        lambda _, c: c.register_many(["k"], timeout=9).outcomes("1 day"),
        TimeoutOutOfRangeError,
        "timeout='1 day'",
    ),
    "wait": (
        lambda face, c: face.wait([c.register("k", timeout=9)], math.nan),
        TimeoutOutOfRangeError,
        "timeout=nan: give",
    ),
    "flush": (lambda _, c: c.flush(timeout="x"), TimeoutOutOfRangeError, "timeout='x': give"),
    "close": (lambda _, c: c.close(timeout="x"), TimeoutOutOfRangeError, "timeout='x': give"),
    "outcomes": (lambda _, c: c.outcomes(), NotAMemberError, "outcomes() belong to a group, and this client is in no"),
    "call_later": (lambda _, c: c.call_later("n", -1), TimeoutOutOfRangeError, "delay=-1 s is not within 0 to"),
    "call_later for ever": (lambda _, c: c.call_later("n", None), InvalidValueError, "delay=None: "),
    "call_later at": (lambda _, c: c.call_later("n", "soon"), TimeoutOutOfRangeError, "delay='soon' is str"),
    "keys": (lambda _, c: c.register(5, timeout=9), InvalidKeyError, "keys=5 is int: give str, bytes, an iterable"),
    "id": (lambda _, c: c.register("k", timeout=9, id=5), InvalidKeyError, "id=5 is int: give str or bytes"),
    "no such argument of register": (
        lambda _, c: c.register("k", timeout=9, orphan="keep"),
        TypeError,
        "register() has no argument 'orphan'; did you mean 'orphans'? It has 'timeout', ",
    ),
    "no such argument of register_wait": (
        lambda _, c: c.register_wait("k", timeout=9, time_out=1),
        TypeError,
        "register_wait() has no argument 'time_out'; did you mean 'timeout'?",
    ),
    "a private argument": (
        lambda _, c: c.register_wait("k", timeout=9, may_exceed=True),
        TypeError,
        "register_wait() has no argument 'may_exceed'",
    ),
    "no such argument of register for a group": (
        lambda _, c: c.register("k", timeout=9, if_exist="keep", group=True),
        TypeError,
        "register() has no argument 'if_exist'; did you mean 'if_exists'?",
    ),
    "no such argument of register_many": (
        lambda _, c: c.register_many(["k"], timeout=9, payload=b""),
        TypeError,
        "register_many() has no argument 'payload'; did you mean 'payloads'?",
    ),
    "no such argument of register_many_wait": (
        lambda _, c: c.register_many_wait(["k"], timeout=9, id="1"),
        TypeError,
        "register_many_wait() has no argument 'id'; did you mean 'ids'?",
    ),
    "no such argument of a delayed operation": (
        lambda _, c: c.try_complete_else_watch(lambda: True, "k", timeout=9, since=None),
        TypeError,
        "try_complete_else_watch() has no argument 'since'",
    ),
    "no timeout": (lambda _, c: c.register("k"), TypeError, "register() needs the argument 'timeout': timeout=..."),
    "no timeout of many": (lambda _, c: c.register_many_wait(["k"]), TypeError, "register_many_wait() needs the arg"),
    "no timeout of a delayed operation": (
        lambda _, c: c.try_complete_else_watch(bool, "k"),
        TypeError,
        "try_complete_else_watch() needs the argument 'timeout'",
    ),
    "no such argument of Client": (
        lambda face, _: face.make(groups="web"),
        TypeError,
        "Client() has no argument 'groups'; did you mean 'group'?",
    ),
    "no such argument of connect": (
        lambda face, _: face.connect(auto_start=True),
        TypeError,
        "connect() has no argument 'auto_start'; did you mean 'autostart'?",
    ),
    "no such argument of configure": (
        lambda *_: cast(Any, td.configure)(runtime_directory="/"),
        TypeError,
        "configure() has no argument 'runtime_directory'; did you mean 'runtime_dir'?",
    ),
    "since": (
        lambda _, c: c.register("k", timeout=9, since="00-1"),
        InvalidValueError,
        "since='00-1' is str: give a Mark, from client.mark(), outcome.mark or Mark.parse(text)",
    ),
    "group": (lambda _, c: c.register("k", timeout=9, group="web"), InvalidValueError, "group='web'"),
    "ids of a batch": (
        lambda _, c: c.register_many(["a", "b"], timeout=9, ids=["1"]),
        InvalidValueError,
        "1 ids for 2 keys: give one for each",
    ),
    "serve nothing": (lambda _, c: c.serve(), InvalidValueError, "serve() of no calls: give one td.Calls() or more"),
    "purgatory": (lambda _, c: c.purgatory("a b"), InvalidNameError, f"purgatory 'a b' {NAME_FORM}"),
    "fire_together of a key": (
        lambda _, c: c.fire_together_wait(["k"]),
        InvalidValueError,
        "events[0]: 'k': give (purgatory, key, value)",
    ),
}


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.mark.parametrize("call", WAITS)
def test_a_call_names_its_wrong_argument(daemon: Daemon, face: Face, call: str) -> None:
    wrong, error, says = WAITS[call]
    with face.connect(group="web" if call.startswith("call") else None) as client, pytest.raises(error) as raised:
        wrong(face, client)
    assert says in str(raised.value)
    assert call.startswith("call") is False or "no deadline" not in str(raised.value)


def test_events_that_are_fired_together_are_of_one_client(daemon: Daemon) -> None:
    with td.connect() as client, td.connect() as other:
        waits = client.register("k", timeout=PATIENCE_S)
        with pytest.raises(InvalidValueError, match=r"events\[1\]: .*belongs to another client"):
            client.fire_together_wait([(client, "k", b"1"), (other.purgatory("jobs"), "k", b"2")])
        assert client.fire_together_wait([(client.purgatory("jobs"), "k", b"3"), (client, "k", b"4")]) == []
        assert waits.result().value == b"4", "the call that raised had sent something"


@pytest.mark.parametrize("wait", [td.wait, lambda given: list(td.as_completed(given))])
def test_a_thread_does_not_wait_for_operations_of_a_loop(daemon: Daemon, wait: Callable[[Any], Any]) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            with pytest.raises(InvalidValueError, match=r"of an asyncio client: await it, or give it to td.aio.wait"):
                wait([client.register("k", timeout=9)])

    asyncio.run(main())


def test_a_loop_does_not_wait_for_operations_of_a_threaded_client(daemon: Daemon) -> None:
    async def main(operation: td.Operation) -> None:
        with pytest.raises(InvalidValueError, match=r"of a client with threads: await it, or give it to td.wait"):
            await aio.wait([operation])  # type: ignore[type-var]
        with pytest.raises(InvalidValueError, match=r"of a client with threads"):
            async for _ in aio.as_completed([operation]):  # type: ignore[type-var]
                pass

    with td.connect() as client:
        asyncio.run(main(client.register("k", timeout=9)))


def shows_itself(client: Any) -> None:
    operation, batch = client.register("k", timeout=9), client.register_many(["a", "b"], timeout=9)
    assert (repr(operation), repr(batch)) == ("<Operation 'k' PENDING>", "<Batch 0 of 2 settled>")
    for one in (operation, batch):
        with pytest.raises(TypeError, match=r"^(Operation|Batch) belongs to one process, and cannot be pickled"):
            pickle.dumps(one)
    with pytest.raises(IndexError, match=r"^no row 5 in a batch of 2$"):
        batch[5]


def test_an_operation_and_a_batch_show_the_names_that_users_have_for_them(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            shows_itself(client)

    with td.connect() as client:
        shows_itself(client)
    asyncio.run(main())


def test_a_delayed_operation_shows_its_keys_and_its_state(daemon: Daemon) -> None:
    with td.connect() as client:
        delayed = client.try_complete_else_watch(lambda: False, "k", timeout=9)
        assert repr(delayed) == "<DelayedOperation 'k' PENDING>"


def test_a_closed_client_raises_and_names_the_reason(daemon: Daemon) -> None:
    client = td.Client()
    client.close()
    with pytest.raises(td.ClosedError, match=r"^this client is closed: close\(\) was called; make another one"):
        client.fire("k")


def test_a_loops_client_outside_of_a_loop_says_where_it_is_used() -> None:
    with pytest.raises(RuntimeError, match=r"no event loop runs here: use it in what asyncio.run\(\) runs, or take td"):
        aio.Client().fire("k")


def test_the_error_of_a_missing_daemon_has_one_traceback(runtime_dir: Path) -> None:
    with pytest.raises(TimerdUnavailableError) as raised:
        td.connect()
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("decorate", "says"),
    [
        (lambda calls, function: calls.handler(function), '@calls.handler("remind")'),
        (lambda calls, function: calls.every(function), '@calls.every("cleanup", seconds=60)'),
    ],
)
def test_a_decorator_without_brackets_says_how_it_is_written(decorate: Callable[..., Any], says: str) -> None:
    with pytest.raises(InvalidKeyError) as raised:
        decorate(td.Calls(), lambda call: None)
    assert f"in place of the name of a call: write {says}" in str(raised.value)


def test_the_error_counts_commands_in_singular_and_plural() -> None:
    assert [unacknowledged(number) for number in (1, 2)] == [
        "1 command is unacknowledged",
        "2 commands are unacknowledged",
    ]


def test_a_missing_daemon_is_no_error_of_the_operating_system() -> None:
    # If a view raises an OSError, gunicorn believes that the HTTP client's connection is broken, and sends no answer.
    assert not issubclass(TimerdUnavailableError, OSError)


def knobs(call: Callable[..., Any]) -> list[tuple[str, object, Any]]:
    """The parameters of a call without their types, because only the asyncio client accepts coroutine functions."""
    return [(knob.name, knob.kind, knob.default) for knob in inspect.signature(call).parameters.values()]


def test_connect_and_configure_have_the_same_arguments() -> None:
    assert knobs(td.connect) == knobs(aio.connect)
    without = [knob for knob in knobs(td.connect) if knob[0] != "timeout"]
    assert without == knobs(td.configure) == knobs(td.Client) == knobs(aio.Client)


def test_both_faces_have_the_same_calls_with_the_same_arguments() -> None:
    threaded, looped = (
        {name: getattr(face, name) for name in dir(face) if not name.startswith("_")}
        for face in (td.Client, aio.Client)
    )
    assert set(threaded) - set(looped) == {"snapshot"}, "only the threaded client has snapshot(), for timerctl"
    assert set(looped) - set(threaded) == {"room"}, "only the asyncio client has room()"
    calls = {name for name in threaded.keys() & looped if callable(threaded[name])}
    differing = {name for name in calls if knobs(threaded[name]) != knobs(looped[name])}
    assert not differing
