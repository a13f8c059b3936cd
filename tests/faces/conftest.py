"""Each test of this folder that asks for `face` or `client` runs over both faces, unless it is marked `@THREADED`.

Every test runs over both transports. Over packets, `make test` runs only the files in OVER_PACKETS, where the transport
matters, and only with the threaded face. `make test-long` runs the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.real.daemons import Daemon
from support.real.faces import Face
from support.real.patience import PATIENCE_S
from timerd_wire.transports import TRANSPORT_VARIABLE, TRANSPORTS

OVER_PACKETS = (  # the files that `make test` runs over packets
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
    params = item.callspec.params
    matters = item.path.stem in OVER_PACKETS and params.get("face") != "aio"
    if params["transport"] != TRANSPORTS[0] and not matters:
        item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True, params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport of all clients of the test and of its children. `runtime_dir` has unset what the user had set."""
    name: str = request.param
    monkeypatch.setenv(TRANSPORT_VARIABLE, name)
    return name


@pytest.fixture
def client(daemon: Daemon, face: Face) -> Iterator[Any]:
    """A client of the test's face. Its methods block."""
    with face.connect(timeout=PATIENCE_S) as made:
        yield made
