"""Fixtures of the tests of places."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fakes.own_places import OwnPlaces
from support.real.daemons import clean_up


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> Iterator[OwnPlaces]:
    """Places of the test alone. Only the last can be made: here, there is no /run and no /run/user for the others."""
    directory = Path(tempfile.mkdtemp(prefix="td-"))  # not below tmp_path: paths of sockets are short
    directory.chmod(0o711)
    made = OwnPlaces(directory, monkeypatch)
    yield made
    for place in made.all:
        if os.path.lexists(place):
            left = clean_up(place)
            assert not left, f"left behind: {', '.join(left)}"
    shutil.rmtree(directory)
