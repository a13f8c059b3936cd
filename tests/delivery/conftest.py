"""A producer on a manual clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from producing import Scene
from timerd.testing import Manual


@pytest.fixture
def manual() -> Iterator[Manual]:
    with Manual() as made:
        yield made


@pytest.fixture
def scene(manual: Manual) -> Scene:
    return Scene(manual)
