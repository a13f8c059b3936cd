"""`import timerd` is light: what it loads is pinned here. And it has every name that a user needs."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import timerd_client
from support.real.trees import ROOT
from timerd_client import aio

HEAVY = ("asyncio", "psutil", "numpy", "posix_ipc", "timerd.core", "multiprocessing", "timerd.arena")


def loaded_by(code: str) -> set[str]:
    program = f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def third_party(modules: set[str]) -> set[str]:
    top = {name.partition(".")[0] for name in modules}
    ours = {name for name in top if name not in sys.stdlib_module_names and not name.startswith("_")}
    return ours - {"cython_runtime"}  # made by pyzmq's own compiled parts


def test_import_timerd_loads_the_client_only_when_it_is_used() -> None:
    assert third_party(loaded_by("import timerd")) == {"timerd"}


def test_import_timerd_loads_no_sockets_and_no_threads() -> None:
    loaded = loaded_by("import timerd as td")
    assert not loaded.intersection({*HEAVY, "_socket", "socket", "ssl", "select", "zmq", "threading", "atexit"})


def test_the_import_of_the_client_opens_nothing_and_starts_no_thread() -> None:
    code = """
import os, threading
opened = os.listdir("/proc/self/fd")
import timerd as td
from timerd import aio
td.client(), aio.client(), td.Client("other")
assert os.listdir("/proc/self/fd") == opened
assert len(os.listdir("/proc/self/task")) == len(threading.enumerate()) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_client_loads_pyzmq_and_msgpack_and_nothing_heavy() -> None:
    modules = loaded_by("import timerd as td; from timerd import ALL, ANY, at_least, total; td.connect; td.client")
    ours = {"timerd", "timerd_client", "timerd_client_parts__mypyc", "timerd_shm", "timerd_wire"}
    assert third_party(modules) == {*ours, "zmq", "msgpack"}
    assert not modules.intersection(HEAVY)


def test_asyncio_is_loaded_only_with_the_asyncio_face() -> None:
    modules = loaded_by("import timerd_client.aio")
    assert "asyncio" in modules
    assert not modules.intersection(set(HEAVY) - {"asyncio"})


def test_the_version_is_read_only_on_demand() -> None:
    assert "importlib.metadata" not in loaded_by("import timerd, timerd_client")


def test_asyncio_exports_the_same_names_as_timerd() -> None:
    assert set(aio.__all__) == set(timerd_client.__all__)
    assert all(hasattr(aio, name) for name in aio.__all__)
    assert all(getattr(aio, name) is getattr(timerd_client, name) for name in ("ALL", "at_least", "ArenaFullError"))


def test_timerd_forwards_every_name_of_the_client_and_no_other() -> None:
    code = """
import timerd, timerd_client
assert all(getattr(timerd, name) is getattr(timerd_client, name) for name in timerd_client.__all__)
assert set(dir(timerd)) == {"__version__", "aio", *timerd_client.__all__}
assert not hasattr(timerd, "no_such_name")
from timerd import *
assert ANY is timerd_client.ANY
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_client_over_packets_does_not_load_pyzmq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERD_TRANSPORT", "unix")
    code = "import timerd as td; from timerd_client import aio; td.client; aio.connect"
    assert "zmq" not in third_party(loaded_by(code))


def test_an_error_that_the_client_makes_is_a_public_name() -> None:
    made = set()
    for path in (ROOT / "client/timerd_client").rglob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "timerd_shm.declare.errors"
            for name in node.names
        }
        calls = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        made |= {name for name in imported & calls if name.endswith("Error")}
    assert {"InvalidValueError", "MalformedError"} <= made
    assert not sorted(name for name in made if not hasattr(timerd_client, name)), "nobody can catch these by name"
