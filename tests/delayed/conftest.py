"""Two clients on a manual clock: each stands for the client of a process."""

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
    """A second client, which stands for the client of another process."""
    with td.Client() as made:
        yield made
