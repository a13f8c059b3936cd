"""Each test of this folder that asks for `face` or `client` runs over both faces, but where it says `@THREADED`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from daemons import Daemon
from faces import Face
from patience import PATIENCE_S


@pytest.fixture
def client(daemon: Daemon, face: Face) -> Iterator[Any]:
    """A client of that face; its methods block."""
    with face.connect(timeout=PATIENCE_S) as made:
        yield made
