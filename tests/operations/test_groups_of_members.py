"""DelayedJoin, DelayedSync and DelayedHeartbeat: a group's rebalance, and its members' sessions."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import timerd as td
from support.oracle.manuals import pending
from timerd.testing import Manual
from timerd_client.operations import DelayedHeartbeat, DelayedJoin, DelayedSync, Errors, join_key, member_key, sync_key
from timerd_client.operations.join import Joined


class Group:
    """A coordinator's group."""

    def __init__(self, *known: str) -> None:
        self.known, self.joined, self.synced, self.generation = list(known), list[str](), set[str](), 1


def join(client: td.Client, group: Group, ended: list[Joined], timeout: float = 60, **more: Any) -> DelayedJoin:
    made = DelayedJoin("workers", lambda: group.known, lambda: group.joined, ended.append, **more)
    made.watch(client, timeout=timeout)
    client.flush()
    return made


# joining --------------------------------------------------------------------------------------------------------------


def test_a_join_ends_when_every_known_member_has_joined(client: td.Client, manual: Manual) -> None:
    group, ended = Group("a", "b"), list[Joined]()
    join(client, group, ended)
    for member in ("b", "c"):
        group.joined.append(member)
        assert client.check_and_complete(join_key("workers")) == 0
    group.joined.append("a")
    assert client.check_and_complete(join_key("workers")) == 1
    assert ended == [Joined(["b", "c", "a"], [])] and ended[0].leader == "b"


def test_members_that_do_not_join_in_time_are_removed(client: td.Client, manual: Manual) -> None:
    group, ended = Group("a", "b"), list[Joined]()
    join(client, group, ended)
    group.joined.append("b")
    client.check_and_complete(join_key("workers"))
    manual.advance(60)
    assert ended == [Joined(["b"], ["a"])]
    join(client, Group("a"), ended)
    manual.advance(60)
    assert ended[1:] == [Joined([], ["a"])] and ended[1].leader is None


def test_the_first_rebalance_waits_for_members_that_start_together(client: td.Client, manual: Manual) -> None:
    group, ended = Group(), list[Joined]()
    group.joined.append("a")
    join(client, group, ended, timeout=10, initial_delay=3)
    client.check_and_complete(join_key("workers"))
    manual.advance(2)
    group.joined.append("b")  # b has joined in the first three seconds, so three more seconds follow
    manual.advance(3)
    assert not ended
    manual.advance(1)
    assert ended == [Joined(["a", "b"], [])]
    group, ended = Group(), list[Joined]()
    join(client, group, ended, timeout=7, initial_delay=3)
    for n in range(7):
        assert not ended
        group.joined.append(f"m{n}")
        manual.advance(1)
    assert len(ended) == 1, "the rebalance timeout bounds the join"


def test_a_join_can_be_cancelled_in_its_initial_delay_and_is_done_after_it(client: td.Client, manual: Manual) -> None:
    group, ended = Group(), list[Joined]()
    group.joined.append("a")
    waits = join(client, group, ended, timeout=10, initial_delay=3)
    assert not waits.done()
    manual.advance(3)
    assert waits.settled(30) and ended == [Joined(["a"], [])] and waits.state is td.State.COMPLETED
    waits = join(client, group, ended, timeout=10, initial_delay=3)
    assert waits.cancel_wait() and waits.state is td.State.CANCELLED
    manual.advance(20)
    assert len(ended) == 1


# syncing --------------------------------------------------------------------------------------------------------------


def sync(client: td.Client, group: Group, expired: list[list[str]]) -> DelayedSync:
    made = DelayedSync("workers", 1, ["a", "b"], lambda: group.synced, lambda: group.generation, expired.append)
    made.watch(client, timeout=60)
    client.flush()
    return made


def test_a_sync_ends_when_every_member_has_its_assignment(client: td.Client, manual: Manual) -> None:
    group, expired = Group("a", "b"), list[list[str]]()
    waits = sync(client, group, expired)
    for member in "ab":
        group.synced.add(member)
        client.check_and_complete(sync_key("workers"))
    assert waits.done()
    manual.advance(100)
    assert not expired


def test_members_that_do_not_sync_in_time_cause_a_rebalance(client: td.Client, manual: Manual) -> None:
    group, expired = Group("a", "b"), list[list[str]]()
    sync(client, group, expired)
    group.synced.add("a")
    client.check_and_complete(sync_key("workers"))
    manual.advance(60)
    assert expired == [["b"]]


def test_another_generation_ends_a_sync_without_effect(client: td.Client, manual: Manual) -> None:
    group, expired = Group("a", "b"), list[list[str]]()
    waits = sync(client, group, expired)
    group.generation = 2
    assert client.check_and_complete(sync_key("workers")) == 1 and waits.done()
    late = sync(client, Group(), expired)
    assert not late.done()
    group = Group()
    late = sync(client, group, expired)
    group.generation = 2  # without a check_and_complete()
    manual.advance(60)
    assert expired == [["a", "b"]]


# heartbeats -----------------------------------------------------------------------------------------------------------


def test_a_member_lives_while_its_heartbeats_come(client: td.Client, manual: Manual) -> None:
    expired: list[str] = []
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))
    for _ in range(5):
        manual.advance(9)
        assert session.heartbeat() is Errors.NONE
    manual.advance(9.9)
    assert session.is_alive and not expired
    manual.advance(0.1)
    assert expired == ["7"] and not session.is_alive
    manual.advance(100)
    assert expired == ["7"]


def test_a_heartbeat_of_another_process_counts(client: td.Client, manual: Manual) -> None:
    expired: list[str] = []
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))
    with td.Client() as other:
        for _ in range(5):
            manual.advance(9)
            other.fire(member_key("workers", "7"))
            other.flush()
            manual._driver.settle()
    assert session.is_alive
    manual.advance(10)
    assert expired == ["7"]


def test_in_a_rebalance_a_member_has_the_rebalance_timeout(client: td.Client, manual: Manual) -> None:
    expired: list[str] = []
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))
    assert session.rebalancing(60) is Errors.NONE
    manual.advance(59)
    assert session.heartbeat() is Errors.NONE, "the member has joined: its session timeout counts again"
    manual.advance(9)
    assert not expired
    manual.advance(1)
    assert expired == ["7"]


def test_a_member_that_comes_back_is_unknown_and_one_that_leaves_does_not_expire(
    client: td.Client, manual: Manual
) -> None:
    expired: list[str] = []
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))
    manual.advance(10)
    assert session.heartbeat() is Errors.UNKNOWN_MEMBER_ID and session.rebalancing(9) is Errors.UNKNOWN_MEMBER_ID
    again = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("again"))
    manual.advance(5)
    again.leave()
    manual.advance(100)
    assert expired == ["7"] and again.heartbeat() is Errors.UNKNOWN_MEMBER_ID


def test_an_outage_of_the_daemon_expires_no_member_and_prolongs_no_silence_for_ever(
    client: td.Client, manual: Manual
) -> None:
    expired: list[str] = []
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))
    client.flush()
    manual.stop()
    manual.advance(60)
    assert session.is_alive and not expired
    manual.start()
    manual.advance(25)
    assert expired == ["7"] and not session.is_alive, "a silent member is expired when the daemon is back"


def test_a_member_that_leaves_while_its_heartbeat_is_on_its_way_leaves_nothing(
    client: td.Client, manual: Manual, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired: list[str] = []
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))
    watch = td.Client.try_complete_else_watch

    def and_leaves(self: td.Client, *args: Any, **more: Any) -> Any:
        session.leave()
        return watch(self, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(td.Client, "try_complete_else_watch", and_leaves)
        assert session.heartbeat() is Errors.UNKNOWN_MEMBER_ID
    client.flush()
    assert pending(manual) == 0 and not expired


def test_a_heartbeat_that_the_client_refuses_leaves_the_session_as_it_was(
    client: td.Client, manual: Manual, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired: list[str] = []
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))

    def refuse(*_: Any, **__: Any) -> None:
        raise td.BackpressureError("full")

    manual.advance(5)
    with monkeypatch.context() as patched:
        patched.setattr(td.Client, "try_complete_else_watch", refuse)
        with pytest.raises(td.BackpressureError):
            session.heartbeat()
        assert session.is_alive
        manual.advance(5)
    assert expired == ["7"]
    session = DelayedHeartbeat(client, "workers", "8", 10, lambda: expired.append("8"))
    with monkeypatch.context() as patched, td.Client() as other:
        patched.setattr(td.Client, "try_complete_else_watch", refuse)
        other.fire(member_key("workers", "8"))
        other.flush()
        manual._driver.settle()
    assert expired == ["7", "8"] and not session.is_alive, "the session could not begin again"


def test_a_session_that_the_daemon_refuses_is_over_and_says_why(client: td.Client, manual: Manual) -> None:
    expired: list[str] = []
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))
    waits = session._waits
    assert waits is not None
    waits._delayed._settle(td.State.FAILED, td.InvalidValueError("a timeout that it does not take"))
    assert expired == ["7"] and isinstance(session.error, td.InvalidValueError) and not session.is_alive


def test_a_client_that_is_closed_expires_no_member(manual: Manual) -> None:
    expired: list[str] = []
    client = td.connect()
    session = DelayedHeartbeat(client, "workers", "7", 10, lambda: expired.append("7"))
    client.flush()
    client.close()
    manual.advance(100)
    assert session.is_alive and not expired


# an outage, and the lock ----------------------------------------------------------------------------------------------


def test_a_rebalance_ends_although_the_daemon_is_lost(client: td.Client, manual: Manual) -> None:
    group, ended = Group("a", "b"), list[Joined]()
    waits = join(client, group, ended)
    group.joined.append("a")
    manual.stop()
    manual.advance(62)
    assert ended == [Joined(["a"], ["b"])] and waits.state is td.State.UNAVAILABLE
    manual.start()
    manual.advance(100)
    assert len(ended) == 1


def test_the_functions_of_an_operation_run_with_the_lock_of_its_owner(client: td.Client, manual: Manual) -> None:
    lock = threading.RLock()
    held: list[bool] = []

    def note(*_: object) -> None:
        held.append(lock._is_owned())  # type: ignore[attr-defined]

    def known() -> list[str]:
        note()
        return ["a"]

    DelayedJoin("workers", known, list, note, lock=lock).watch(client, timeout=5)
    DelayedHeartbeat(client, "workers", "7", 5, note, lock=lock)
    client.flush()
    manual.advance(5)
    assert len(held) >= 4 and all(held)
