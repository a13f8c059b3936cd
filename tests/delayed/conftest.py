"""Clients of two processes, on a manual clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import timerd as td
from timerd.testing import Manual


@pytest.fixture
def client(manual: Manual) -> Iterator[td.Client]:
    with td.connect() as made:
        yield made


@pytest.fixture
def other(manual: Manual) -> Iterator[td.Client]:
    """The client of another process."""
    with td.Client() as made:
        yield made
