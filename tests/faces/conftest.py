"""Each test of this folder that asks for `face` or `client` runs over both faces, but where it says `@THREADED`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from daemons import Daemon
from faces import FACES, Face, face_of
from patience import PATIENCE_S


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """The threaded client, or the asyncio client."""
    with face_of(request.param) as made:
        yield made


@pytest.fixture
def client(daemon: Daemon, face: Face) -> Iterator[Any]:
    """A client of that face; its methods block."""
    with face.connect(timeout=PATIENCE_S) as made:
        yield made
