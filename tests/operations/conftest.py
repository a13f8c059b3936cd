"""A client on a manual clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import timerd as td
from timerd.testing import Manual


@pytest.fixture
def client(manual: Manual) -> Iterator[td.Client]:
    with td.connect() as made:
        yield made
