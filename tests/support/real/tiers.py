"""The two tiers of the tests: what `make test` runs of a long list of parameters, and what `make test-long` adds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_tiers(values: Iterable[Any], short: int) -> list[Any]:
    """Parameters: the first `short` values are for `make test`, the others are long.

    @pytest.mark.parametrize("seed", in_tiers(range(10), 4))       # `make test` runs 0 to 3
    """
    return [
        value if number < short else pytest.param(value, marks=pytest.mark.long) for number, value in enumerate(values)
    ]
