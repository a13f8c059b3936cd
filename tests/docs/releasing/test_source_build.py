"""A build from the sources: if the machine lacks something, one line says what it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.real.trees import ROOT

CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
FREE_THREADED = "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1"

pytestmark = pytest.mark.skipif(CMAKE is None, reason="cmake is not in the PATH")


def refusal(build: Path, *definitions: str, **environment: str) -> str:
    """The last words of a build that ends with an error: the message of timerd's own CMakeLists.txt."""
    command = [str(CMAKE), "-S", str(ROOT / "timerd"), "-B", str(build), f"-DPython_EXECUTABLE={sys.executable}"]
    ran = subprocess.run([*command, *definitions], capture_output=True, text=True, env={**os.environ, **environment})
    assert ran.returncode == 1
    (found,) = re.findall(r"^CMake Error at CMakeLists\.txt:\d+ \(message\):\n  (.*)\n\n", ran.stderr, re.MULTILINE)
    return str(found)


def test_a_machine_without_a_compiler_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    said = refusal(tmp_path / "build", "-DCMAKE_MAKE_PROGRAM=make", PATH=str(tmp_path))
    assert said == "timerd needs a C compiler: install gcc and libc6-dev (Fedora: gcc)"


@pytest.mark.long
def test_a_build_in_the_same_folder_finds_a_new_compiler_and_names_the_next_thing_that_is_missing(
    tmp_path: Path,
) -> None:
    said = refusal(tmp_path / "build", CC="false")
    assert said == "timerd needs a C compiler: CC=false compiles no program"
    said = refusal(tmp_path / "build", f"-DPython_INCLUDE_DIR={tmp_path}")
    assert said == "timerd needs Python.h: install python3-dev (Fedora: python3-devel)"


@pytest.mark.long
def test_a_free_threaded_python_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FREE_THREADED)  # in place of such an interpreter
    said = refusal(tmp_path / "build", PYTHONPATH=str(tmp_path))
    assert said.startswith("timerd does not run on a free-threaded CPython (this is 3.")
