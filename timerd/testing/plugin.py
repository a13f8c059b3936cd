"""Fixtures of pytest for programs that use timerd. pytest loads this module itself where timerd is installed.

    timerd_daemon      a real daemon, as new for each test; td.client() reaches it, in other processes too
    timerd_client      td.client(), connected to that daemon
    timerd_manual      a daemon in this process on a clock of its own: timerd_manual.advance(30) takes a millisecond

The client and the daemon are imported when a test asks for one of them, so other runs of pytest cost nothing.

Outside of tests, clients of this process do not look for the machine's daemon. pytest imports the modules of an
application, and a worker of such a module would otherwise run real calls before the first test begins.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from timerd_shm.host import reach

if TYPE_CHECKING:
    import timerd as td

    from .manual.manual import Manual
    from .real.daemon import Daemon

FLAGS = "flags of the daemon that timerd_daemon starts, as on its command line: timerd --help"
INSTANCE = "instance of the daemon that timerd_daemon starts, if the program names one"
OUTSIDE = (
    "outside of a test, timerd's plugin for pytest keeps clients from the machine's daemon: use them in a test or in "
    "a fixture, or give runtime_dir="
)

_tests = 0  # that run now: a plugin may run several in threads, and a test may run pytest


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    pytest_configure(early_config)  # before the first conftest.py, which may import the application


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not reach.closed_because:
        config.add_cleanup(partial(setattr, reach, "closed_because", ""))
        reach.closed_because = OUTSIDE


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, None, None]:
    global _tests
    _tests, reach.closed_because = _tests + 1, ""
    try:
        if "timerd_client" in sys.modules:
            from .clients import end_kept_away

            end_kept_away()
        yield
    finally:
        _tests -= 1
        reach.closed_because = "" if _tests else OUTSIDE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("timerd_flags", FLAGS, default="")
    parser.addini("timerd_instance", INSTANCE, default="default")


@pytest.fixture(scope="session")
def timerd_session_daemon(pytestconfig: pytest.Config) -> Iterator[Daemon]:
    """The daemon of the whole session, for fixtures of a session. The processes that they start need its `environment`.

    Each test with `timerd_daemon` gives it an arena of its own. With pytest-xdist each worker has a daemon.
    """
    from .real.daemon import Daemon

    directory = Path(tempfile.mkdtemp(prefix="timerd-"))  # not below tmp_path: a socket's path must be short
    flags = shlex.split(pytestconfig.getini("timerd_flags"))
    try:
        with Daemon(directory, flags, pytestconfig.getini("timerd_instance")) as daemon:
            yield daemon
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def timerd_daemon(timerd_session_daemon: Daemon) -> Iterator[Daemon]:
    """A real daemon, as new: nothing of another test is left. `td.client()` and processes that start now reach it."""
    from .clients import connected_anew

    daemon = timerd_session_daemon
    daemon.renew()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in daemon.environment.items():
            patch.setenv(name, value)
        with connected_anew(lambda target: target.runtime_dir in (None, daemon.runtime_dir)):
            yield daemon
    daemon.start()  # for fixtures of the session, where the test has stopped it


@pytest.fixture
def timerd_client(timerd_daemon: Daemon) -> td.Client:
    """`td.client()`, connected to `timerd_daemon`; after the test it connects anew."""
    import timerd as td

    client = td.client()
    client.ready(timeout=10)
    return client


@pytest.fixture
def timerd_manual() -> Iterator[Manual]:
    """A daemon in this process, on a clock that stands still until `timerd_manual.advance(30)`.

    Every client of this process belongs to it: `td.client()`, `td.Client()`, `td.connect()` and those of td.aio.
    """
    from .manual.manual import Manual

    with Manual() as manual:
        yield manual
