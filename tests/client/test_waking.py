"""A command wakes the sender if nobody is about to send, or if too many commands have piled up meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from support.fakes.lazies import lazy_of
from support.fakes.no_sockets import NOWHERE, NobodyWaits, new_protocol, no_sockets
from support.real.registries import serve
from timerd_client.groups.membership import Membership
from timerd_client.groups.outcome import issue
from timerd_client.hot.commands import NOTHING
from timerd_client.link import flows
from timerd_client.link.link import Link
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import Reply
from timerd_client.link.questions import ask_purgatory, query
from timerd_client.link.withdrawals import abandon
from timerd_client.threaded.link import drive
from timerd_client.threaded.purgatory import Purgatory


class CountedLink(Link):
    """A link that counts how often it was woken, and sends nothing."""

    WAITERS = NobodyWaits

    def __init__(self) -> None:
        super().__init__(NOWHERE, new_protocol(10**9, "group"), no_sockets(), lambda: 10**9)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


class Alone(Purgatory, Membership[Any]):
    """A client without sockets and without a thread. A call returns as soon as its command is issued."""

    def __init__(self) -> None:
        self.counted = CountedLink()
        super().__init__(cast(Any, lazy_of(self.counted)), "default", ThreadedOperation)
        self._join(self.counted)
        self.operation = self.register("k", timeout=60)

    def _run_handlers(self, link: object, at_once: int) -> None:
        """No handlers run."""


CALLS: dict[str, Callable[[Alone], Any]] = {
    "register": lambda alone: alone.register("k", timeout=1.5),
    "register with an id": lambda alone: alone.register(["k", "j"], timeout=timedelta(seconds=2), id="one"),
    "register and wait": lambda alone: alone._register("k", "register_wait", {"timeout": 1}, Reply(alone.counted)),
    "register_many": lambda alone: alone.register_many(["k", "j"], timeout=1),
    "fire": lambda alone: alone.fire("k"),
    "fire with a bytes key": lambda alone: alone.fire(b"k", amount=1 << 63),
    "fire with a limit": lambda alone: alone.fire("k", limit=1),
    "fire_many": lambda alone: alone.fire_many(["k", "j"]),
    "advance": lambda alone: alone.advance("k", 1),
    "fail": lambda alone: alone.fail("k"),
    "cancel_for_key": lambda alone: alone.cancel_for_key("k"),
    "forget": lambda alone: alone.forget("k"),
    "a command with an answer": lambda alone: alone._ask(NOTHING),
    "reschedule by id": lambda alone: alone._ask_reschedule("one", 1),
    "reschedule": lambda alone: alone.operation.reschedule(1),
    "cancel": lambda alone: alone.operation.cancel(),
    "orphans of an operation": lambda alone: alone.operation.set_orphans("keep"),
    "orphans of all": lambda alone: drive(flows.set_orphans(alone.counted, "keep")),
    "acknowledge": lambda alone: issue(alone.counted, NOTHING),
    "acknowledge with an answer": lambda alone: issue(alone.counted, NOTHING, None, Reply(alone.counted)),
}
QUESTIONS: dict[str, Callable[[Alone], Any]] = {
    "query": lambda alone: query(alone.counted, {"query": "ping"}),
    "purgatory": lambda alone: ask_purgatory(alone.counted, "fetch"),
    "serve": lambda alone: serve(alone, "job", lambda call: None),
}


def prepared(*, idle: bool, alarm_in: int) -> Alone:
    """A client. Without `idle`, another thread is sending. The alarm is due in `alarm_in` commands."""
    alone = Alone()
    alone.counted.idle = idle
    alone.counted.alarm = alone.counted.protocol.ledger.issued + alarm_in
    alone.counted.woken = 0
    return alone


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_command_wakes_the_sender_when_too_many_have_piled_up(call: Callable[[Alone], Any]) -> None:
    alone = prepared(idle=False, alarm_in=1)
    call(alone)
    assert alone.counted.woken == 1


@pytest.mark.parametrize("call", [*CALLS.values(), *QUESTIONS.values()], ids=[*CALLS, *QUESTIONS])
def test_any_issued_command_wakes_the_sender_of_an_idle_link(call: Callable[[Alone], Any]) -> None:
    alone = prepared(idle=True, alarm_in=1_000)
    call(alone)
    assert alone.counted.woken == 1


@pytest.mark.parametrize("call", [*CALLS.values(), *QUESTIONS.values()], ids=[*CALLS, *QUESTIONS])
def test_a_link_that_is_about_to_send_is_not_woken(call: Callable[[Alone], Any]) -> None:
    alone = prepared(idle=False, alarm_in=1_000)
    call(alone)
    assert alone.counted.woken == 0


def test_an_abandoned_operation_wakes_the_sender_when_too_many_commands_have_piled_up() -> None:
    alone = prepared(idle=False, alarm_in=0)  # an operation that was not sent yet is withdrawn without a command
    abandon(alone.counted, [alone.operation.command])
    assert alone.counted.woken == 1
