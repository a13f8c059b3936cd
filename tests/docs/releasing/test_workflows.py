"""The files of .github: workflows run commands that exist, and issue forms are complete.

Each command of a workflow is a target of the Makefile, or a file of this tree. So a person can run it, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.real.trees import ROOT, SETTINGS

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@(?:v\d+\.\d+\.\d+|[0-9a-f]{40})")
FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}

pytestmark = pytest.mark.skipif(not GITHUB.is_dir(), reason="an sdist has no .github")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in read(path)["jobs"].values():
        yield from job["steps"]


def commands(path: Path) -> Iterator[str]:
    """Each line that a workflow runs."""
    for step in steps(path):
        yield from filter(None, map(str.strip, step.get("run", "").splitlines()))


def exists(command: str) -> bool:
    """Whether a command is `make TARGET...`, or a file of this tree that can be run."""
    program, *words = command.split()
    if program == "make":
        return bool(words) and set(words) <= TARGETS
    return not words and (ROOT / program).is_file() and os.access(ROOT / program, os.X_OK)


def test_the_workflows_are_those_that_a_release_needs() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "lint", "tests", "wheels"]
    assert [path.stem for path in FORMS] == ["bug", "idea", "question"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_command_is_a_target_or_a_file(path: Path) -> None:
    found = list(commands(path))
    assert found
    assert not [command for command in found if not exists(command)]


def test_other_commands_are_found() -> None:
    assert exists("make build") and exists(".ci/run")
    for command in ("make", "make nothing", "pip install twine", "README.md", ".ci/nothing"):
        assert not exists(command), command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_a_name_a_trigger_few_rights_and_a_limit(path: Path) -> None:
    workflow = read(path)
    assert workflow["name"] == path.stem
    assert workflow[True], "YAML 1.1 reads `on` as true"
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 300, name
        runners = job.get("strategy", {}).get("matrix", {}).get("machine", [job["runs-on"]])
        assert all(re.fullmatch(r"ubuntu-\d\d\.\d\d(-arm)?", runner) for runner in runners), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_version(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert not [action for action in used if not PINNED.fullmatch(action)]


def test_one_action_has_one_version() -> None:
    used = {step["uses"] for path in WORKFLOWS for step in steps(path) if "uses" in step}
    assert len(used) == len({action.partition("@")[0] for action in used}), sorted(used)


def test_paths_that_a_workflow_names_exist() -> None:
    for path in WORKFLOWS:
        triggers = [each for each in read(path)[True].values() if isinstance(each, dict)]
        named = [name for trigger in triggers for name in trigger.get("paths", [])]
        assert not [name for name in named if not (ROOT / name).exists()]


def test_each_supported_python_is_tested_and_has_wheels() -> None:
    versions = read(GITHUB / "workflows/tests.yml")["jobs"]["python"]["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == SETTINGS["project"]["requires-python"]
    (wheels,) = (step["with"] for step in steps(GITHUB / "workflows/wheels.yml") if "python" in str(step.get("uses")))
    assert wheels["python-version"].split() == versions
    minor = [int(version.partition(".")[2]) for version in versions]
    assert minor == list(range(minor[0], minor[-1] + 1)), "quote them: YAML reads 3.10 as 3.1"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_complete(path: Path) -> None:
    form = read(path)
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in form["body"]} <= FIELDS
    ids = [field["id"] for field in fields]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"[\w-]+", each) for each in ids)
    labels = [field["attributes"]["label"] for field in fields]
    assert len(labels) == len(set(labels))
    assert any(field.get("validations", {}).get("required") for field in fields)
    for field in fields:
        assert field["type"] != "dropdown" or len(set(field["attributes"]["options"])) > 1
    for field in form["body"]:
        assert field["type"] != "markdown" or field["attributes"]["value"]


def test_every_other_file_of_the_folder_is_known() -> None:
    known = {*WORKFLOWS, *FORMS, GITHUB / "ISSUE_TEMPLATE/config.yml", GITHUB / "pull_request_template.md"}
    assert {path for path in GITHUB.rglob("*") if path.is_file()} == known
    assert isinstance(read(GITHUB / "ISSUE_TEMPLATE/config.yml")["blank_issues_enabled"], bool)


def test_make_targets_of_the_template_and_of_the_page_exist() -> None:
    for page in (GITHUB / "pull_request_template.md", ROOT / "CONTRIBUTING.md", ROOT / "OWNER.md"):
        named = set(re.findall(r"`make ([a-z][\w-]*)", page.read_text()))
        assert named <= TARGETS, f"{page.name}: {sorted(named - TARGETS)}"
