"""Install a wheel into an empty environment without a compiler, and test it: python .ci/try_wheel.py WHEEL [TESTS...]

The interpreter is the one that the wheel is for. For example, in a system that has neither a compiler nor a checkout's
environment:

    python3.14 .ci/try_wheel.py dist/timerd-0.2.0-cp314-cp314-manylinux_2_28_x86_64.whl

pip takes wheels alone (--only-binary), so it never asks for a compiler. The tests are those of TESTS in this tree, and
they import what the wheel has installed. Then the wheel's own files are tried: units, manifests, completions. Further
arguments of pytest follow the tests. The exit status is that of pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ("tests/core", "tests/client", "tests/faces")
EXTRAS: Final = "cron,metrics,tracing"
# Of the extra `test`, what these tests import.
WITH: Final = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
SHELLS: Final = ("bash", "zsh", "fish")


def requirements() -> list[str]:
    """The requirements of the tests, as pyproject.toml has them."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["test"]
    return [one for one in extra if one.partition(">")[0] in WITH]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def try_files(programs: Path, directory: Path, environ: dict[str, str]) -> None:
    """Run the commands that need files of the wheel. Ends the script if one fails."""

    def output(*command: str) -> str:
        ran = subprocess.run(
            [programs / command[0], *command[1:]], cwd=directory, env=environ, capture_output=True, text=True
        )
        if ran.returncode:
            raise SystemExit(f"try_wheel: {' '.join(command)} ended with {ran.returncode}\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    at = output("python", "-c", "import timerd, timerd_client; print(timerd.__file__, timerd_client.__file__)")
    if not all(path.startswith(str(directory)) for path in at.split()):
        raise SystemExit(f"try_wheel: timerd is imported from elsewhere: {at}")
    output("timerctl", "install-units", "units")
    copied = sorted(path.name for path in (directory / "units").iterdir())
    say(f"timerctl install-units: {', '.join(copied)}")
    sizes = {shell: len(output("timerctl", "completion", shell).splitlines()) for shell in SHELLS}
    say(f"timerctl completion: {', '.join(f'{shell} {size} lines' for shell, size in sizes.items())}")


def main() -> int:
    wheel, *asked = sys.argv[1:]
    tests = [str(ROOT / one) if one.startswith("tests/") else one for one in asked]
    if not any(one.startswith(str(ROOT)) for one in tests):
        tests = [*(str(ROOT / one) for one in TESTS), *tests]
    with tempfile.TemporaryDirectory(prefix="wheel-") as made:
        directory = Path(made)
        programs = directory / "env" / "bin"
        subprocess.run([sys.executable, "-m", "venv", str(directory / "env")], check=True)
        environ = {**os.environ, "CC": "false", "PATH": f"{programs}:{os.environ['PATH']}"}
        environ.pop("PYTHONPATH", None)
        pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        wanted = [f"timerd[{EXTRAS}] @ {Path(wheel).resolve().as_uri()}", *requirements()]
        # A dependency may have its wheel beside this one: wheels.py builds those that the index lacks.
        beside = ["--find-links", str(Path(wheel).resolve().parent)]
        subprocess.run([*pip, *beside, "--only-binary", ":all:", *wanted], env=environ, check=True)
        try_files(programs, directory, environ)
        # From another directory: otherwise `python -m` would import timerd from the tree.
        pytest = [str(programs / "python"), "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
        options = ["-p", "no:cacheprovider", "-k", "not type_checker"]  # mypy is not there
        return subprocess.run([*pytest, *options, *tests], cwd=directory, env=environ).returncode


if __name__ == "__main__":
    sys.exit(main())
