"""register_many and fire_many: columns in, columns out, and nothing is sent if one row is wrong."""

from __future__ import annotations

from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from timerd import ALL, State
from timerd_client.types import Keys


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


def test_columns_of_outcomes_are_in_the_order_of_the_keys(client: Any) -> None:
    keys = [f"k{index}" for index in range(400)]
    batch = client.register_many(keys, timeout=PATIENCE_S, payloads=[key.encode() for key in keys])
    client.fire_many(keys[::-1], values=[key.encode() for key in keys[::-1]])
    assert batch.values(PATIENCE_S) == [key.encode() for key in keys]
    assert [outcome.payload for outcome in batch.outcomes()] == [key.encode() for key in keys]
    assert set(batch.states()) == {State.COMPLETED}
    assert batch.completed() == len(keys)
    assert client.register_many([], timeout=1).outcomes(0) == []


def test_outcomes_of_a_batch_are_in_the_order_of_its_keys(client: Any) -> None:
    batch = client.register_many(["c0", "c1", "c2"], timeout=[PATIENCE_S, 0.01, PATIENCE_S], payloads=b"same")
    client.fire_many(["c2", "c0"], values=[b"two", b"zero"])
    assert batch.states(PATIENCE_S) == [State.COMPLETED, State.EXPIRED, State.COMPLETED]
    assert batch.values(PATIENCE_S) == [b"zero", b"", b"two"]
    assert batch.completed(PATIENCE_S) == 2


def test_a_batch_counts_events_from_its_mark(client: Any) -> None:
    before = client.mark()
    client.fire("a", value=b"own")
    client.fire_wait("b", value=b"other")
    keys = ["a", "b", "c"]
    since, now = (client.register_many(keys, timeout=0.01, since=mark) for mark in (before, None))
    assert since.values(PATIENCE_S) == [b"own", b"other", b""]
    assert set(now.states(PATIENCE_S)) == {State.EXPIRED}
    assert client.register("a", timeout=PATIENCE_S, since=before).result(PATIENCE_S).value == b"own"
    for wrong in (3, before._replace(sequence=-1), "mark"):
        with pytest.raises(td.InvalidValueError, match="since"):
            client.register_many(keys, timeout=1, since=wrong)


def test_columns_are_copied_and_checked_before_anything_is_sent(client: Any) -> None:
    keys: list[Keys] = ["a", {"w": 5}, ("b", "c"), (name for name in "de")]
    payloads = [b"1", b"2", b"3", b"4"]
    batch = client.register_many(keys, timeout=0.01, payloads=payloads)
    keys.clear()
    payloads.clear()
    assert [(outcome.missing, outcome.payload) for outcome in batch.outcomes(PATIENCE_S)] == [
        (("a",), b"1"),
        (("w",), b"2"),
        (("b", "c"), b"3"),
        (("d", "e"), b"4"),
    ]
    issued = client._protocol.ledger.issued
    for wrong in ("abc", b"abc", {"a": 5}, {"a", "b"}, None, 5, ["a", 5], ["a", ""]):
        for when in (td.ANY, ALL):
            with pytest.raises((td.InvalidKeyError, td.InvalidValueError)):
                client.register_many(wrong, timeout=1, when=when)
        with pytest.raises((td.InvalidKeyError, td.InvalidValueError)):
            client.fire_many(wrong)
    with pytest.raises(td.InvalidConditionError):
        client.register_many(["a"], timeout=1, when="any")
    for timeout in (b"1", "1", [1, 2], [-1], [None, None]):
        with pytest.raises((td.TimeoutOutOfRangeError, td.InvalidValueError)):
            client.register_many(["a"], timeout=timeout)
    for payload in ("x", None, 5, [None], ["x"], [b"x", b"y"]):
        with pytest.raises(td.InvalidValueError):
            client.register_many(["a"], timeout=1, payloads=payload)
        with pytest.raises(td.InvalidValueError):
            client.fire_many(["a"], values=payload)
    assert client._protocol.ledger.issued == issued


def test_a_refused_column_names_the_wrong_row(client: Any) -> None:
    columns: list[Any] = [["a", ""], [["a"], []], ["a", 5]]
    for keys in columns:
        with pytest.raises(td.InvalidKeyError, match=r"^keys\[1\]: "):
            client.register_many(keys, timeout=1)
    with pytest.raises(td.TimeoutOutOfRangeError, match=r"^timeout\[1\]: "):
        client.register_many(["a", "b"], timeout=[1, -1])
    with pytest.raises(td.PayloadTooLargeError, match=r"^payloads\[1\]: "):
        client.register_many(["a", "b"], timeout=1, payloads=[b"", bytes(65_537)])
    with pytest.raises(td.InvalidValueError, match=r"^amounts\[2\]: "):
        client.fire_many(["a", "b", "c"], amounts=[1, 2, 0])
