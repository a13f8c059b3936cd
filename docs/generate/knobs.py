"""The knobs of `timerd`, each with its variable, its default and its limits."""

from __future__ import annotations

from timerd.config.config import KNOBS, Config, dashed
from timerd.config.knobs import Knob
from timerd.config.sources import variable
from timerd_shm.declare.limits import NAME_PATTERN

from .text import code, link, table

# The page that says more about a knob.
SEE = {
    "instance": "../howto/operating.md#where-the-daemon-is",
    "runtime_dir": "../howto/operating.md#where-the-daemon-is",
    "capacity": "../howto/sizing.md",
    "nodes": "../howto/sizing.md",
    "watermarks": "../howto/sizing.md",
    "blocks": "../howto/sizing.md",
    "ids": "../howto/sizing.md",
    "tick": "../howto/operating.md#time",
    "ring_events": "../howto/sizing.md",
    "ring_bytes": "../howto/sizing.md",
    "clients": "../howto/operating.md#sizes",
    **dict.fromkeys((name for name in KNOBS if name.startswith("quota_")), "../explanation/neighbours.md#quotas"),
    "frame_memory": "../explanation/neighbours.md#quotas",
    "lease": "../howto/calls.md",
    "group_retention": "../howto/operating.md#time",
    "dead_letters": "../howto/calls.md#how-to-dead-letters",
    "schedule_retention": "../howto/operating.md#time",
    "settled_ids_kept": "../howto/calls.md",
    "arena_file": "../howto/containers.md",
    "unix_group": "../howto/operating.md#permissions",
    "ephemeral": "../howto/notebooks.md",
    "idle_exit": "../howto/notebooks.md",
    "log_level": "../howto/observing.md#logs",
    **dict.fromkeys((name for name in KNOBS if name.startswith("journal")), "../howto/operating.md#the-journal"),
}


def knobs() -> list[str]:
    """A row for each knob."""
    rows = (
        (
            f"{code(f'--{dashed(name)}')}, {code(variable(name))}",
            default_of(name),
            limits_of(knob),
            knob.about,
            link(SEE.get(name, "")),
        )
        for name, knob in KNOBS.items()
    )
    return table(("flag and variable", "default", "limits", "what it is", "more"), rows)


def default_of(name: str) -> str:
    """The default of a knob: a value as `timerd` takes it, or words."""
    default = Config._field_defaults[name]
    shown = KNOBS[name].show(default)
    return shown.strip("()") if default is None else code(shown)


def limits_of(knob: Knob) -> str:
    """The values that a knob may have; empty if nothing limits it, or nobody has declared the limits."""
    if knob.high:
        return f"{code(knob.show(knob.low))} to {code(knob.show(knob.high))}"
    if knob.choices:
        return ", ".join(map(code, knob.choices))
    return {
        "flag": f"{code('true')}, {code('false')}",
        "name": code(NAME_PATTERN.pattern),
        "path": "a path",
        "group": "a name or a number",
    }.get(knob.unit, "")


PARTS = {"reference/knobs.md": {"knobs": knobs}}
