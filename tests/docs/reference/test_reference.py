"""docs/reference lacks nothing: each name, argument, knob, command, counter and column has its sentence.

docs/generate makes these parts of the pages, and operating/test_made_pages.py compares them with the code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.trees import ROOT
from support.site import DOCS, anchors, generator, headings, links, made, programs
from timerctl import parser
from timerd.config.command_line import parser as parser_of_daemon
from timerd.config.config import KNOBS, dashed
from timerd_client.declared import BATCH, CLIENT, DELAYED, REGISTRATION
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS
from timerd_shm.declare.fields import fields
from timerd_shm.declare.journal import ROWS

REFERENCE = DOCS / "reference"
PAGES = sorted(REFERENCE.glob("*.md"))
BY_HAND = {"api.md", "audit.md", "glossary.md"}  # no part of these pages is made
COUNTERS = (*PURGATORY_COUNTERS, *DAEMON_COUNTERS)
# Modules with __all__ that names.md does not list, each with the reason.
INNER = {
    "timerd_client.conditions": "td exports its names",
    "timerd_client.errors": "td exports its names",
    "timerd_client.hot": "only the client itself uses the hot path",
    "pyspark_timerd": "Spark finds the format by its name",
}
EMPTY_CELL = "|  |"


def text_of(page: str) -> str:
    return (REFERENCE / page).read_text()


# pages ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages_and_anchors(page: Path) -> None:
    gone = [
        f"{to.name}#{anchor}" for to, anchor in links(page) if not to.exists() or (anchor and anchor not in anchors(to))
    ]
    assert not gone


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in BY_HAND], ids=lambda page: page.name)
def test_a_made_page_has_an_example_before_its_tables(page: Path) -> None:
    assert page in generator().GENERATED
    assert len(headings(page, 1)) == 1
    text = page.read_text()
    assert 0 < text.find("\n```") < (text.find("\n| ") if "\n| " in text else len(text))


def test_imports_of_the_generator_go_one_way() -> None:
    """In the order of the list in generate/__init__.py."""
    folder = DOCS / "generate"
    order = re.findall(r"^    (\w+)\.py", (folder / "__init__.py").read_text(), re.MULTILINE)
    stems = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert stems <= set(order)
    for stem in stems:
        for node in ast.walk(ast.parse((folder / f"{stem}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                imported = {node.module} if node.module else {alias.name for alias in node.names}
                assert imported <= set(order[: order.index(stem)]), f"{stem} imports {imported}"


# names ----------------------------------------------------------------------------------------------------------------


def test_every_public_name_has_a_docstring_and_a_page() -> None:
    public = made("names").public()
    assert not [f"{one.module}.{one.name}" for one in public if not one.about], "give it a docstring"
    assert not [f"{one.module}.{one.name}" for one in public if not one.see], "give it a page in generate/names.py"


def test_the_names_are_those_that_td_exports() -> None:
    of_errors = {error.name for section in made("errors").sections().values() for error in section}
    listed = {one.name for one in made("names").public() if one.module == "timerd_client"}
    assert listed == set(td.__all__) - of_errors


def test_the_arguments_of_a_name_are_those_that_python_shows() -> None:
    modules = ("timerd_client", "timerd_client.aio", "timerd_client.delivery", "timerd.testing")
    for one in made("names").public():
        if one.module in modules and "(" in one.shown:
            inside = one.shown[one.shown.index("(") + 1 : -1]
            shown = [each.partition("=")[0].strip("*") for each in inside.split(", ") if each.strip("*")]
            found = getattr(importlib.import_module(one.module), one.name)
            assert shown == [*inspect.signature(found).parameters], f"{one.module}.{one.name}"


def test_no_module_with_a_list_of_names_is_left_out() -> None:
    houses = {house.module for house in made("names").HOUSES}
    for folder in (ROOT / "client", ROOT / "shm_layout", ROOT / "timerd"):
        root = ROOT if folder.name == "timerd" else folder
        for path in sorted(folder.rglob("*.py")):
            if re.search(r"^__all__ = ", path.read_text(), re.MULTILINE):
                parts = path.relative_to(root).with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                assert module in {*houses, *INNER}, f"give {module} a house in generate/names.py"


def test_every_argument_has_its_sentence() -> None:
    rows = [line for line in made("names").arguments() if line.startswith("| `")]
    assert {line.split("`")[1] for line in rows} == {
        name for declared in (REGISTRATION, BATCH, DELAYED, CLIENT) for name in declared.types
    }
    assert not [line for line in rows if EMPTY_CELL in line]


# knobs ----------------------------------------------------------------------------------------------------------------


def test_every_knob_has_a_sentence_a_default_and_limits() -> None:
    page, knobs = text_of("knobs.md"), made("knobs")
    for name, knob in KNOBS.items():
        assert f"| `--{dashed(name)}`, `TIMERD_{name.upper()}` |" in page
        assert knob.about, f"{name}: give it a sentence"
        assert knobs.default_of(name), f"{name}: give it a default, or say in `derived` what None stands for"
        assert knobs.limits_of(knob), f"{name}: give it limits, or choices"
        assert name in knobs.SEE, f"{name}: give it a page in generate/knobs.py"


def test_each_flag_of_the_daemon_is_on_the_page() -> None:
    flags = {flag for action in parser_of_daemon()._actions for flag in action.option_strings if flag.startswith("--")}
    beside = {"--help", "--version", "--json"} | {flag for flag in flags if flag.startswith("--no-")}
    assert not {flag for flag in flags - beside if flag not in text_of("knobs.md")}


# timerctl -------------------------------------------------------------------------------------------------------------


def test_every_command_has_a_sentence_an_example_and_arguments_with_a_sentence() -> None:
    page, declared = text_of("timerctl.md"), made("commands").declared()
    assert {command.name for command in declared} >= {"stats", "fire", "calls retry", "journal audit", "completion"}
    for command in declared:
        assert command.about.endswith("."), f"timerctl {command.name}: give it a description"
        assert command.examples, f"timerctl {command.name}: give its help an example, below `examples:`"
        assert f"\n## timerctl {command.name}\n" in page
        unsaid = [name for name, about in command.arguments if not about]
        assert not unsaid, f"timerctl {command.name}: give {unsaid} a help"


def test_every_example_is_a_command_line() -> None:
    whole = parser()
    for command in made("commands").declared():
        for line, _ in command.examples:
            words = shlex.split(re.split(r" (?:\|\|?|>) ", line)[0])
            assert words[0] == "timerctl"
            assert callable(whole.parse_args(words[1:]).run), line


# counters -------------------------------------------------------------------------------------------------------------


def test_every_counter_has_a_unit_and_a_sentence() -> None:
    page = text_of("counters.md")
    for counter in COUNTERS:
        assert counter.unit and counter.about, f"{counter.name}: give it a unit and a sentence"
        assert re.search(rf"^\| \d+ \| `{counter.name}` \| {counter.unit}", page, re.MULTILINE), counter.name


def test_a_page_that_uses_a_counter_names_it() -> None:
    used_by = made("counters").USED_BY
    assert used_by.keys() <= {counter.name for counter in COUNTERS}
    for counter, page in used_by.items():
        assert f"`{counter}`" in (REFERENCE / page).resolve().read_text(), f"{page} does not name {counter}"


# the journal ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_row_and_every_column_has_its_sentence() -> None:
    page = text_of("journal.md")
    for kind, record in ROWS.items():
        assert re.search(rf"^\| {int(kind)} \| \[{kind.name}\]\(#[\w-]+\) \| \S", page, re.MULTILINE), kind.name
        section = page.partition(f"\n### {made('journal').title(record)}\n")[2].partition("\n### ")[0]
        for field in fields(record):
            line = next((line for line in section.splitlines() if f"| `{field.name}` |" in line), "")
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 5 and cells[0] == str(field.offset) and cells[3], f"{kind.name}.{field.name}"


def test_the_program_of_the_page_of_the_journal_runs(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    make_daemon("--journal", str(journal))
    with td.connect() as client:
        client.register("inbox/7", timeout=60)
        client.fire_wait("inbox/7")
    program = tmp_path / "waits.py"
    program.write_text(programs(REFERENCE / "journal.md")[program.name])

    def printed() -> str:
        ran = subprocess.run([sys.executable, str(program), str(journal)], capture_output=True, text=True)
        assert ran.stderr == ""
        return ran.stdout

    eventually(lambda: bool(printed()))
    assert re.fullmatch(r"inbox/7 \d+ ms\n", printed())
