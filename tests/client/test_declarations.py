"""Declarations that are written once: arguments, and the docstrings of both faces (threaded and asyncio)."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import timerd_client as td
from support.real.trees import ROOT
from timerd_client.declared import BATCH, CLIENT, DELAYED, REGISTRATION, GroupArguments, RegistrationArguments

FACES = (td, td.aio)


def named(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments that are given by name."""
    parameters = inspect.signature(function).parameters
    return {name: one for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def test_help_shows_each_argument_of_a_call_with_its_type_and_its_default() -> None:
    for face in FACES:
        client = face.Client
        for call, declared, own in (
            (client.register, REGISTRATION, {"group"}),
            (client.register_wait, REGISTRATION, set()),
            (client.register_many, BATCH, set()),
            (client.register_many_wait, BATCH, {"receipt_timeout"}),
            (client.try_complete_else_watch, DELAYED, set()),
            (client, CLIENT, set()),
            (face.connect, CLIENT, {"timeout"}),
            (face.configure, CLIENT, set()),
        ):
            shown = {name: one for name, one in named(call).items() if name not in own}
            assert own < named(call).keys()
            assert {name: one.annotation for name, one in shown.items()} == declared.types
            assert {name: one.default for name, one in shown.items()} == declared.defaults
    assert "orphans" in REGISTRATION.types.keys() - GroupArguments.__annotations__.keys()
    assert REGISTRATION.types["timeout"] == "Timeout"
    assert BATCH.types["timeout"] == "Timeout | Sequence[Timeout]"


def test_help_of_register_shows_its_arguments_and_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    for face in FACES:
        help(face.Client.register)
        shown = capsys.readouterr().out
        assert (
            "register(self, keys: 'Keys', *, group: 'bool' = False, timeout: 'Timeout', payload: 'Payload' = b''"
            in (re.sub(r"\s+", " ", shown))
        )
        assert "it completes when its condition holds over `keys`" in shown


def test_every_declared_argument_has_a_docstring() -> None:
    source = inspect.getsource(sys.modules[RegistrationArguments.__module__])
    for declared in (REGISTRATION, BATCH, CLIENT):
        for name in declared.types:
            assert re.search(rf'^    {name}: .+\n    """', source, re.MULTILINE), name


def test_the_page_of_calls_names_the_declared_arguments() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    for call, declared, own in (
        ("client.register", REGISTRATION, {"group"}),
        ("client.register_many", BATCH, set()),
        ("td.Client", CLIENT, set()),
    ):
        found = re.search(rf"`{re.escape(call)}\(\w+, ([^)]*)\)`", page)
        assert found is not None, call
        assert set(found[1].replace("=", "").split(", ")) == declared.types.keys() | own


SNIPPET = """
import timerd_client as td
from timerd_client import aio

def threaded(client: td.Client) -> None:
    reveal_type(client.register("k", timeout=1))
    reveal_type(client.register("k", timeout=1, group=True))
    reveal_type(client.register_wait("k", timeout=1, orphans="keep"))
    reveal_type(client.register_many(["k"], timeout=[1, None]))
    reveal_type(client.try_complete_else_watch(lambda: True, "k", timeout=1))
    reveal_type(client.fire_wait("k"))
    client.register("k", timeout="1")
    client.register("k", timeout=1, orphan="keep")
    client.register_wait("k", timeout=1, when=5)
    client.register_wait("k", timeout=1, orphan="keep")
    client.register_many(["k"], timeout=1, payload=b"")
    client.register_many(["k"])
    td.connect(groups="web")

async def loop(client: aio.Client) -> None:
    reveal_type(client.register("k", timeout=1))
    reveal_type(await client.register_wait("k", timeout=1))
    reveal_type(await client.fire_wait("k"))
    reveal_type(await aio.connect(group="web"))
"""


@pytest.mark.timeout(400)
def test_a_type_checker_knows_each_argument_and_what_a_call_returns() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "-c", SNIPPET],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    lines = [line.removeprefix("<string>:") for line in checked.stdout.splitlines() if " def " not in line]
    found = [re.sub(r"timerd_client\.[a-z_.]+\.", "", line) for line in lines if "defined in" not in line]
    assert found == [
        '6: note: Revealed type is "ThreadedOperation"',
        '7: note: Revealed type is "GroupOperation"',
        '8: note: Revealed type is "ThreadedOperation"',
        '9: note: Revealed type is "ThreadedBatch"',
        '10: note: Revealed type is "DelayedOperation"',
        '11: note: Revealed type is "int"',
        '12: error: No overload variant of "register" of "Surface" matches argument types "str", "str"  '
        "[call-overload]",
        "12: note: Possible overload variants:",
        '13: error: Unexpected keyword argument "orphan" for overloaded function "register" of "Surface"; '
        'did you mean "orphans"?  [call-overload]',
        '13: error: No overload variant of "register" of "Surface" matches argument types "str", "int", "str"  '
        "[call-overload]",
        "13: note: Possible overload variants:",
        '14: error: Argument "when" to "register_wait" of "Purgatory" has incompatible type "int"; expected "When"  '
        "[arg-type]",
        '15: error: Unexpected keyword argument "orphan" for "register_wait" of "Purgatory"; did you mean "orphans"?  '
        "[call-arg]",
        '16: error: Unexpected keyword argument "payload" for "register_many" of "Purgatory"; '
        'did you mean "payloads"?  [call-arg]',
        '17: error: Missing named argument "timeout" for "register_many" of "Purgatory"  [call-arg]',
        '18: error: Unexpected keyword argument "groups" for "connect"; did you mean "group"?  [call-arg]',
        '21: note: Revealed type is "AioOperation"',
        '22: note: Revealed type is "AioOperation"',
        '23: note: Revealed type is "int"',
        '24: note: Revealed type is "Client"',
    ], checked.stdout + checked.stderr


def calls_of(kind: type) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
            yield name, value


PAIRS = [
    (td.Client, td.aio.Client),
    (td.Purgatory, td.aio.Purgatory),
    (td.Operation, td.aio.Operation),
    (td.Batch, td.aio.Batch),
    (td.Subscription, td.aio.Subscription),
    (td.DelayedOperation, td.aio.DelayedOperation),
    (td.GroupOutcome, td.aio.GroupOutcome),
    (td.ScheduledCall, td.aio.ScheduledCall),
]


@pytest.mark.parametrize(("threaded", "loop"), PAIRS, ids=lambda one: one.__name__)
def test_both_faces_have_one_docstring_for_a_call(threaded: type, loop: type) -> None:
    one, other = dict(calls_of(threaded)), dict(calls_of(loop))
    for name in one.keys() & other.keys():
        if one[name] is other[name]:
            continue
        shown = inspect.getdoc(getattr(threaded, name)), inspect.getdoc(getattr(loop, name))
        assert shown[0], f"{threaded.__name__}.{name} says nothing"
        assert shown[0] == shown[1], f"{name} of both faces"
        assert not (one[name].__doc__ and other[name].__doc__), f"the docstring of {name} is written twice"
