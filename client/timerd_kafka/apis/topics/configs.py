"""The configurations of topics that this broker knows, and their defaults: those that admin clients ask for."""

from __future__ import annotations

from collections.abc import Mapping

# What a topic may be given. Of these max.message.bytes alone has an effect; the others must have their default.
SETTABLE = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "segment.bytes": "1073741824",
}
FIXED = {"cleanup.policy": ("delete",), "compression.type": ("producer",), "message.timestamp.type": ("CreateTime",)}


def wrong_config(configs: Mapping[str, str]) -> str | None:
    """What is wrong with the configurations of a new topic; None: nothing."""
    for name, value in configs.items():
        if name not in SETTABLE:
            return f"{name}: this broker knows {', '.join(SETTABLE)}"
        if name in FIXED and value not in FIXED[name]:
            return f"{name}={value}: this broker has {' or '.join(FIXED[name])} alone"
        if name not in FIXED and not value.lstrip("-").isdecimal():
            return f"{name}={value}: an integer"
    return None
