"""make wheels: what it asks of a machine, and what the wheels do not tell of the machine."""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.real.trees import ROOT

SCRIPT = ROOT / ".ci/wheels.py"


@pytest.mark.skipif(not SCRIPT.exists(), reason="an sdist has no .ci")
@pytest.mark.parametrize("tools", [[], ["ninja>=1.5"], ["cmake>=3.15", "ninja>=1.5"]], ids=len)
def test_a_wheel_is_built_with_the_tools_that_the_machine_lacks(
    tools: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scikit_build_core").mkdir()
    (tmp_path / "scikit_build_core/__init__.py").touch()
    build = f"def get_requires_for_build_wheel(settings):\n    return {tools}\n"
    (tmp_path / "scikit_build_core/build.py").write_text(build)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert runpy.run_path(str(SCRIPT))["absent_tools"](Path(sys.executable)) == tools


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
