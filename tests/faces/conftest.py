"""Each test of this folder that asks for `face` or `client` runs over both faces, unless it is marked `@THREADED`.

A face is a kind of client: the threaded one (`td.Client`), or that of asyncio (`aio.Client`).

`make test` and `make test-long` together run every test over both transports. `make test` runs each set of a test's
parameters over one transport, and each transport gets about half of the sets. So a test whose only parameter is the
face runs the threaded face over ZeroMQ, and the asyncio face over packets. A test without parameters runs over ZeroMQ.
In the files of OVER_PACKETS, where the transport matters, it runs over packets too. `make test-long` runs the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.real.daemons import Daemon
from support.real.faces import THREADED, Face
from support.real.patience import PATIENCE_S
from timerd_wire.transports import TRANSPORT_VARIABLE, TRANSPORTS

OVER_PACKETS = (  # in these files, `make test` runs tests without parameters over both transports
    "test_client_ends",
    "test_client_process",
    "test_client_unavailable",
    "test_closing",
    "test_dropped",
    "test_grants",
    "test_scopes",
    "test_transports",
)


def pytest_itemcollected(item: pytest.Function) -> None:
    numbers = dict(item.callspec.indices)
    transport = numbers.pop("transport")
    if THREADED.mark in item.own_markers:
        del numbers["face"]
    if numbers:
        for mark in item.iter_markers("parametrize"):
            # All arguments of one `parametrize` have the same index, which counts once: twice the index is always even.
            names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
            for name in names[1:]:
                numbers.pop(name.strip(), None)
        short = (sum(numbers.values()) + transport) % 2 == 0
    else:
        short = transport == 0 or item.path.stem in OVER_PACKETS
    if not short:
        item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True, params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport of all clients of the test and of its children. `runtime_dir` has unset the user's own variable."""
    name: str = request.param
    monkeypatch.setenv(TRANSPORT_VARIABLE, name)
    return name


@pytest.fixture
def client(daemon: Daemon, face: Face) -> Iterator[Any]:
    """A client of the test's face. Its methods block."""
    with face.connect(timeout=PATIENCE_S) as made:
        yield made
