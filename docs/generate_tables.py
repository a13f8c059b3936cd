"""Writes what pages have from the code: the page of errors, tables of sizes and versions, the protocol's examples.

    PYTHONPATH=shm_layout:. python docs/generate_tables.py          writes them
    PYTHONPATH=shm_layout:. python docs/generate_tables.py --check  names stale pages; exit status 1 if there are any

`make generate` calls it. A part of a page that is made stands between two comments: BEGIN and END. Nothing that is
compiled is imported, and errors are read from the sources without an import. The pages are committed, and a test
(tests/docs/operating/test_made_pages.py) compares them with freshly made ones.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from timerd.arena.plan import SIZED_BY, plan_of
from timerd.config.config import KNOBS, Config, dashed
from timerd_shm.declare import journal, layout, wire
from timerd_shm.declare.fields import size_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs"
PROTOCOL = ROOT / "client/PROTOCOL.md"
NOTICE = "Made by docs/generate_tables.py from the code. Do not modify: run `make generate`."
BEGIN = "<!-- {part}: " + NOTICE + " -->"
END = "<!-- end of {part} -->"
WIDTH = 120
MIB = 1 << 20


def beside(name: str) -> ModuleType:
    """A module of this folder. The folder is no package, and is not always in the path."""
    spec = importlib.util.spec_from_file_location(name, PAGES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wire_examples = beside("wire_examples")

# sizes ----------------------------------------------------------------------------------------------------------------

# Capacity, clients and events of the arenas in the table; 0 is the default.
ARENAS = (
    (1_024, 32, 1_024),
    (4_096, 64, 4_096),
    (8_192, 0, 0),
    (32_768, 0, 0),
    (131_072, 0, 0),
    (262_144, 0, 0),
    (524_288, 0, 0),
    (1_048_576, 0, 0),
    (1_048_576, 1_024, 262_144),
    (4_194_304, 1_024, 1_048_576),
    (16_777_216, 4_096, 1_048_576),
)


def config_of(capacity: int, clients: int, ring_events: int) -> Config:
    """A row of ARENAS as a configuration."""
    config = Config(capacity=capacity)
    return config._replace(clients=clients or config.clients, ring_events=ring_events or config.ring_events)


def sizes() -> list[str]:
    """The bytes of a record of each kind, and the sizes of some arenas."""
    lines = ["| knob | default | bytes for each |", "|---|---|---:|"]
    for region, name in SIZED_BY.items():
        default = KNOBS[name].show(Config._field_defaults[name]).strip("()")
        default = f"{int(default):,}" if default.isdecimal() else default
        lines.append(f"| `--{dashed(name)}` | {default} | {size_of(layout.REGION_RECORDS[region])} |")
    lines += [
        "",
        "| `--capacity` | `--clients` | `--ring-events` | bytes of shared memory | MiB |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in ARENAS:
        config = config_of(*row)
        size = plan_of(config).size
        is_default = config == Config()
        numbers = [f"{number:,}" for number in (config.capacity, config.clients, config.ring_events, size)]
        cells = [f"**{cell}**" if is_default else cell for cell in (*numbers, f"{size / MIB:,.1f}")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


# versions -------------------------------------------------------------------------------------------------------------


def versions() -> list[str]:
    """The versions of layout, protocol and journal, and what each of them is compatible with."""
    older = sorted({version for version, _ in journal.OLDER})
    read = f"{older[0]} to {older[-1]}" if len(older) > 1 else str(older[0])
    return [
        "| | this version | works with | with any other version |",
        "|---|---|---|---|",
        f"| layout of the arena | {layout.LAYOUT_VERSION} | layout {layout.LAYOUT_VERSION} with fingerprint "
        f"0x{layout.fingerprint():08x} alone | the daemon does not start (exit status 5); a client goes on without a "
        "map of the arena; `timerctl` refuses to read it |",
        f"| protocol | {wire.PROTOCOL_VERSION} | protocol {wire.PROTOCOL_VERSION} alone | the client gets "
        "UnsupportedVersionError; its commands wait |",
        f"| journal | {journal.JOURNAL_VERSION} | written: {journal.JOURNAL_VERSION} alone; read: {read} as well; "
        f"audited by `timerctl`: {journal.JOURNAL_VERSION} alone | the daemon begins a new segment; readers raise "
        "JournalError |",
    ]


# errors ---------------------------------------------------------------------------------------------------------------


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
        "These errors end `timerd` or a command of `timerctl`, or stand in the daemon's log behind `refused:`. A "
        "client raises MalformedError, too, for a wrong answer of a daemon, and `td.TimerdError` catches it. The "
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


def body_of(path: str) -> list[ast.stmt]:
    return ast.parse((ROOT / path).read_text()).body


def assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """The values that a module or a class assigns, by name."""
    return {ast.unparse(each.targets[0]): each.value for each in body if isinstance(each, ast.Assign)}


def declared_in(path: str) -> dict[str, Declared]:
    """The errors that a module declares, by name, in the order of the module."""
    classes = (node for node in body_of(path) if isinstance(node, ast.ClassDef) and node.name.endswith(ENDS))
    return {node.name: _read(node) for node in classes}


def _read(node: ast.ClassDef) -> Declared:
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", ast.get_docstring(node) or "")]
    cause, _, remedy = _sentences(paragraphs[0])
    rest = paragraphs[1:]
    if not remedy and rest:  # the first sentence alone is the first paragraph
        remedy, rest = rest[0], rest[1:]
    code = assigned(node.body).get("code")
    name = code.attr if isinstance(code, ast.Attribute) else ""
    return Declared(node.name, tuple(map(ast.unparse, node.bases)), name, cause, remedy, tuple(rest))


def _sentences(paragraph: str) -> tuple[str, str, str]:
    """The first sentence of a paragraph, and the others."""
    return re.sub(r"(?<=\.) (?=[A-Z`])", "\0", paragraph, count=1).partition("\0")


def exported(path: str) -> set[str]:
    """The names in a module's __all__."""
    return set(ast.literal_eval(assigned(body_of(path))["__all__"]))


def codes() -> dict[str, int]:
    """The number of each ErrorCode."""
    (kinds,) = (node for node in body_of(DECLARED) if isinstance(node, ast.ClassDef) and node.name == "ErrorCode")
    return {name: ast.literal_eval(value) for name, value in assigned(kinds.body).items()}


def errors() -> dict[str, list[Declared]]:
    """All public errors by the title of their section, each once."""
    declared, of_client = declared_in(DECLARED), declared_in(CLIENT)
    all_of_client = exported(CLIENT)
    # A class of the client's module that derives from one of the same name takes its bases and code from that one.
    for name, error in of_client.items():
        if (base := declared.get(name)) is not None:
            of_client[name] = error._replace(bases=base.bases, code=base.code)
    sections: dict[str, list[Declared]] = {}
    title = ""
    for source in SOURCES:
        title = source.title or title
        if source.public:
            known = declared | of_client
            found = [known[name] for name in sorted(all_of_client, key=str.lower) if name in known]
        else:
            found = [error for name, error in declared_in(source.path).items() if name not in all_of_client]
        sections[title] = [*sections.get(title, []), *found]
    return sections


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


def errors_page() -> str:
    """The page docs/reference/errors.md."""
    numbers, abouts = codes(), {source.title: source.about for source in SOURCES if source.title}
    lines = [f"<!-- {NOTICE} -->", *INTRODUCTION.splitlines()]
    for title, found in errors().items():
        lines += ["", f"## {title}", "", *wrapped(abouts[title])]
        for error in found:
            bases = ", ".join(f"`{base}`" for base in error.bases)
            code = f"; code {numbers[error.code]}, {error.code}" if error.code and numbers[error.code] else ""
            lines += ["", f"### {error.name}", "", *item(f"Base: {bases}{code}."), *item(f"Cause: {error.cause}")]
            lines += item(f"Remedy: {error.remedy}") if error.remedy else []
            for paragraph in error.more:
                lines += ["", *wrapped(paragraph)]
    return "\n".join([*lines, ""])


def wrapped(text: str, indent: str = "") -> list[str]:
    """A paragraph in lines."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> list[str]:
    """An item of a list in lines."""
    return wrapped(f"* {text}", "  ")


# pages ----------------------------------------------------------------------------------------------------------------


def with_part(page: Path, part: str, lines: list[str]) -> str:
    """The text of a page with this part made anew. Raises ValueError if the page has no place for the part."""
    text = page.read_text()
    begin, end = BEGIN.format(part=part), END.format(part=part)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} needs the lines {begin!r} and {end!r}")
    return "\n".join([before + begin, "", *lines, "", end + after])


GENERATED: dict[Path, Callable[[], str]] = {
    PAGES / "reference/errors.md": errors_page,
    PAGES / "howto/sizing.md": lambda: with_part(PAGES / "howto/sizing.md", "sizes", sizes()),
    PAGES / "howto/upgrading.md": lambda: with_part(PAGES / "howto/upgrading.md", "versions", versions()),
    PROTOCOL: lambda: with_part(PROTOCOL, "examples", wire_examples.page_part()),
}


def stale_pages() -> Iterator[Path]:
    """The pages that are missing, or differ from what the code says now."""
    for path, text in GENERATED.items():
        if not path.exists() or path.read_text() != text():
            yield path


def main() -> int:
    """Write the pages, or check them. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the parts of the site that are made from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page is stale")
    check = parser.parse_args().check
    stale = list(stale_pages())
    for path in stale:
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(GENERATED[path]())
        sys.stdout.write(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
