"""A producer on a manual clock."""

from __future__ import annotations

import pytest

from support.fakes.producing import Scene
from timerd.testing import Manual


@pytest.fixture
def scene(manual: Manual) -> Scene:
    return Scene(manual)
