"""The page of errors: each public error with its base, its code, its cause and its remedy, from the docstrings."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from .sources import ROOT, exported, parsed
from .text import NOTICE, item, sentences, wrapped


class Source(NamedTuple):
    """A module that declares public errors, and the title of their section."""

    path: str
    title: str
    about: str
    public: str = ""  # the module whose __all__ names the public ones; empty: all errors of the module


DECLARED = "shm_layout/timerd_shm/declare/errors.py"
CLIENT = "client/timerd_client/errors.py"
SOURCES = (
    Source(CLIENT, "Of the client", "`import timerd as td` exports these errors: `td.ArenaFullError`.", CLIENT),
    Source(
        DECLARED,
        "Of the daemon and timerctl",
        "These errors end `timerd` or a command of `timerctl`, or stand in the daemon's log behind `refused:`. The "
        "module `timerd_shm.declare.errors` has them.",
    ),
    Source(
        "shm_layout/timerd_shm/read/segment.py",
        "Of readers",
        "The modules `timerd_shm.read.segment` and `timerd_shm.read.reader` have them.",
    ),
    Source("shm_layout/timerd_shm/read/reader.py", "", ""),
    Source(
        "client/timerd_client/delivery/errors.py",
        "Of deliveries",
        "`timerd_client.delivery` exports these errors. [deliveries.md](../howto/deliveries.md) has their use.",
    ),
    Source(
        "timerd/testing/manual/errors.py",
        "Of tests",
        "`timerd.testing` exports these errors. [testing.md](../howto/testing.md) has their use.",
    ),
    Source("timerd/testing/real/daemon.py", "", ""),
)
ENDS = ("Error", "Exception", "Ended", "Expired", "Cancelled", "Failed")  # of the names of errors


class Declared(NamedTuple):
    """An error as its class declares it."""

    name: str
    bases: tuple[str, ...]
    code: str  # the name of its ErrorCode; empty: it has none
    cause: str
    remedy: str
    more: tuple[str, ...]  # further paragraphs of the docstring


def declared_in(path: str) -> dict[str, Declared]:
    """The errors that a module declares, by name, in the order of the module."""
    found = {}
    for node in parsed(ROOT / path).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith(ENDS):
            found[node.name] = _read(node)
    return found


def _read(node: ast.ClassDef) -> Declared:
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", ast.get_docstring(node) or "")]
    cause, remedy = sentences(paragraphs[0])
    rest = paragraphs[1:]
    if not remedy and rest:  # the first sentence alone is the first paragraph
        remedy, rest = rest[0], rest[1:]
    code = next(
        (
            each.value.attr
            for each in node.body
            if isinstance(each, ast.Assign)
            and isinstance(each.value, ast.Attribute)
            and ast.unparse(each.targets[0]) == "code"
        ),
        "",
    )
    return Declared(node.name, tuple(map(ast.unparse, node.bases)), code, cause, remedy, tuple(rest))


def codes() -> dict[str, int]:
    """The number of each ErrorCode."""
    for node in parsed(ROOT / DECLARED).body:
        if isinstance(node, ast.ClassDef) and node.name == "ErrorCode":
            assigned = [each for each in node.body if isinstance(each, ast.Assign)]
            return {ast.unparse(each.targets[0]): ast.literal_eval(each.value) for each in assigned}
    raise ValueError(f"{DECLARED} has no ErrorCode")


def sections() -> dict[str, list[Declared]]:
    """All public errors by the title of their section, each once."""
    declared, of_client = declared_in(DECLARED), declared_in(CLIENT)
    all_of_client = exported(ROOT / CLIENT)
    # A class of the client's module that derives from one of the same name takes its bases and code from that one.
    for name, error in of_client.items():
        if (base := declared.get(name)) is not None:
            of_client[name] = error._replace(bases=base.bases, code=base.code)
    made: dict[str, list[Declared]] = {}
    title = ""
    for source in SOURCES:
        title = source.title or title
        if source.public:
            known = declared | of_client
            found = [known[name] for name in sorted(all_of_client, key=str.lower) if name in known]
        else:
            found = [error for name, error in declared_in(source.path).items() if name not in all_of_client]
        made[title] = [*made.get(title, []), *found]
    return made


INTRODUCTION = """\
# Errors

```py
# catch.py
import timerd as td

with td.connect() as client:
    operation = client.register("inbox/7", timeout=0.1)
    try:
        print(operation.result().unwrap())
    except td.OperationExpired as error:  # also a TimeoutError
        print(error)
    except td.TimerdError as error:  # every other error of timerd, except RequestEnded
        print(type(error).__name__, error)
```

Here is every public error: its base class, its code on the wire, its cause, and its remedy. The text of an error names
the value, the limit and often the command that helps. [troubleshooting.md](../troubleshooting.md) begins with these
texts. [PROTOCOL.md](../../client/PROTOCOL.md) says which frames carry which code.

`result()` and `await` raise no error of an operation: they return an outcome, and `outcome.check()` or
`outcome.unwrap()` raises. `result(timeout)` raises Python's TimeoutError when the caller has waited long enough; then
the operation stays pending. A wrong argument raises at once, before anything is sent.
"""


def page() -> str:
    """The page docs/reference/errors.md."""
    numbers, abouts = codes(), {source.title: source.about for source in SOURCES if source.title}
    lines = [f"<!-- {NOTICE} -->", *INTRODUCTION.splitlines()]
    for title, found in sections().items():
        lines += ["", f"## {title}", "", *wrapped(abouts[title])]
        for error in found:
            bases = ", ".join(f"`{base}`" for base in error.bases)
            code = f"; code {numbers[error.code]}, {error.code}" if error.code and numbers[error.code] else ""
            lines += ["", f"### {error.name}", "", *item(f"Base: {bases}{code}."), *item(f"Cause: {error.cause}")]
            lines += item(f"Remedy: {error.remedy}") if error.remedy else []
            for paragraph in error.more:
                lines += ["", *wrapped(paragraph)]
    return "\n".join([*lines, ""])


PAGES = {"reference/errors.md": page}
