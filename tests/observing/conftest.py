"""What tests of metrics, traces and logs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timerd.testing import Manual


@pytest.fixture
def manual() -> Iterator[Manual]:
    """A daemon on a manual clock."""
    with Manual() as made:
        yield made
