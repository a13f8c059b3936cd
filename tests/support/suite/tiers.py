"""The two tiers of the tests: `make test` runs some sets of a long list of parameters, `make test-long` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_tiers(values: Iterable[Any], short: int) -> list[Any]:
    """Sets of parameters, each a tuple or one value. The first `short` sets are for `make test`, the others are long.

    @pytest.mark.parametrize("seed", in_tiers(range(10), 4))       # `make test` runs 0 to 3
    """
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*one, marks=[pytest.mark.long] * (number >= short)) for number, one in enumerate(sets)]
