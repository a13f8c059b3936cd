"""The configurations of topics that this broker knows, and their defaults: admin clients ask for them."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The configurations that a topic may have, and their defaults. Only max.message.bytes has an effect. Retention times,
# retention sizes and segment sizes may have any value: no record is removed because of them. All in-sync replicas have
# a record before it is acknowledged, so any min.insync.replicas is met.
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
LEAST = {"min.insync.replicas": 1, "retention.bytes": -1, "retention.ms": -1, "segment.bytes": 14}  # all others: 0
INTEGER = re.compile(r"-?[0-9]{1,19}")
FIXED = {"cleanup.policy": ("delete",), "compression.type": ("producer",), "message.timestamp.type": ("CreateTime",)}


def wrong_config(configs: Mapping[str, str], replicas: int) -> str | None:
    """The first error in the configurations of a new topic; None if there is none."""
    for name, value in configs.items():
        if name not in SETTABLE:
            return f"{name}: this broker knows {', '.join(SETTABLE)}"
        if name in FIXED and value not in FIXED[name]:
            return f"{name}={value}: this broker has {' or '.join(FIXED[name])} alone"
        if name in FIXED:
            continue
        least = LEAST.get(name, 0)
        if not INTEGER.fullmatch(value) or int(value) < least:
            return f"{name}={value[:40]}: an integer from {least} on"
        if name == "min.insync.replicas" and int(value) > replicas:
            return f"{name}={value}: the topic has {replicas} replicas"
    return None
