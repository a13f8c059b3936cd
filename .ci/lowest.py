"""Test timerd with the lowest versions that pyproject.toml allows: python .ci/lowest.py ENVIRONMENT

Each bound of pyproject.toml becomes a constraint: `pyzmq>=25.1` becomes `pyzmq==25.1`. This holds for the requirements
of the build, for those of timerd, and for all extras. timerd is built and installed with them in ENVIRONMENT, and the
tests of TESTS run there. An index may lack a version. Then the next higher version that it has is tested. The last
lines of the output name the bounds that were not tested. Spark's bounds are always among them: `make test-matrix` tests
these, in another environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BOUND: Final = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\d.]+)(?:,<[\d.]+)?")
OWN: Final = re.compile(r"timerd\[[\w,-]+\]")
EXTRAS: Final = "test,bench"  # the extras of Spark have an environment of their own
# A few quick tests for each requirement. Tests of type checkers are left out (`-k` below): they expect the messages of
# the newest versions.
TESTS: Final = (
    *("tests/client", "tests/core/test_commands.py", "tests/cli/test_timerctl.py", "tests/packets", "tests/zmtp"),
    *("tests/daemon/test_daemon_process.py", "tests/daemon/test_config.py", "tests/containers/test_manifests.py"),
    *("tests/faces/test_client_threads.py", "tests/faces/test_client_aio.py", "tests/hot", "tests/testing"),
    *("tests/observing", "tests/frameworks/test_web_page.py", "tests/frameworks/test_gevent.py"),
    "tests/frameworks/test_howto_frameworks.py",
    *("tests/kafka/test_codec.py", "tests/kafka/records/test_log.py", "tests/kafka/test_clients.py"),
    "tests/benches/test_rivals.py",
)


def bounds() -> dict[str, str]:
    """The lower bound of each requirement, by its name. Ends the program if a requirement has none."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    groups = [settings["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    found: dict[str, str] = {}
    for requirement in (one for group in groups for one in group if not OWN.fullmatch(one)):
        if (bound := BOUND.fullmatch(requirement)) is None:
            sys.exit(f"pyproject.toml: {requirement!r} has no lower bound: write NAME>=VERSION")
        name, version = bound.groups()
        if found.setdefault(name, version) != version:
            sys.exit(f"pyproject.toml: {name} has two lower bounds, {found[name]} and {version}")
    return found


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare: 25.1 is 25.1.0."""
    found = [int(number) for number in re.findall(r"\d+", version)]
    while found and not found[-1]:
        del found[-1]
    return tuple(found)


def lowest(name: str, bound: str) -> str | None:
    """The lowest version from `bound` on that pip finds for this Python."""
    asked = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", name]
    answer = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    there = re.search("Available versions: (.+)", answer)
    offered = there[1].split(", ") if there else []
    return min((one for one in offered if numbers(one) >= numbers(bound)), key=numbers, default=None)


def constrain(to: Path) -> list[str]:
    """Write the constraints. Returns what could not be tested, a line each."""
    untested, constraints = [], []
    for name, bound in bounds().items():
        version = lowest(name, bound)
        if version is None:
            untested.append(f"{name}>={bound}: pip finds no such version")
            continue
        constraints.append(f"{name}=={version}\n")
        if numbers(version) != numbers(bound):
            untested.append(f"{name}>={bound}: pip finds no version below {version}")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text("".join(constraints))
    return untested


def unheeded(environment: Path, constraints: Path) -> list[str]:
    """Constraints that the environment does not follow, a line each."""
    (packages,) = environment.glob("lib/python*/site-packages")
    installed = {plain(one.name): one.version for one in distributions(path=[str(packages)])}
    wanted = dict(line.split("==") for line in constraints.read_text().split())
    return [
        f"{name}=={version}: {installed.get(plain(name), 'nothing')} is installed"
        for name, version in wanted.items()
        if numbers(installed.get(plain(name), "")) != numbers(version)
    ]


def plain(name: str) -> str:
    """The name of a distribution, as pip compares it."""
    return re.sub("[-_.]+", "-", name).lower()


def main() -> int:
    environment = Path(sys.argv[1])
    constraints = environment.with_name(f"{environment.name}.txt")
    untested = constrain(constraints)
    # As `make build` does it, but in another environment, and with another folder for the compiled files.
    settings = ("cmake.define.TIMERD_FAULTS=ON", "cmake.define.TIMERD_BENCH=ON", f"build-dir={environment}-build")
    options = " ".join(f"--config-settings={setting}" for setting in settings)
    target = f"{environment}/installed-{EXTRAS}"
    build = ["make", "--no-print-directory", f"VENV={environment}", f"CMAKE={options}", target]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "PIP_CONSTRAINT": str(constraints.resolve())}, check=True)
    tests = [
        environment / "bin/python",
        "-m",
        "pytest",
        "-q",
        "-n2",
        "-m",
        "not long",
        *TESTS,
        "-k",
        "not type_checker",
    ]
    status = subprocess.run(tests, cwd=ROOT).returncode
    untested += unheeded(environment, constraints)
    for line in untested:
        sys.stdout.write(f"not tested: {line}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
