"""Outside of tests, a run of pytest does not reach the machine's daemon: modules that it imports may make workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.suite.user_tests import run_pytest

SHOP = """
import timerd as td

calls = td.Calls(group="shop")
ran = []

@calls.handler("charge")
def charge(call):
    ran.append(call.payload)

@calls.every("cleanup", seconds=3600)
def cleanup(call):
    ran.append("cleanup")

worker = td.Client(group="shop")
worker.serve(calls)
prices = td.client().subscribe("prices")
early = td.client().register("early", timeout=None)
"""

CONFTEST = """
import pytest
import timerd as td

import shop

refused = []


def ask():
    for timeout in None, 60:
        for asks in shop.worker.ping, shop.worker.ready, td.client().ping, lambda timeout: td.connect(timeout=timeout):
            with pytest.raises(td.TimerdUnavailableError, match="outside of a test.*: use them in a test"):
                asks(timeout=timeout)
    with pytest.raises(td.TimerdUnavailableError, match="outside of a test"):
        td.connect(autostart=True)
    with pytest.raises(td.TimerdUnavailableError, match="outside of a test"):
        td.Client(autostart=True).ping()
    refused.append(1)


def pytest_collection_finish():
    ask()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol():
    ask()                                      # between two tests
    yield


def pytest_unconfigure():
    assert len(refused) >= 3, refused
    print("refused", *refused)
"""

TESTS = """
import pytest
import timerd as td

import shop
from shop import ran, worker


def test_without_a_fixture():
    assert worker.state is td.LinkState.CONNECTING and not ran


def test_the_module_serves_in_a_test_with_a_fixture(timerd_manual):
    worker.call_later("charge", 30, b"user 7")
    timerd_manual.advance(31)
    assert ran.pop() == b"user 7"


def test_between_two_of_them():
    assert worker.state is td.LinkState.CONNECTING and not ran


def test_once_more(timerd_manual):
    worker.call_later("charge", 30, b"user 8")
    timerd_manual.advance(31)
    assert ran.pop() == b"user 8"


def test_an_operation_of_the_import_has_ended():
    assert isinstance(shop.early.result().error, td.ClosedError)


def test_a_client_reaches_the_daemon_of_the_machine_as_the_application_does():
    client = td.client()
    assert client.fire_wait("inbox/7", timeout=60) == 0
    assert client.mark().incarnation > 0
    assert [call.name for call in worker.calls()] == ["charge"]        # looking takes no call
    worker.ping(timeout=60)
    worker.call_later("cleanup", 0, id="mine")
    worker.flush(timeout=60)
    assert worker.cancel_call_wait("mine", timeout=60)                 # it is due, and was not delivered
    with td.connect(timeout=60) as other:
        other.ping(timeout=60)
    assert not ran
"""


@pytest.mark.timeout(300)  # a daemon, and a run of pytest
def test_a_module_that_serves_at_its_import_takes_no_call_of_the_machine(runtime_dir: Path) -> None:
    """pytest imports it, and another client has made a call for its group."""
    place = os.fspath(runtime_dir)
    with Daemon(runtime_dir), td.connect(runtime_dir=place, group="shop", timeout=60) as client:
        client.call_later_wait("charge", 0, b"a customer", timeout=60)
        environ = f"import os\nos.environ['TIMERD_RUNTIME_DIR'] = {place!r}\n"
        files = {"shop.py": SHOP, "conftest.py": environ + CONFTEST, "test_shop.py": TESTS}
        ended = run_pytest(runtime_dir, files, "-n0", "-s", "test_shop.py")
        assert ended.returncode == 0 and "refused 1 1 1" in ended.stdout, ended.stdout + ended.stderr
        assert [(call.name, call.payload) for call in client.calls()] == [("charge", b"a customer")]
