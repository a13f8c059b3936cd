"""The bytes of shared memory: of a record of each kind, and of some arenas."""

from __future__ import annotations

from timerd.arena.plan import SIZED_BY, plan_of
from timerd.config.config import KNOBS, Config, dashed
from timerd_shm.declare import layout
from timerd_shm.declare.fields import size_of

MIB = 1 << 20
# Capacity, clients and events of the arenas in the table; 0 is the default.
ARENAS = (
    (1_024, 32, 1_024),
    (4_096, 64, 4_096),
    (8_192, 0, 0),
    (32_768, 0, 0),
    (131_072, 0, 0),
    (262_144, 0, 0),
    (524_288, 0, 0),
    (1_048_576, 0, 0),
    (1_048_576, 1_024, 262_144),
    (4_194_304, 1_024, 1_048_576),
    (16_777_216, 4_096, 1_048_576),
)


def config_of(capacity: int, clients: int, ring_events: int) -> Config:
    """A row of ARENAS as a configuration."""
    config = Config(capacity=capacity)
    return config._replace(clients=clients or config.clients, ring_events=ring_events or config.ring_events)


def sizes() -> list[str]:
    """The bytes of a record of each kind, and the sizes of some arenas."""
    lines = ["| knob | default | bytes for each |", "|---|---|---:|"]
    for region, name in SIZED_BY.items():
        default = KNOBS[name].show(Config._field_defaults[name]).strip("()")
        default = f"{int(default):,}" if default.isdecimal() else default
        lines.append(f"| `--{dashed(name)}` | {default} | {size_of(layout.REGION_RECORDS[region])} |")
    lines += [
        "",
        "| `--capacity` | `--clients` | `--ring-events` | bytes of shared memory | MiB |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in ARENAS:
        config = config_of(*row)
        size = plan_of(config).size
        is_default = config == Config()
        numbers = [f"{number:,}" for number in (config.capacity, config.clients, config.ring_events, size)]
        cells = [f"**{cell}**" if is_default else cell for cell in (*numbers, f"{size / MIB:,.1f}")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


PARTS = {"howto/sizing.md": {"sizes": sizes}}
