"""The guarantees of each method of a client, with a real daemon: the same for the threaded and the asyncio client."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import Face
from support.real.patience import PATIENCE_S, eventually
from timerd import ALL, ALL_SETTLED, State, at_least, total
from timerd_client.link import flows
from timerd_client.link.link import Link
from timerd_client.link.questions import query
from timerd_client.one_process import public_name


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> str:
    """An id, or a key, that no other test uses: the tests share a daemon, which remembers ids and watermarks."""
    return str(request.node.name)


def test_an_event_completes_an_operation_with_its_value(client: Any) -> None:
    operation = client.register("inbox/7", timeout=PATIENCE_S, payload=b"mine")
    client.fire("inbox/7", value=b"hello")
    outcome = operation.result(PATIENCE_S)
    assert (outcome.state, outcome.key, outcome.value, outcome.payload) == (
        State.COMPLETED,
        "inbox/7",
        b"hello",
        b"mine",
    )
    assert outcome
    assert outcome.unwrap() == b"hello"


def test_an_operation_without_event_expires_late_never_early(client: Any) -> None:
    start = time.monotonic_ns()
    outcome = client.register("quiet", timeout=0.05).result(PATIENCE_S)
    assert time.monotonic_ns() - start >= 50_000_000
    assert outcome.state is State.EXPIRED
    assert outcome.lateness_ns >= 0
    assert not outcome
    with pytest.raises(td.OperationExpired):
        outcome.unwrap()
    with pytest.raises(TimeoutError):
        outcome.unwrap()


def test_an_own_earlier_event_does_not_complete_a_later_operation(client: Any) -> None:
    for _ in range(200):
        client.fire("session")
        operation = client.register("session", timeout=0.0)
        assert operation.result(PATIENCE_S).state is State.EXPIRED


def test_an_outcome_of_a_quorum_names_the_satisfied_keys(client: Any) -> None:
    operation = client.register(["r1", "r2", "r3"], timeout=PATIENCE_S, when=at_least(2))
    client.fire("r1")
    client.fire("r3")
    outcome = operation.result(PATIENCE_S)
    assert (outcome.satisfied, outcome.missing) == (("r1", "r3"), ("r2",))


def test_watermarks_totals_and_failures_settle_operations(client: Any) -> None:
    offsets = client.register({"p0": 812, "p1": 455}, timeout=PATIENCE_S, when=ALL)
    amount = client.register("topic", timeout=PATIENCE_S, when=total(100))
    settled = client.register(["a", "b"], timeout=PATIENCE_S, when=ALL_SETTLED)
    failing = client.register("leader", timeout=PATIENCE_S)
    client.advance("p0", 900)
    client.advance("p1", 455)
    client.fire("topic", amount=60)
    client.fire("topic", amount=40)
    client.fail("a", code=3)
    client.fire("b")
    client.fail("leader", code=6, value=b"not leader")
    assert offsets.result(PATIENCE_S)
    assert amount.result(PATIENCE_S)
    assert settled.result(PATIENCE_S).failed == ("a",)
    outcome = failing.result(PATIENCE_S)
    assert outcome.state is State.FAILED
    assert isinstance(outcome.error, td.OperationFailed)
    assert (outcome.error.fail_code, outcome.error.value) == (6, b"not leader")


def test_cancel_returns_whether_it_settled_the_operation(client: Any) -> None:
    operation = client.register("k", timeout=None)
    assert operation.cancel_wait() is True
    assert operation.result(0).state is State.CANCELLED
    completed = client.register("k", timeout=None)
    client.fire("k")
    assert completed.cancel_wait() is False


def test_a_deadline_can_be_moved(client: Any, fresh: str) -> None:
    operation = client.register_wait("idle", timeout=PATIENCE_S, id=fresh)
    assert operation.reschedule_wait(60)
    with td.connect() as other:
        assert other.reschedule_wait(fresh, 0.01)
    assert operation.result(PATIENCE_S).state is State.EXPIRED
    assert operation.reschedule_wait(1) is False
    with pytest.raises(td.UnknownOperationError, match="of id 'never' is pending in purgatory 'default'"):
        client.reschedule_wait("never", 1)
    with pytest.raises(td.UnknownOperationError, match="of id 'never' is pending in purgatory 'fetch'"):
        client.purgatory("fetch").cancel_wait("never")


def test_an_id_makes_a_registration_idempotent(client: Any, fresh: str) -> None:
    first = client.register_wait("k", timeout=PATIENCE_S, id=fresh)
    assert client.register("k", timeout=1, id=fresh, if_exists="keep") is first
    refused = client.register("k", timeout=PATIENCE_S, id=fresh).result(PATIENCE_S)
    assert isinstance(refused.error, td.OperationExistsError)
    with pytest.raises(
        td.OperationExistsError, match=rf"id '{re.escape(fresh)}' exists in purgatory 'default' \(it is pending\)"
    ):
        client.register_wait("k", timeout=PATIENCE_S, id=fresh)
    second = client.register("k", timeout=PATIENCE_S, id=fresh, if_exists="replace")
    assert first.result(PATIENCE_S).state is State.CANCELLED
    assert client.cancel_wait(fresh)
    assert second.result(PATIENCE_S).state is State.CANCELLED


def test_two_purgatories_are_independent(client: Any) -> None:
    fetch = client.purgatory("fetch")
    assert client.purgatory("fetch") is fetch
    operation = fetch.register("k", timeout=PATIENCE_S)
    assert client.fire_wait("k") == 0
    assert fetch.fire_wait("k") == 1
    assert operation.result(PATIENCE_S)
    with pytest.raises(td.InvalidNameError):
        client.purgatory("Not a name")


def test_wait_for_sees_the_change_of_another_process(client: Any, tmp_path: Path) -> None:
    row = tmp_path / "row"
    code = f"import timerd as td; open({str(row)!r}, 'w').close(); td.client().fire('orders/42')"
    process = subprocess.Popen([sys.executable, "-c", code])
    assert client.wait_for(row.exists, keys="orders/42", timeout=PATIENCE_S)
    assert process.wait(PATIENCE_S) == 0
    assert client.wait_for(lambda: 0, keys="never", timeout=0.02) == 0


def test_wait_for_never_misses_an_event_between_check_and_registration(client: Any) -> None:
    state = {"rows": 0}

    def check() -> bool:
        if state["rows"] == 0:
            state["rows"] = 1  # another client writes and fires, after this check has seen nothing
            other.fire("rows")
            other.flush()
            return False
        return True

    with td.connect() as other:
        start = time.monotonic()
        assert client.wait_for(check, keys="rows", timeout=PATIENCE_S)
        assert time.monotonic() - start < PATIENCE_S / 2


def test_keys_that_an_iterator_gives_are_watched_after_each_look(client: Any) -> None:
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        return len(looks) == 3

    waited = threading.Thread(target=lambda: client.wait_for(look, (key for key in "ab"), timeout=PATIENCE_S))
    waited.start()
    for number, key in enumerate("ab", 1):
        eventually(lambda key=key: client.fire_wait(key) == 1)  # type: ignore[misc]
        eventually(lambda number=number: len(looks) > number)  # type: ignore[misc]
    waited.join(PATIENCE_S)
    assert len(looks) == 3


def test_the_watermarks_of_any_mapping_are_watched(client: Any, fresh: str) -> None:
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        return len(looks) == 2

    keys = MappingProxyType({fresh: 5})
    waited = threading.Thread(target=lambda: client.wait_for(look, keys, timeout=PATIENCE_S))
    waited.start()
    eventually(lambda: client.stats().waiting == 1)
    client.advance(fresh, 4)
    client.flush()
    assert len(looks) == 1
    client.advance(fresh, 5)
    eventually(lambda: len(looks) == 2)
    waited.join(PATIENCE_S)


def test_a_mark_travels_to_another_process(client: Any) -> None:
    mark = pickle.loads(pickle.dumps(client.mark()))
    with td.connect() as other:
        other.fire_wait("k", value=b"between")
        assert client.register("k", timeout=PATIENCE_S, since=mark).result(PATIENCE_S).value == b"between"
        assert other.register("k", timeout=PATIENCE_S, since=mark).result(PATIENCE_S).value == b"between"


def test_an_id_that_another_client_has_may_be_kept(client: Any, fresh: str) -> None:
    """The new operation settles as KEPT at once. The old one is unchanged, and its owner alone gets its outcome."""
    with td.connect() as other:
        theirs = other.register_wait("k", timeout=60, id=fresh, payload=b"theirs")
        mine = client.register_wait("k", timeout=1, id=fresh, if_exists="keep", payload=b"mine")
        outcome = mine.result(PATIENCE_S)
        assert outcome.state is State.KEPT and not outcome
        batch = client.register_many(["k"], timeout=1, ids=[fresh], if_exists="keep")
        assert batch.states(PATIENCE_S) == [State.KEPT]
        assert not theirs.done()
        client.fire("k")
        assert theirs.result(PATIENCE_S).payload == b"theirs"


def test_a_client_and_a_purgatory_have_names_of_their_own(daemon: Daemon, face: Face) -> None:
    with face.connect(timeout=PATIENCE_S, name="web-1") as client:
        assert (client.name, client.instance, client.group) == ("web-1", "default", None)
        assert client.purgatory("fetch").name == "fetch"


def test_waits_refuse_objects_that_are_no_operations(client: Any, face: Face) -> None:
    batch = client.register_many(["k"], timeout=60)
    for wrong, says in (
        (next(iter(getattr(batch, "_target", batch))), "Row 0 PENDING.*whole batches"),
        (7, "7 is int: give operations"),
    ):
        with pytest.raises(td.InvalidValueError, match=says):
            face.wait([wrong])
        with pytest.raises(td.InvalidValueError, match=says):
            list(face.as_completed([wrong]))
    client.fire("k")
    assert list(face.wait([batch]).done) == [batch] == list(face.as_completed([batch]))


def test_objects_of_one_process_refuse_pickle_and_copy_and_say_what_to_take(client: Any) -> None:
    inside = getattr(client, "_target", client)
    of = {
        "make a client in each process": (inside,),
        "register with id=": (inside.register("k", timeout=1),),
        "register with ids=": (inside.register_many(["k"], timeout=1),),
        "subscribe\\(keys, since=mark\\)": (inside.subscribe("k"),),
    }
    for says, (what,) in of.items():
        for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"{public_name(what)} belongs to one process.*{says}"):
                refuse(what)


def test_a_refused_row_of_a_batch_does_not_hide_the_operation_that_keeps_the_id(client: Any, fresh: str) -> None:
    first = client.register("k", timeout=60, id=fresh)
    (refused,) = client.register_many(["k"], timeout=60, ids=[fresh]).outcomes(PATIENCE_S)
    assert isinstance(refused.error, td.OperationExistsError)
    assert client.register("k", timeout=1, id=fresh, if_exists="keep") is first


def test_a_refused_registration_does_not_hide_the_operation_that_keeps_the_id(client: Any, fresh: str) -> None:
    first = client.register_wait("k", timeout=PATIENCE_S, id=fresh)
    assert isinstance(client.register("k", timeout=1, id=fresh).result(PATIENCE_S).error, td.OperationExistsError)
    assert client.register("k", timeout=1, id=fresh, if_exists="keep") is first


def test_commands_before_a_flush_are_applied(client: Any) -> None:
    with td.connect() as other:
        operation = other.register("flushed", timeout=PATIENCE_S)
        other.flush(timeout=PATIENCE_S)
        client.fire("flushed")
        client.flush(timeout=PATIENCE_S)
        assert operation.result(PATIENCE_S)


def test_the_next_flush_raises_a_refusal(client: Any) -> None:
    client._link.sender.issue(b"\x01" + client._cancel_id_command("never", 0)[1:])  # no daemon can read this command
    with pytest.raises(td.TimerdError, match="a command was refused"):
        client.flush(timeout=PATIENCE_S)
    client.flush(timeout=PATIENCE_S)


def test_set_orphans_ends_no_pending_operation(client: Any) -> None:
    pending = [client.register(f"o{number}", timeout=PATIENCE_S) for number in range(3)]
    client.set_orphans("keep")
    with pytest.raises(td.NotAMemberError):
        client.set_orphans("group")
    for operation in pending:
        assert operation.cancel_wait()
    client.set_orphans("cancel")


def test_after_close_calls_raise_and_pending_operations_have_failed(client: Any) -> None:
    operation = client.register("k", timeout=None)
    client.close()
    assert isinstance(operation.outcome().error, td.ClosedError)
    assert client.closed
    with pytest.raises(td.ClosedError):
        client.fire("k")
    client.close()


def test_a_payload_beyond_the_quota_is_refused_with_its_size_the_limit_and_the_flag(
    make_daemon: Callable[..., Daemon], face: Face
) -> None:
    make_daemon("--quota-bytes=1000")
    with face.connect() as client:
        with pytest.raises(td.QuotaExceededError, match=r"payload of 2000 bytes.* 1000 bytes in all.* --quota-bytes"):
            client.register_wait("k", timeout=1, payload=bytes(2000))
        first, second = client.register_many(["a", "b"], timeout=0.05, payloads=[bytes(600), bytes(700)]).outcomes(30)
        assert first.state is State.EXPIRED
        assert "a payload of 700 needs more than is left" in str(second.error)


def test_a_caller_waits_for_many_operations(client: Any, face: Face) -> None:
    operations = [client.register(f"w{index}", timeout=PATIENCE_S) for index in range(3)]
    client.fire("w1")
    assert operations[1].result(PATIENCE_S)
    done, pending = face.wait(operations[1:], 0.01)
    assert (done, pending) == ([operations[1]], [operations[2]])
    client.fire("w2")
    client.fire("w0")
    assert set(face.as_completed(operations, PATIENCE_S)) == set(operations)
    assert face.wait(operations, PATIENCE_S) == (operations, [])
    with pytest.raises(TimeoutError, match=r"1 of 4 operations have not settled within 0\.01 s"):
        list(face.as_completed([*operations, client.register("never", timeout=None)], 0.01))
    with pytest.raises(TimeoutError, match=r"not settled within 0\.01 s: <\w+ 'late' PENDING>"):
        client.register("late", timeout=5).result(0.01)


def test_settled_operations_are_returned_also_without_any_time_left(client: Any, face: Face) -> None:
    operations = [client.register("now", timeout=PATIENCE_S) for _ in range(3)]
    client.fire("now")
    assert all(operation.result(PATIENCE_S) for operation in operations)
    assert list(face.as_completed(operations, 0)) == operations
    assert face.wait(operations, 0) == (operations, [])
    pending = client.register("never", timeout=None)
    with pytest.raises(TimeoutError, match="1 of 4 operations have not settled within 0 s"):
        list(face.as_completed([pending, *operations], 0))


def test_a_callback_may_fire_and_register_but_not_wait(client: Any) -> None:
    seen: list[object] = []
    again = threading.Event()

    def callback(_: Any) -> None:
        client.fire("second")
        try:
            client.register("other", timeout=1)._wait(None)
        except RuntimeError as error:
            seen.append(error)
        again.set()

    second = client.register("second", timeout=PATIENCE_S)
    client.register("first", timeout=PATIENCE_S).add_done_callback(callback)
    client.fire("first")
    assert second.result(PATIENCE_S)
    assert again.wait(PATIENCE_S)
    assert len(seen) == 1


def test_after_any_exception_of_a_callback_the_others_run_and_the_client_lives(client: Any) -> None:
    first = client.register("k", timeout=PATIENCE_S)
    others = [client.register("k", timeout=PATIENCE_S) for _ in range(3)]
    told = threading.Event()

    def leave(_: Any) -> None:
        raise SystemExit

    first.add_done_callback(leave)
    first.add_done_callback(lambda _: told.set())
    threads = [threading.Thread(target=other.result) for other in others]
    for thread in threads:
        thread.start()
    eventually(lambda: all(other._callbacks for other in others))
    client.fire("k")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert told.wait(PATIENCE_S)
    assert client.fire_wait("k") == 0


@pytest.mark.parametrize("timeout", ["x", float("nan"), True])
def test_a_wrong_timeout_of_connect_is_a_named_error(daemon: Daemon, face: Face, timeout: Any) -> None:
    with pytest.raises(td.TimeoutOutOfRangeError, match="timeout="):
        face.connect(timeout=timeout)


def test_failures_map_each_failed_key_to_its_code(client: Any, fresh: str) -> None:
    a, b, c = (f"{fresh}/{name}" for name in "abc")
    largest = 2**32 - 1
    settles = client.register([a, b, c], timeout=PATIENCE_S, when=td.ALL_SETTLED)
    fails = client.register([a, b], timeout=PATIENCE_S, when=td.at_least(1))
    wide = client.register([a, *(f"{fresh}/{n}" for n in range(60))], timeout=PATIENCE_S, when=td.ALL)
    batch = client.register_many([[a, b, c]] * 3, timeout=PATIENCE_S, when=td.ALL_SETTLED)
    late = client.register({a: 5, b: 1}, timeout=0.3, when=td.ALL_SETTLED)
    client.fail(a, code=3, value=b"v" * 300)
    client.fail(b, code=largest, value=b"not leader")
    client.fire(c, value=b"c" * 50)
    outcome = settles.result(PATIENCE_S)
    assert (outcome.state, outcome.failures, outcome.value) == (State.COMPLETED, {a: 3, b: largest}, b"c" * 50)
    assert (outcome.failed, outcome.satisfied, outcome.error) == ((a, b), (c,), None)
    outcome = fails.result(PATIENCE_S)
    assert (outcome.state, outcome.failures, outcome.value) == (State.FAILED, {a: 3, b: largest}, b"not leader")
    outcome = wide.result(PATIENCE_S)
    assert (outcome.state, outcome.failures, outcome.value) == (State.FAILED, {a: 3}, b"v" * 300)
    assert batch.values(PATIENCE_S) == [b"c" * 50] * 3
    assert [each.failures for each in batch.outcomes(PATIENCE_S)] == [{a: 3, b: largest}] * 3
    assert late.result(PATIENCE_S).failures == {a: 3, b: largest}
    mark = client.mark()
    client.fail(a, code=7)
    client.flush()
    assert client.register([a, b], timeout=0.05, when=td.ALL_SETTLED, since=mark).result(PATIENCE_S).failures == {a: 7}
    assert client.register(a, timeout=0).result(PATIENCE_S).failures == {}


def test_a_groups_outcome_has_the_codes_of_its_failed_keys(daemon: Daemon) -> None:
    with td.connect(group="web", timeout=PATIENCE_S) as client:
        client.register(["a", "b"], timeout=60, when=td.ALL_SETTLED, payload=b"p" * 200, group=True)
        client.fail("a", code=9, value=b"v" * 100)
        client.fire("b", value=b"w")
        for outcome in client.outcomes(timeout=PATIENCE_S):
            assert (outcome.failures, outcome.value, outcome.payload) == ({"a": 9}, b"w", b"p" * 200)
            outcome.ack()
            break


def test_a_watermark_is_asked_for_once_and_then_read(client: Any, fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def asking(link: Link, question: dict[str, Any]) -> Any:
        asked.append(question)
        return query(link, question)

    monkeypatch.setattr(flows, "query", asking)
    keys = [f"{fresh}/{n}" for n in range(3)] + [f"{fresh}/" + "long" * 20]
    assert [client.watermark(key) for key in keys] == [None] * 4
    for n, key in enumerate(keys):
        client.advance(key, 10 + n)
    client.flush()
    assert [client.watermark(key) for key in keys] == [10, 11, 12, 13]
    assert len(asked) == 8
    with td.connect() as other:
        for advanced in range(20, 40):
            other.advance(keys[0], advanced)
            other.flush()
            assert client.watermark(keys[0]) == advanced
        other.advance(keys[0], 2)
        other.flush()
        assert (client.watermark(keys[0]), len(asked)) == (39, 8)
        other.forget(keys[0])
        other.advance(f"{fresh}/another", 7)  # this watermark takes the record that forget() has freed
        other.flush()
    assert client.watermark(keys[0]) is None and len(asked) == 9
    assert client.watermark(f"{fresh}/another") == 7
    assert client.purgatory("other").watermark(keys[1]) is None


@pytest.mark.long
def test_a_watermark_outlives_the_daemon_and_not_the_arena(make_daemon: Any, face: Face) -> None:
    daemon = make_daemon()
    with face.connect(timeout=PATIENCE_S) as client:
        client.advance("p", 5)
        client.flush()
        assert client.watermark("p") == 5
        daemon.kill()
        daemon.start()
        assert client.watermark("p") == 5
        client.advance("p", 6)
        client.flush(timeout=PATIENCE_S)
        assert client.watermark("p") == 6
        daemon.stop()
        daemon.destroy()
        daemon.start()
        client.ready(timeout=PATIENCE_S)
        eventually(lambda: client.watermark("p") is None)
