"""The public names: what each is, how it is called, and the page that teaches it; and the arguments of calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import errors
from .sources import Found, Function, bases_of, class_named, documented, exported, found, is_there, located
from .text import code, first_sentence, link, table, wrapped

CALLS = "../howto/calls.md"
OPERATIONS = "api.md#operations"
CONVENTIONS = "api.md#conventions"
RESTARTS = "../howto/operating.md#restarts-and-kills"
MEMBER = f"{CALLS}#how-to-an-operation-whose-outcome-goes-to-a-live-member"
# The page that teaches a name, if it is not the page of the name's module.
SEE = {
    **dict.fromkeys(("Batch", "Operation", "Outcome", "Row", "State", "as_completed", "wait", "Until"), OPERATIONS),
    **dict.fromkeys(("ALL", "ALL_SETTLED", "ANY", "When", "at_least", "total"), OPERATIONS),
    **dict.fromkeys(("IfExists", "OrphanPolicy"), OPERATIONS),
    **dict.fromkeys(("Call", "CallExists", "CallInfo", "CallState", "Calls"), CALLS),
    **dict.fromkeys(("GroupOperation", "GroupOutcome"), MEMBER),
    "ScheduledCall": CALLS,
    **dict.fromkeys(("Event", "Gap", "Subscription"), "../howto/subscriptions.md"),
    "ErrorCode": "errors.md",
    "Mark": "../howto/recipes.md",
    "DelayedOperation": "../howto/delayed.md",
    "LinkState": RESTARTS,
    "WhenLost": RESTARTS,
    "Statistics": "../howto/observing.md#metrics",
    "Purgatory": "api.md#several-purgatories-and-all-of-a-client",
    **dict.fromkeys(("Key", "Keys", "Patience", "Payload", "Timeout"), CONVENTIONS),
    **dict.fromkeys(("events", "last_event_id"), "../howto/web.md#server-sent-events"),
    "drain": "../howto/web.md#drain",
    **dict.fromkeys(("Manual", "timerd_manual"), "../howto/testing.md#a-daemon-on-a-manual-clock"),
    **dict.fromkeys(("Daemon", "timerd_daemon", "timerd_session_daemon"), "../howto/testing.md#a-real-daemon"),
    **dict.fromkeys(("Settings",), "../howto/deliveries.md#settings"),
    **dict.fromkeys(("instrument", "uninstrument"), "../howto/observing.md#traces"),
    **dict.fromkeys(("read_journal", "id_hash", "progress"), "../howto/spark-read.md"),
    **dict.fromkeys(("deliver", "await_events", "task_client"), "../howto/spark-tasks.md"),
    **dict.fromkeys(("local_session", "JavaMissingError"), "../../client/timerd_spark/SPARK.md#a-session-to-try-it"),
    **dict.fromkeys(("purgatory", "start", "pending", "late"), "../howto/spark-purgatory.md"),
    **dict.fromkeys(("loadtest", "workload"), "../howto/spark-reports.md#load-test"),
}
# Calls return objects of these classes, and nobody makes one: how is not shown.
NOT_MADE = {
    *("Batch", "Call", "CallInfo", "Connecting", "Delivery", "Event", "Gap", "GroupOperation", "GroupOutcome", "Mark"),
    *("NamedOperation", "Operation", "Outcome", "Purgatory", "Row", "ScheduledCall", "Statistics", "Subscription"),
    "When",
}


class House(NamedTuple):
    """A module with public names."""

    title: str
    module: str
    about: str
    see: str  # the page of its names
    names: tuple[str, ...] = ()  # empty: those of __all__
    beside: str = ""  # a module with names that are the same: only the others are listed


ALL_HOUSES = (
    House(
        "td",
        "timerd_client",
        "`import timerd as td`. Its errors are in [errors.md](errors.md), and the calls of each object in "
        "[api.md](api.md).",
        "api.md#clients",
    ),
    House(
        "td.aio",
        "timerd_client.aio",
        "`from timerd import aio`. It has the names of td; these are asyncio's own:",
        "api.md#clients",
        beside="timerd_client",
    ),
    House(
        "timerd.testing",
        "timerd.testing",
        "For annotations in tests: `from timerd.testing import Daemon, Manual`.",
        "../howto/testing.md",
    ),
    House(
        "Fixtures of pytest",
        "timerd.testing.plugin",
        "pytest knows them where timerd is installed.",
        "../howto/testing.md#clients-of-a-module",
        ("timerd_client", "timerd_daemon", "timerd_manual", "timerd_session_daemon"),
    ),
    House(
        "timerd_client.web",
        "timerd_client.web",
        "For long polls in web applications: `from timerd_client.web import ASGI`.",
        "../howto/web.md",
    ),
    House(
        "timerd_client.web.gunicorn",
        "timerd_client.web.gunicorn",
        "Hooks, in gunicorn.conf.py: `from timerd_client.web.gunicorn import *`.",
        "../howto/web.md#flask-under-gunicorn",
    ),
    House(
        "timerd_client.delivery",
        "timerd_client.delivery",
        "For producers: `from timerd_client.delivery import Producer`.",
        "../howto/deliveries.md",
    ),
    House(
        "timerd_client.delivery.aio",
        "timerd_client.delivery.aio",
        "For producers in asyncio: `from timerd_client.delivery import aio`.",
        "../howto/deliveries.md#with-asyncio",
        ("Producer",),
    ),
    House(
        "timerd_client.metrics",
        "timerd_client.metrics",
        "Needs `pip install 'timerd[metrics]'`.",
        "../howto/observing.md#metrics",
        ("TimerdCollector",),
    ),
    House(
        "timerd_client.tracing",
        "timerd_client.tracing",
        "Needs `pip install 'timerd[tracing]'`.",
        "../howto/observing.md#traces",
        ("instrument", "uninstrument"),
    ),
    House(
        "timerd_client.operations",
        "timerd_client.operations",
        "Kafka's named operations: `from timerd_client.operations import DelayedFetch`.",
        "../howto/operations.md",
    ),
    House(
        "timerd_client.audit.journal",
        "timerd_client.audit.journal",
        "The function that `timerctl journal audit` calls.",
        "audit.md",
        ("audit_journal",),
    ),
    House(
        "timerd_shm.read.journal_reader",
        "timerd_shm.read.journal_reader",
        "To read the files of a journal, with the standard library alone.",
        "journal.md",
        ("JournalReader",),
    ),
    House(
        "timerd_spark",
        "timerd_spark",
        "`import timerd_spark as ts`. Needs `pip install 'timerd[spark]'`.",
        "../howto/spark-reports.md",
    ),
    House(
        "timerd_kafka.testing",
        "timerd_kafka.testing",
        "For annotations in tests. Needs `pip install 'timerd[kafka]'`.",
        "../howto/kafka.md#in-a-test",
    ),
    House(
        "Fixtures of pytest for Kafka",
        "timerd_kafka.testing.plugin",
        "pytest knows them where timerd is installed.",
        "../howto/kafka.md#in-a-test",
        ("kafka_broker", "kafka_session_broker"),
    ),
)

# Those that are there: Spark and Kafka can be deleted.
HOUSES = tuple(house for house in ALL_HOUSES if is_there(house.module))


class Name(NamedTuple):
    """A public name."""

    module: str
    name: str
    shown: str  # with its arguments, if it is called
    about: str  # the first sentence of its docstring; empty: it has none
    see: str


@cache
def public() -> tuple[Name, ...]:
    """All public names, except those of the errors that docs/reference/errors.md has."""
    return tuple(name for house in HOUSES for name in _in(house))


def _in(house: House) -> Iterator[Name]:
    path = located(house.module)
    others = located(house.beside) if house.beside else None
    of_errors = {error.name for section in errors.sections().values() for error in section}
    for name in sorted(house.names or exported(path) - of_errors, key=lambda name: (name.lower(), name)):
        here = found(path, name)
        if others is None or found(others, name)[:2] != here[:2]:
            yield Name(house.module, name, _shown(name, here), _about(here), SEE.get(name, house.see))


def _about(here: Found) -> str:
    """The first sentence of a name's docstring, and its type, if it is the name of one."""
    sentence = first_sentence(here.doc)
    if not isinstance(here.node, ast.AnnAssign) or ast.unparse(here.node.annotation) != "TypeAlias" or not sentence:
        return sentence
    kind = here.node.value
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Literal":
        choices = ast.unparse(kind.slice).strip("()").split(", ")
        return f"{sentence} One of {', '.join(map(code, choices))}."
    return f"{sentence} The type {code(ast.unparse(kind))}." if kind is not None else sentence


# how a name is called -------------------------------------------------------------------------------------------------


def _shown(name: str, here: Found) -> str:
    """A name, with its arguments if callers give some."""
    node = here.node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if any("fixture" in ast.unparse(mark) for mark in node.decorator_list):
            return name
        yields = any(isinstance(each, ast.Yield) for each in ast.walk(node))
        is_awaited = isinstance(node, ast.AsyncFunctionDef) and not yields
        return f"{'await ' if is_awaited else ''}{name}({_arguments(node)})"
    if isinstance(node, ast.ClassDef) and name not in NOT_MADE:
        arguments = _arguments_of(here.path, node)
        return name if arguments is None else f"{name}({arguments})"
    return name


def _arguments_of(path: Path, node: ast.ClassDef) -> str | None:
    """The arguments with which a class is called; None if its own source, and those of its bases, name none."""
    if any(ast.unparse(base) == "NamedTuple" for base in node.bases):
        given = [(field.target, field.value) for field in node.body if isinstance(field, ast.AnnAssign)]
        return ", ".join(_argument(ast.unparse(target), value) for target, value in given)
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return _arguments(each)
    for base in bases_of(path, node):
        if isinstance(base.node, ast.ClassDef) and (inherited := _arguments_of(base.path, base.node)) is not None:
            return inherited
    return None


def _arguments(node: Function) -> str:
    """The arguments of a function: names and plain defaults. An argument with another default ends with `=`."""
    given = node.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    defaults: list[ast.expr | None] = [None] * (len(names) - len(given.defaults)) + list(given.defaults)
    parts = [_argument(name, default) for name, default in zip(names, defaults, strict=True)]
    if names and names[0] in ("self", "cls"):
        del parts[0]
    named = [_argument(one.arg, value) for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        kind = ast.unparse(given.kwarg.annotation) if given.kwarg.annotation else ""
        declared = _declared(kind.removeprefix("Unpack[").removesuffix("]"))
        named += [f"{name}=" for name in declared] or [f"**{given.kwarg.arg}"]
    if given.vararg is not None:
        parts.append(f"*{given.vararg.arg}")
    elif named and not named[0].startswith("**"):
        parts.append("*")
    return ", ".join([*parts, *named])


def _argument(name: str, default: ast.expr | None) -> str:
    if default is None:
        return name
    try:
        ast.literal_eval(default)
    except ValueError:
        return f"{name}="
    return f"{name}={ast.unparse(default)}"


def _declared(kind: str) -> list[str]:
    """The arguments that a typed dictionary of timerd_client.declared has; none if it is no such dictionary."""
    path = located("timerd_client.declared")
    try:
        node = class_named(path, kind)
    except ValueError:
        return []
    return [name for name, _, _ in documented(path, node)]


# pages ----------------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """A section for each module, with a row for each of its names."""
    lines: list[str] = []
    for house in HOUSES:
        lines += [*([""] if lines else []), f"## {house.title}", "", *wrapped(house.about), ""]
        rows = ((code(one.shown), one.about, link(one.see)) for one in public() if one.module == house.module)
        lines += table(("name", "what it is", "more"), rows)
    return lines


# The typed dictionaries of arguments, and the calls that take them.
OF_CALLS = {
    "RegistrationArguments": "`register`, `register_wait`",
    "BatchArguments": "`register_many`, `register_many_wait`",
    "DelayedArguments": "`try_complete_else_watch`",
}


def arguments() -> list[str]:
    """The arguments of calls that register, and of a client: type and meaning."""
    path = located("timerd_client.declared")
    calls: dict[tuple[str, str, str], list[str]] = {}
    for kind, of in OF_CALLS.items():
        for argument in documented(path, class_named(path, kind)):
            calls.setdefault(argument, []).append(of)
    lines = ["### Of calls that register", ""]
    rows = ((code(name), code(kind), doc, ", ".join(of)) for (name, kind, doc), of in calls.items())
    lines += table(("argument", "type", "what it is", "of"), rows)
    lines += ["", "### Of a client", "", "Of `Client`, `connect` and `configure`, after the instance.", ""]
    of_client = documented(path, class_named(path, "ClientArguments"))
    return [*lines, *table(("argument", "type", "what it is"), ((code(a), code(b), doc) for a, b, doc in of_client))]


PARTS = {"reference/names.md": {"names": names, "arguments": arguments}}
