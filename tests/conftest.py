"""Fixtures of every test: a seed that is printed, a runtime directory of its own, and a check of what it leaves."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import support.real.interpreted  # noqa: F401 - before anything of timerd is imported
import timerd as td
from support.fakes.descriptors import at_least
from support.real.daemons import Daemon, clean_up
from support.real.faces import FACES, Face, face_of
from support.real.patience import PATIENCE_S
from support.real.shell import Run, runner
from support.suite.guarantees import Guarantees
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

if TYPE_CHECKING:
    from support.fakes.networks import World
    from support.rig.harness import Rig
    from timerd.testing import Manual

# Fixtures import the compiled core only when they run: tests/client and tests/hot also run where no core was built.
pytest.register_assert_rewrite(
    "support.rig.crashes",
    "support.fakes.daemonrules",
    "support.oracle.journalplay",
    "support.oracle.play",
    "support.rig.rules",
)

SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="seed of the random tests (default: a new one each run, printed)")


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist take the seed that the controller has chosen and printed.
    chosen = getattr(config, "workerinput", {}).get("seed", config.getoption("--seed"))
    config.stash[SEED] = random.SystemRandom().getrandbits(32) if chosen is None else chosen
    config.pluginmanager.register(Guarantees(config))
    give_children_sigint()


def give_children_sigint() -> None:
    """`sh -c 'make test &'` starts this process with SIGINT ignored. This function lets its children react to SIGINT.

    A child inherits an ignored signal, and a test that interrupts such a child would wait for ever. A child inherits no
    handler: so this process gets a handler that does nothing, and its children start with the default one.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    node.workerinput["seed"] = node.config.stash[SEED]  # type: ignore[attr-defined]


def pytest_report_header(config: pytest.Config) -> str:
    return f"timerd: --seed={config.stash[SEED]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("seed", f"--seed={item.config.stash[SEED]}"))
    return report


@pytest.hookimpl(trylast=True)  # when `-m` has left out tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most = float(config.getini("faulthandler_timeout"))
    for item in items:
        limit = item.get_closest_marker("timeout")
        if limit is not None and limit.args and limit.args[0] >= most:
            raise pytest.UsageError(
                f"{item.nodeid} may take {limit.args[0]} s, and faulthandler_timeout, which ends the whole process, is "
                f"{most:.0f} s: give a larger one"
            )
    if os.geteuid() == 0:
        return
    for item in items:
        if (root := item.get_closest_marker("root")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs root: {root.args[0]}"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number for this test alone: the run's --seed and the test's name make it."""
    text = f"{request.config.stash[SEED]} {request.node.nodeid}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Random numbers that --seed reproduces."""
    return random.Random(seed)


@pytest.fixture(autouse=True)
def open_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Allows as many open files as the test's mark `files` says."""
    mark = request.node.get_closest_marker("files")
    with nullcontext() if mark is None else at_least(mark.args[0]):
        yield


@pytest.fixture(autouse=True)
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test's own TIMERD_RUNTIME_DIR. A test fails if it leaves behind a process or shared memory of this directory.

    It is not below tmp_path: that would be too long for the path of a socket.
    """
    for name in [name for name in os.environ if name.startswith("TIMERD_")]:
        monkeypatch.delenv(name)
    directory = Path(tempfile.mkdtemp(prefix="td-"))
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(directory))
    yield directory
    left = clean_up(directory) if any(directory.iterdir()) else []
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def port() -> Iterator[int]:
    """A port for a server that opens its own socket. Until the test ends, nobody else is given this port.

    The socket here does not listen. So Linux lets a server have the port that sets SO_REUSEADDR, as servers do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def make_daemon(runtime_dir: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons (arguments as `Daemon`'s, without the directory) and removes them at the end."""
    made: list[Daemon] = []

    def make(*flags: str, **knobs: object) -> Daemon:
        made.append(Daemon(runtime_dir, *flags, **knobs))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for daemon in made:
        daemon.destroy()


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A running daemon of the default instance, with a small arena."""
    return make_daemon()


@pytest.fixture(scope="module")
def daemon_of_module() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="td-") as directory, Daemon(Path(directory)) as made:
        yield made


@pytest.fixture
def shared_daemon(runtime_dir: Path, daemon_of_module: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """One daemon for all tests of a module, which must not depend on each other's ids, watermarks and counters."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(daemon_of_module.paths.directory))
    return daemon_of_module


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    """A client of the fixture `daemon`."""
    with td.connect(timeout=PATIENCE_S) as made:
        yield made


@pytest.fixture
def manual() -> Iterator[Manual]:
    """A daemon in this process, whose clock the test advances."""
    from timerd.testing import Manual
    from timerd_client.groups.membership import serving

    # Otherwise clients of earlier tests would connect here, as clients do that a module made at its import.
    serving.clear()
    with Manual() as made:
        yield made


@pytest.fixture
def world() -> World:
    """The conductor on a simulated network, with nothing to do."""
    from support.fakes.networks import World

    return World().until_quiet()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """timerctl in this process: (exit status, output, error output)."""
    return runner(capsys)


@pytest.fixture
def dead(runtime_dir: Path) -> Rig:
    """An arena in which everything is in use: that of the default instance, whose daemon is dead."""
    from support.real.remains import bury, rig_of_this_boot

    rig = rig_of_this_boot()
    bury(rig, runtime_dir)
    return rig


@pytest.fixture(scope="session")
def sound() -> bytes:
    """An arena in which everything is in use and nothing is wrong."""
    from support.rig.damage import busy_rig

    return sound_memory(busy_rig())


@pytest.fixture(scope="session")
def grouped() -> bytes:
    """An arena like `sound`, with groups."""
    from support.rig.damage import grouped_rig

    return sound_memory(grouped_rig())


def sound_memory(rig: Rig) -> bytes:
    rig.check()
    return bytes(rig.memory)


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """The threaded client, or the asyncio client."""
    with face_of(request.param) as made:
        yield made
