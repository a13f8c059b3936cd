"""timerctl stats --prometheus: the figures in Prometheus' text format (version 0.0.4), for a textfile collector.

    timerctl stats --prometheus > /var/lib/node_exporter/timerd.prom.new && mv ...

An application with its own /metrics uses `timerd_client.metrics` instead, which has the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from timerd_shm.read.families import Distribution, Family, Labels


def exposition(families: Iterable[Family]) -> Iterator[str]:
    """The lines of these metrics."""
    for family in families:
        name = f"timerd_{family.name}" + ("_total" if family.kind == "counter" else "")
        yield f"# HELP {name} {family.about}"
        yield f"# TYPE {name} {family.kind}"
        for labels, value in family.samples:
            if isinstance(value, Distribution):
                yield from distribution(name, labels, value)
            else:
                yield f"{name}{{{text_of(labels)}}} {value!r}"


def distribution(name: str, labels: Labels, value: Distribution) -> Iterator[str]:
    """The samples of a histogram."""
    for bound, count in value.buckets:
        yield f"{name}_bucket{{{text_of(labels | {'le': bound})}}} {count}"
    yield f"{name}_sum{{{text_of(labels)}}} {value.sum!r}"
    yield f"{name}_count{{{text_of(labels)}}} {value.buckets[-1][1]}"


def text_of(labels: Labels) -> str:
    """name="value",... with values escaped."""
    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
