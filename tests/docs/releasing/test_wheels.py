"""make wheels: a wheel for each CPython of this machine. It installs without a compiler, and passes the tests there."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.real.trees import ROOT, SETTINGS

VERSION = SETTINGS["project"]["version"]
OF_DOCKER = ("Dockerfile", "Dockerfile.dockerignore", "compose.yaml")  # they need a checkout
UNITS = "timerctl/units/"
BUILD, TRY = ROOT / ".ci/wheels.py", ROOT / ".ci/try_wheel.py"

pytestmark = pytest.mark.skipif(not BUILD.exists(), reason="an sdist has no .ci")


def runs(name: str) -> bool:
    """Whether an interpreter is in the PATH. A version manager's shim may be there without a version behind it."""
    path = shutil.which(name)
    return path is not None and not subprocess.run([path, "-c", ""], capture_output=True).returncode


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("minor", range(11, 16))
def test_the_wheel_installs_without_a_compiler_and_passes_the_tests_there(tmp_path: Path, minor: int) -> None:
    name = f"python3.{minor}"
    if not runs(name):
        pytest.skip(f"{name} is not in the PATH")
    made = subprocess.run([sys.executable, str(BUILD), "--into", str(tmp_path), name], capture_output=True, text=True)
    assert not made.returncode, made.stdout[-2_000:] + made.stderr[-4_000:]
    (wheel,) = tmp_path.glob("timerd-*.whl")
    assert re.fullmatch(rf"timerd-{re.escape(VERSION)}-cp3{minor}-cp3{minor}-manylinux_2_28_\w+\.whl", wheel.name)
    files = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in files if name.endswith((".pyx", ".pxd", ".c", ".h", ".md")) or "core_faults" in name]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    tried = subprocess.run([name, str(TRY), str(wheel), "-m", "not long"], env=environ, capture_output=True, text=True)
    assert not tried.returncode, tried.stdout[-6_000:] + tried.stderr[-2_000:]
    units = {file.name for file in (ROOT / "systemd").iterdir() if file.name not in OF_DOCKER}
    assert {name.removeprefix(UNITS) for name in files if name.startswith(UNITS)} == units


def test_an_interpreter_that_is_not_there_is_named() -> None:
    made = subprocess.run([sys.executable, str(BUILD), "python3.99"], capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (1, "")
    assert made.stderr == "wheels: python3.99 is not in the PATH, or does not run\n"


@pytest.mark.parametrize("tools", [[], ["ninja>=1.5"], ["cmake>=3.15", "ninja>=1.5"]], ids=len)
def test_a_wheel_is_built_with_the_tools_that_the_machine_lacks(
    tools: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scikit_build_core").mkdir()
    (tmp_path / "scikit_build_core/__init__.py").touch()
    build = f"def get_requires_for_build_wheel(settings):\n    return {tools}\n"
    (tmp_path / "scikit_build_core/build.py").write_text(build)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert runpy.run_path(str(BUILD))["absent_tools"](Path(sys.executable)) == tools


@pytest.mark.parametrize(
    ("library", "module"),
    [("timerd_turn__mypyc", "timerd/conductor/turn.py"), ("timerd_client_parts__mypyc", "timerd_client/waits/gate.py")],
)
def test_tracebacks_through_compiled_modules_name_no_folder_of_the_machine_that_built_them(
    library: str, module: str
) -> None:
    spec = find_spec(library)
    assert spec is not None and spec.origin is not None
    compiled = Path(spec.origin).read_bytes()
    assert module.encode() in compiled
    assert f"/{module}".encode() not in compiled
