"""Check that this tree can be released, build it, and print what is left for a person: python .ci/release.py [--check]

For example, where OWNER.md has no address yet, and CHANGELOG.md has no part of the version:

    ok     Every file is committed
    FAULT  CHANGELOG.md has no part `## 0.3.0 - YYYY-MM-DD`: make it of "Unreleased"
    ...
    left for a person:
      1. set in OWNER.md: authors, source, documentation, issues, security

It makes no tag and uploads nothing. --check leaves out the builds. The exit status is 1 if there is a fault. It has
ended then before it builds anything.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
NOT_SET: Final = "not set yet"
PART: Final = re.compile(r"^## (\S+)(?: - (\S+))?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FACT: Final = re.compile(r"^\| (\w+) \| (.+?) \| ", re.MULTILINE)
# The facts of OWNER.md, and the fields of pyproject.toml that hold them. No field holds the address for reports.
FACTS: Final = {
    "authors": ("authors",),
    "source": ("urls", "Source"),
    "documentation": ("urls", "Documentation"),
    "issues": ("urls", "Issues"),
    "security": (),
}
GENERATORS: Final = (("-m", "timerd_shm.generate"), ("docs/generate_tables.py",), ("docs/drawings/draw.py",))
# Files that are no modules, and that a wheel must have all the same.
IN_WHEEL: Final = ("timerctl/units/timerd.service", "timerctl/units/web-daemonset.yaml", "timerd_client/py.typed")
IN_SDIST: Final = ("CHANGELOG.md", "LICENSE", "README.md", "systemd/timerd.service", "timerd/CMakeLists.txt")


def say(text: str) -> None:
    """Print a line at once, between the lines of the programs that this one starts."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# checks --------------------------------------------------------------------------------------------------------------


def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def committed() -> Iterator[str]:
    """Every file is committed."""
    for line in git("status", "--porcelain"):
        yield f"not committed: {line[3:]}"


def untagged() -> Iterator[str]:
    """The version has no tag, or its tag is this commit."""
    tag = f"v{project()['version']}"
    if git("tag", "--list", tag) and git("rev-list", "-1", tag) != git("rev-list", "-1", "HEAD"):
        yield f"the tag {tag} is another commit: give pyproject.toml the next version"


def dated() -> Iterator[str]:
    """CHANGELOG.md has a dated part of the version, which comes first after an empty part "Unreleased"."""
    version = project()["version"]
    parts = PART.findall((ROOT / "CHANGELOG.md").read_text())
    names = [name for name, _, _ in parts]
    if version not in names:
        yield f'CHANGELOG.md has no part `## {version} - YYYY-MM-DD`: make it of "Unreleased"'
        return
    if names[:2] != ["Unreleased", version]:
        yield f'CHANGELOG.md begins with {" and ".join(names[:2])}: "Unreleased" and {version} come first'
    for name, day, text in parts:
        if name == "Unreleased" and text.strip():
            yield f'"Unreleased" of CHANGELOG.md is not empty: its lines belong to {version}, or to a later version'
        if name == version and not is_date(day):
            yield f"CHANGELOG.md: the part of {version} has no date: write `## {version} - YYYY-MM-DD`"
        if name == version and not text.strip():
            yield f"CHANGELOG.md: the part of {version} is empty"


def generated() -> Iterator[str]:
    """Generated files are fresh."""
    environment = os.environ | {"PYTHONPATH": f"shm_layout{os.pathsep}."}
    for generator in GENERATORS:
        # -S: this tree's declarations, and not those of an editable install of another tree.
        command = [sys.executable, "-S", *generator, "--check"]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if ran.returncode:
            yield f"run `make generate`: {', '.join((ran.stdout or ran.stderr).strip().splitlines())}"


def owned() -> Iterator[str]:
    """Facts of the owner stand in OWNER.md, and in pyproject.toml if they are set."""
    facts = facts_of_owner()
    if set(facts) != set(FACTS):
        yield f"OWNER.md has the facts {', '.join(facts)}: it should have {', '.join(FACTS)}"
        return
    for fact, field in FACTS.items():
        known, value = facts[fact], at(project(), field)
        if known is None and value is not None:
            yield f"pyproject.toml has {'.'.join(field)}, but OWNER.md does not say that {fact} is known"
        if field and known is not None and not holds(value, known):
            yield f"OWNER.md has {fact} = {known}: write it into {'.'.join(field)} of [project] in pyproject.toml"


def facts_of_owner() -> dict[str, str | None]:
    """The table of OWNER.md: each fact's value, or None if it is not set."""
    rows = FACT.findall((ROOT / "OWNER.md").read_text())
    return {fact: None if value == NOT_SET else value for fact, value in rows if fact != "fact"}


def at(table: dict[str, Any], field: tuple[str, ...]) -> Any:
    """A field of a table of tables; None if it is not there, or if there is no name of a field."""
    found: Any = table if field else None
    for name in field:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def holds(value: Any, fact: str) -> bool:
    """Whether a field holds this fact. Of authors, each name of the field has to be in the fact."""
    if isinstance(value, list):
        return bool(value) and all(text in fact for author in value for text in author.values())
    return bool(value == fact)


def is_date(text: str) -> bool:
    """Whether a text is YYYY-MM-DD."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def git(*words: str) -> list[str]:
    """The lines of a command of git."""
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


CHECKS: Final[tuple[Callable[[], Iterator[str]], ...]] = (committed, untagged, dated, generated, owned)


def faults() -> int:
    """Make the checks, and print each with what it found. Returns how many faults there are."""
    count = 0
    for check in CHECKS:
        found = list(check())
        count += len(found)
        for fault in found:
            say(f"FAULT  {fault}")
        if not found:
            say(f"ok     {(check.__doc__ or '').rstrip('.')}")
    return count


# builds --------------------------------------------------------------------------------------------------------------


def build() -> None:
    """Build sdist, wheels and site. Raises CalledProcessError, and SystemExit if a file misses something."""
    version = project()["version"]
    DIST.mkdir(exist_ok=True)
    for old in (*DIST.glob("timerd-*.whl"), *DIST.glob("timerd-*.tar.gz")):
        old.unlink()
    script = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run("the sdist", sys.executable, "-c", script, str(DIST))
    sdist = DIST / f"timerd-{version}.tar.gz"
    with tarfile.open(sdist) as archive:
        has(sdist, [name.partition("/")[2] for name in archive.getnames()], IN_SDIST)
    run("the wheels", "make", "--no-print-directory", "wheels")
    wheels = sorted(DIST.glob(f"timerd-{version}-*.whl"))
    if not wheels:
        sys.exit(f"release: no wheel of {version} below {DIST}")
    for path in wheels:
        with zipfile.ZipFile(path) as archive:
            has(path, archive.namelist(), IN_WHEEL)
    run("the site", "make", "--no-print-directory", "docs")


def run(what: str, *command: str) -> None:
    """Run a step of the build."""
    say(f"build  {what}")
    subprocess.run(command, cwd=ROOT, check=True)


def has(archive: Path, files: list[str], wanted: tuple[str, ...]) -> None:
    """End with an error if an archive lacks one of these files."""
    if missing := sorted(set(wanted) - set(files)):
        sys.exit(f"release: {archive.name} lacks {', '.join(missing)}")
    say(f"ok     {archive.relative_to(ROOT)}: {len(files)} files")


# the rest ------------------------------------------------------------------------------------------------------------


def left() -> list[str]:
    """Steps for a person, in their order."""
    version = project()["version"]
    unset = [fact for fact, value in facts_of_owner().items() if value is None]
    steps = [f"set in OWNER.md: {', '.join(unset)}; then run this again"] if unset else []
    return [
        *steps,
        "run `make test`, and `make test-long` for the long tests and the lowest versions",
        f"git tag -a v{version} -m 'timerd {version}' && git push origin v{version}",
        "take the wheels of both architectures from the workflow `wheels` of the tag, and put them into dist/",
        f"upload them, for example: twine upload dist/timerd-{version}.tar.gz dist/timerd-{version}-*.whl",
        "publish the site: build/site/html",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="build nothing")
    only_check = parser.parse_args().check
    say(f"timerd {project()['version']}")
    try:
        if count := faults():
            say(f"{count} fault{'s' * (count > 1)}; nothing was built")
        elif not only_check:
            build()
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: `{shlex.join(error.cmd)}` has failed (exit status {error.returncode}) {error.stderr or ''}")
    say("left for a person:")
    for number, step in enumerate(left(), start=1):
        say(f"  {number}. {step}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
