"""The pages of docs/generate_tables.py are fresh, and the page of errors has every error, its cause and remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import timerd as td
import timerd.testing
import timerd_client.delivery
from support.real.daemons import Daemon
from support.real.trees import ROOT
from support.site import DOCS, generator, headings, made, programs
from timerd_shm.declare.errors import TimerdError
from timerd_shm.read.reader import DamageError
from timerd_shm.read.segment import JournalError

PAGE = DOCS / "reference/errors.md"
HOUSES = (td, timerd_client.delivery, timerd.testing)


def public() -> set[str]:
    """The names of the errors that packages export, of those with a code, and of those that readers raise."""
    exported = {name: getattr(house, name) for house in HOUSES for name in house.__all__}
    found = {name for name, kind in exported.items() if isinstance(kind, type) and issubclass(kind, BaseException)}
    return found | {kind.__name__ for kind in (*TimerdError.by_code.values(), DamageError, JournalError)}


def test_the_made_pages_are_fresh() -> None:
    stale = [str(path.relative_to(ROOT)) for path in generator().stale_pages()]
    assert not stale, f"run `make generate`: {', '.join(stale)}"


def test_a_page_that_is_missing_or_old_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = generator()
    copy = tmp_path / "errors.md"
    monkeypatch.setattr(pages, "GENERATED", {copy: made("errors").page})
    assert list(pages.stale_pages()) == [copy]
    copy.write_text(made("errors").page())
    assert not list(pages.stale_pages())
    copy.write_text(copy.read_text().replace("Cause: ", "Reason: ", 1))
    assert list(pages.stale_pages()) == [copy]


def test_a_page_without_the_place_of_its_part_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Sizes\n")
    with pytest.raises(ValueError, match="needs the lines"):
        made("text").with_parts(page, {"sizes": ["| a |"]})


def test_make_generate_needs_only_python(tmp_path: Path) -> None:
    """As the Makefile calls it: without what is compiled or installed."""
    script = [sys.executable, "-S", "-I", "-c"]
    code = f"import sys; sys.path[:0] = [{str(ROOT / 'shm_layout')!r}, {str(ROOT)!r}]; import runpy; "
    code += f"sys.argv = ['generate_tables.py', '--check']; runpy.run_path({str(DOCS / 'generate_tables.py')!r}, "
    done = subprocess.run([*script, code + "run_name='__main__')"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "docs/generate_tables.py" in (ROOT / "Makefile").read_text().partition("\ngenerate:")[2]


def test_every_public_error_has_its_section_once() -> None:
    assert sorted(headings(PAGE, 3)) == sorted(public())


def test_every_error_has_a_cause_and_a_remedy() -> None:
    found = [error for section in made("errors").sections().values() for error in section]
    assert not [error.name for error in found if not error.cause or not error.remedy], (
        "give its docstring a first sentence with the cause, and another one with the remedy"
    )


def test_the_bases_and_codes_are_those_of_the_classes() -> None:
    numbers = made("errors").codes()
    for error in (error for section in made("errors").sections().values() for error in section):
        kind = next((getattr(house, error.name) for house in HOUSES if error.name in house.__all__), None)
        if kind is None or not issubclass(kind, td.TimerdError):
            continue
        ancestors = {base.__name__ for base in kind.__mro__}
        assert set(error.bases) <= ancestors, error.name
        if error.code:
            assert numbers[error.code] == kind.code, error.name


def test_the_program_of_the_page_runs(daemon: Daemon, tmp_path: Path) -> None:
    program = tmp_path / "catch.py"
    program.write_text(programs(PAGE)[program.name])
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.stderr == ""
    assert re.fullmatch(r"expired after \d+\.\d+ s; missing: 'inbox/7'\n", done.stdout)
