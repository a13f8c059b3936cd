"""A configuration for people: `--show-config` prints each knob's value and where it comes from."""

from __future__ import annotations

import json
from typing import NamedTuple

from .config import KNOBS, Config, dashed, sizes_of


class Settings(NamedTuple):
    """A configuration, the source of each value, and warnings about them."""

    config: Config
    sources: dict[str, str]
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, str, str]]:
        """(knob, value with its formula, source) of each knob, as text."""
        sizes = sizes_of(self.config)
        rows = []
        for name, knob in KNOBS.items():
            given = getattr(self.config, name)
            text = knob.show(sizes.get(name, given))
            if given is None and knob.formula is not None:
                text += f" ({knob.formula.text})"
            rows.append((dashed(name), text, self.sources[name]))
        return rows

    def table(self) -> str:
        """The output of `--show-config`."""
        rows = [("knob", "value", "source"), *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows)

    def as_json(self) -> str:
        """The output of `--show-config --json`; durations are in nanoseconds, sizes in bytes."""
        effective = self.config._asdict() | sizes_of(self.config)
        values = {}
        for name, knob in KNOBS.items():
            values[dashed(name)] = {"value": effective[name], "source": self.sources[name]}
            if knob.formula is not None and getattr(self.config, name) is None:
                values[dashed(name)]["formula"] = knob.formula.text
        return json.dumps(values, indent=2)
