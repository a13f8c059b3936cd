"""make release: the faults that its checks find, in a small tree that has what the checks read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.real.trees import ROOT, SETTINGS

SCRIPT = ".ci/release.py"
VERSION = SETTINGS["project"]["version"]
READ = (SCRIPT, "pyproject.toml", "CHANGELOG.md", "OWNER.md")
OF_DOCS = ("generate_tables.py", "drawings/draw.py")  # generators
Check = Callable[[], tuple[int, str]]
NOT_SET = "not set yet"
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")

pytestmark = pytest.mark.skipif(not (ROOT / SCRIPT).exists(), reason="an sdist has no .ci")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree in git with the files that the checks read."""
    for name in READ:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "shm_layout/timerd_shm", tmp_path / "shm_layout/timerd_shm", ignore=ignored)
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    (tmp_path / "docs/drawings").mkdir(parents=True)
    for name in OF_DOCS:
        (tmp_path / "docs" / name).write_text("# finds nothing\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


@pytest.fixture
def check(tree: Path) -> Check:
    """A function that makes the checks. It returns the exit status and the output."""

    def checked() -> tuple[int, str]:
        ran = subprocess.run([sys.executable, SCRIPT, "--check"], cwd=tree, capture_output=True, text=True)
        assert not ran.stderr, ran.stderr
        return ran.returncode, ran.stdout

    return checked


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    alone = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}  # the user of the test may sign commits, or have hooks
    subprocess.run(["git", *who, *words], cwd=tree, env=alone, check=True, capture_output=True)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message=a change")


def edit(tree: Path, name: str, old: str, new: str) -> None:
    """Replace a text, which the file has once, and commit."""
    text = (tree / name).read_text()
    assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
    (tree / name).write_text(text.replace(old, new))
    commit(tree)


def faults(output: str) -> list[str]:
    return re.findall(r"^FAULT  (.*)$", output, re.MULTILINE)


def dated() -> str:
    """The heading of the version in CHANGELOG.md."""
    found = re.search(rf"^## {re.escape(VERSION)} - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert found, "CHANGELOG.md has a dated part of the version"
    return found[0]


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    parts = re.findall(r"^## (\S+)(?: - (\S+))?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert parts[0][:2] == ("Unreleased", "")
    released = [(tuple(map(int, name.split("."))), day) for name, day, _ in parts[1:]]
    assert released == sorted(released, reverse=True)
    for name, _, lines in parts:
        kinds = re.findall(r"^### (.*)$", lines, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], f"{name}: these kinds, in this order: {KINDS}"


def test_this_tree_has_no_fault_and_the_rest_is_named(check: Check) -> None:
    status, output = check()
    assert (status, faults(output)) == (0, [])
    assert f"git tag -a v{VERSION}" in output and "twine upload" in output
    unset = re.findall(rf"^\| (\w+) \| {NOT_SET} \|", (ROOT / "OWNER.md").read_text(), re.MULTILINE)
    assert not unset or f"set in OWNER.md: {', '.join(unset)}" in output


def test_files_that_are_not_committed_are_named(tree: Path, check: Check) -> None:
    (tree / "new.txt").touch()
    status, output = check()
    assert (status, faults(output)) == (1, ["not committed: new.txt"])
    assert "nothing was built" in output


@pytest.mark.long
def test_a_version_of_another_commit_is_a_fault(tree: Path, check: Check) -> None:
    git(tree, "tag", f"v{VERSION}")
    assert check()[0] == 0
    git(tree, "commit", "--quiet", "--allow-empty", "--message=later")
    assert "is another commit" in faults(check()[1])[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("heading", "fault"),
    [
        ("## 9.9.9 - 2026-01-01", "has no part"),
        (f"## {VERSION}", "has no date"),
        (f"## {VERSION} - soon", "has no date"),
        (f"## {VERSION} - 2026-13-01", "has no date"),
        (f"## {VERSION} - 2026-01-01\n\n## 0.0.1 - 2025-01-01", "is empty"),
        (f"## 9.9.9 - 2026-01-01\n\n* Later.\n\n## {VERSION} - 2026-01-01", "come first"),
        (f"* New.\n\n## {VERSION} - 2026-01-01", '"Unreleased" of CHANGELOG.md is not empty'),
    ],
)
def test_the_changelog_needs_a_dated_part_of_the_version(tree: Path, check: Check, heading: str, fault: str) -> None:
    edit(tree, "CHANGELOG.md", dated(), heading)
    status, output = check()
    assert status == 1
    (found,) = faults(output)
    assert fault in found


@pytest.mark.long
def test_a_stale_generated_file_is_a_fault(tree: Path, check: Check) -> None:
    layout = tree / "shm_layout/timerd_shm/generated/LAYOUT.md"
    layout.write_text(layout.read_text() + "\nby hand\n")
    commit(tree)
    (found,) = faults(check()[1])
    assert "make generate" in found and "LAYOUT.md" in found
    for name in OF_DOCS:
        (tree / "docs" / name).write_text(f"raise SystemExit('stale: a page of {name}')\n")
    commit(tree)
    assert [fault.rpartition(" ")[2] for fault in faults(check()[1])[1:]] == list(OF_DOCS)


@pytest.mark.long
def test_a_fact_stands_in_one_place_until_it_is_known(tree: Path, check: Check) -> None:
    at = "https://docs.example"
    row = f"| documentation | {NOT_SET} |"
    if row not in (tree / "OWNER.md").read_text():
        pytest.skip("the address of the site is known")
    edit(tree, "pyproject.toml", "[project.scripts]", f'[project.urls]\nDocumentation = "{at}"\n\n[project.scripts]')
    (found,) = faults(check()[1])
    assert "urls.Documentation" in found and "OWNER.md does not say" in found
    edit(tree, "OWNER.md", row, f"| documentation | {at} |")
    status, output = check()
    assert status == 0 and "documentation" not in output.partition("set in OWNER.md")[2].partition("\n")[0]
    edit(tree, "pyproject.toml", f'Documentation = "{at}"', 'Documentation = "https://elsewhere.example"')
    (found,) = faults(check()[1])
    assert "write it into urls.Documentation of [project] in pyproject.toml" in found


def test_a_row_of_the_owner_that_is_gone_is_a_fault(tree: Path, check: Check) -> None:
    lines = (tree / "OWNER.md").read_text().splitlines(keepends=True)
    (tree / "OWNER.md").write_text("".join(line for line in lines if not line.startswith("| security")))
    commit(tree)
    (found,) = faults(check()[1])
    assert found.startswith("OWNER.md has the facts")
