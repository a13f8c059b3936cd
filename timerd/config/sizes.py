"""The effective numbers of a configuration: those that are given, and those that formulas make from them."""

from __future__ import annotations

from typing import Any

from .config import KNOBS, Config


def sizes_of(config: Config) -> dict[str, int]:
    """The number of each knob that has one, by the knob's name.

    With capacity=1000 and nothing else, `nodes` is 750, as its formula says.
    """
    for name, knob in KNOBS.items():
        if knob.formula is not None and getattr(config, name) is None:
            made: dict[str, Any] = {name: max(knob.formula.of(config), 1)}
            config = config._replace(**made)
    return {name: value for name, value in config._asdict().items() if type(value) is int}
