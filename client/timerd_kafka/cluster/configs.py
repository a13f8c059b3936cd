"""The configurations of topics: every name that Kafka 4 knows, with Kafka's checks.

Source: Kafka 4, org.apache.kafka.storage.internals.log.LogConfig, and the validators in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import inf
from typing import NamedTuple

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7  # kinds of values, as DescribeConfigs numbers them
NUMBERS = {INT: 2**31, LONG: 2**63}  # the first integer beyond a kind
LONG_MAX = NUMBERS[LONG] - 1
INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
DECIMAL = re.compile(r"[+-]?([0-9]{1,300}(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][+-]?[0-9]{1,3})?")
THROTTLED = re.compile(r"([0-9]+:[0-9]+)?")
SHOWN = 40  # characters of a refused name or value in an error: an escaped name may be longer than a text in an answer
VALUE_MAX = 4_096  # characters: all brokers hold all values
OF_TOPIC, OF_BROKER, DEFAULT = 1, 4, 5  # sources of values, as DescribeConfigs numbers them


class Config(NamedTuple):
    """A configuration that a topic may have."""

    kind: int
    default: str | None  # None: Kafka has no default, and shows the configuration only if it is set
    of_broker: str  # the name of the broker's configuration that Kafka takes the default from
    least: float = -inf
    most: float = inf
    also: int | None = None  # a number that is legal outside these bounds
    allowed: tuple[str, ...] = ()
    has_effect: bool = False  # whether this broker does what a value demands; else the log has a warning


CONFIGS = {
    "cleanup.policy": Config(LIST, "delete", "log.cleanup.policy", allowed=("compact", "delete"), has_effect=True),
    "compression.gzip.level": Config(INT, "-1", "compression.gzip.level", 1, 9, also=-1),
    "compression.lz4.level": Config(INT, "9", "compression.lz4.level", 1, 17),
    "compression.type": Config(
        STRING,
        "producer",
        "compression.type",
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    "compression.zstd.level": Config(INT, "3", "compression.zstd.level", -131072, 22),
    "delete.retention.ms": Config(LONG, "86400000", "log.cleaner.delete.retention.ms", 0),
    "file.delete.delay.ms": Config(LONG, "60000", "log.segment.delete.delay.ms", 0),
    "flush.messages": Config(LONG, str(LONG_MAX), "log.flush.interval.messages", 1),
    "flush.ms": Config(LONG, str(LONG_MAX), "log.flush.interval.ms", 0),
    "follower.replication.throttled.replicas": Config(LIST, "", ""),
    "index.interval.bytes": Config(INT, "4096", "log.index.interval.bytes", 0),
    "internal.segment.bytes": Config(INT, None, ""),
    "leader.replication.throttled.replicas": Config(LIST, "", ""),
    "local.retention.bytes": Config(LONG, "-2", "log.local.retention.bytes", -2),
    "local.retention.ms": Config(LONG, "-2", "log.local.retention.ms", -2),
    "max.compaction.lag.ms": Config(LONG, str(LONG_MAX), "log.cleaner.max.compaction.lag.ms", 1),
    "max.message.bytes": Config(INT, "1048588", "message.max.bytes", 0, has_effect=True),
    "message.timestamp.after.max.ms": Config(LONG, "3600000", "log.message.timestamp.after.max.ms", 0, has_effect=True),
    "message.timestamp.before.max.ms": Config(
        LONG, str(LONG_MAX), "log.message.timestamp.before.max.ms", 0, has_effect=True
    ),
    "message.timestamp.type": Config(
        STRING,
        "CreateTime",
        "log.message.timestamp.type",
        allowed=("CreateTime", "LogAppendTime"),
        has_effect=True,
    ),
    "min.cleanable.dirty.ratio": Config(DOUBLE, "0.5", "log.cleaner.min.cleanable.ratio", 0, 1),
    "min.compaction.lag.ms": Config(LONG, "0", "log.cleaner.min.compaction.lag.ms", 0),
    # With acks=all, all replicas have a record before it is acknowledged, so any number is met. As in Kafka, a number
    # above that of the replicas stands for all of them.
    "min.insync.replicas": Config(INT, "1", "min.insync.replicas", 1, has_effect=True),
    "preallocate": Config(BOOLEAN, "false", "log.preallocate"),
    "remote.copy.lag.bytes": Config(LONG, "0", "", -1),
    "remote.copy.lag.ms": Config(LONG, "0", "", -1),
    "remote.log.copy.disable": Config(BOOLEAN, "false", ""),
    "remote.log.delete.on.disable": Config(BOOLEAN, "false", ""),
    "remote.storage.enable": Config(BOOLEAN, "false", ""),
    "retention.bytes": Config(LONG, "-1", "log.retention.bytes", has_effect=True),
    # Kafka's default is a week. This broker keeps records: the records of tests often have old times.
    "retention.ms": Config(LONG, "-1", "log.retention.ms", -1, has_effect=True),
    "segment.bytes": Config(INT, "1073741824", "log.segment.bytes", 1 << 20),
    "segment.index.bytes": Config(INT, "10485760", "log.index.size.max.bytes", 4),
    "segment.jitter.ms": Config(LONG, "0", "log.roll.jitter.ms", 0),
    "segment.ms": Config(LONG, "604800000", "log.roll.ms", 1),
    "unclean.leader.election.enable": Config(BOOLEAN, "false", "unclean.leader.election.enable"),
}
OWN_DEFAULTS = {"retention.ms"}  # their default is this broker's, and not Kafka's


class Rules(NamedTuple):
    """The configurations of a topic that have an effect, as numbers. Times are in milliseconds."""

    message_max: int
    appends_time: bool
    before_max: int
    after_max: int
    deletes: bool
    compacts: bool
    retention_ms: int  # below 0: without a bound
    retention_bytes: int  # below 0: without a bound

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> Rules:
        """The rules of a topic with these configurations."""
        return cls(
            message_max=int(value_of(configs, "max.message.bytes")),
            appends_time=value_of(configs, "message.timestamp.type") == "LogAppendTime",
            before_max=int(value_of(configs, "message.timestamp.before.max.ms")),
            after_max=int(value_of(configs, "message.timestamp.after.max.ms")),
            deletes="delete" in listed(value_of(configs, "cleanup.policy")),
            compacts="compact" in listed(value_of(configs, "cleanup.policy")),
            retention_ms=int(value_of(configs, "retention.ms")),
            retention_bytes=int(value_of(configs, "retention.bytes")),
        )

    @property
    def has_retention(self) -> bool:
        """Whether old records are removed."""
        return self.deletes and (self.retention_ms >= 0 or self.retention_bytes >= 0)


def value_of(configs: Mapping[str, str], name: str) -> str:
    """The value of a configuration of a topic that has these configurations of its own."""
    return configs.get(name, CONFIGS[name].default or "")


def shown(configs: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """All configurations of a topic, as an admin client sees them: name, value, and source of the value."""
    return [
        (name, configs.get(name, config.default or ""), source_of(configs, name))
        for name, config in CONFIGS.items()
        if name in configs or config.default is not None
    ]


def source_of(configs: Mapping[str, str], name: str) -> int:
    """The source of the value of a topic's configuration."""
    if name in configs:
        return OF_TOPIC
    return OF_BROKER if name in OWN_DEFAULTS else DEFAULT


def listed(value: str) -> list[str]:
    """The parts of a list."""
    return [part.strip() for part in value.strip().split(",")] if value.strip() else []


def kept(configs: Mapping[str, str]) -> dict[str, str]:
    """Legal configurations in the form in which Kafka shows them. All brokers hold them, so blanks are not kept."""
    return {name: kept_value(CONFIGS[name].kind, value) for name, value in configs.items()}


def kept_value(kind: int, value: str) -> str:
    """The form in which a legal value is kept."""
    if kind == LIST:
        return ",".join(listed(value))
    if kind in NUMBERS:
        return str(int(value))
    return value.strip().lower() if kind == BOOLEAN else value.strip()


def wrong_config(configs: Mapping[str, str | None]) -> str | None:
    """The first error in the configurations of a topic; None if there is none."""
    for name, value in configs.items():
        if name not in CONFIGS:
            return f"{name[:SHOWN]}: Kafka 4 has no such configuration of a topic; it has {', '.join(CONFIGS)}"
        if value is None:
            return f"{name}: null is no value of a topic's configuration; leave it out for the default"
        if why := wrong_value(name, value):
            return f"{name}={value[:SHOWN]}: {why}"
    given = {name: value for name, value in configs.items() if value is not None}
    least, most = value_of(given, "min.compaction.lag.ms"), value_of(given, "max.compaction.lag.ms")
    if int(least) > int(most):
        return f"min.compaction.lag.ms={least}: max.compaction.lag.ms={most} at most"
    if value_of(given, "remote.storage.enable").strip().lower() == "true":
        return "remote.storage.enable=true: this broker has no tiered storage, as Kafka without its plugin"
    return None


def wrong_value(name: str, value: str) -> str | None:
    """The error in the value of a known configuration; None if it is legal."""
    config = CONFIGS[name]
    if len(value) > VALUE_MAX:
        return f"{len(value)} characters: {VALUE_MAX} at most"
    if config.kind == BOOLEAN:
        return None if value.strip().lower() in ("true", "false") else "true or false"
    if config.kind == STRING:
        return None if value in config.allowed else f"one of {', '.join(config.allowed)}"
    if config.kind == LIST:
        return wrong_list(config, listed(value))
    text = value.strip()
    is_number = (DECIMAL if config.kind == DOUBLE else INTEGER).fullmatch(text) is not None
    number = (float(text) if config.kind == DOUBLE else int(text)) if is_number else 0
    end = NUMBERS.get(config.kind, inf)
    is_within = config.least <= number <= config.most and -end <= number < end
    return None if is_number and (is_within or number == config.also) else f"{bounds_of(config)}"


def bounds_of(config: Config) -> str:
    """The legal numbers of a configuration, for people."""
    what = "a number" if config.kind == DOUBLE else "an integer"
    least = config.least if config.least > -inf else -NUMBERS[config.kind]
    most = config.most if config.most < inf else NUMBERS[config.kind] - 1
    return f"{what} from {least} to {most}" + (f", or {config.also}" if config.also is not None else "")


def wrong_list(config: Config, parts: Collection[str]) -> str | None:
    """The error in the parts of a list; None if they are legal."""
    if not config.allowed:  # replicas whose replication is throttled
        if all(map(THROTTLED.fullmatch, parts)) or list(parts) == ["*"]:
            return None
        return "'*', or PARTITION:BROKER,PARTITION:BROKER,..."
    if len(set(parts)) < len(parts):
        return "it has a part twice"
    return None if set(parts) <= set(config.allowed) else f"some of {', '.join(config.allowed)}"


def without_effect(configs: Mapping[str, str]) -> list[str]:
    """The names of configurations that have no effect here, although their values differ from the defaults."""
    found = [name for name, value in configs.items() if not CONFIGS[name].has_effect and value != CONFIGS[name].default]
    return found + ["cleanup.policy"] * ("compact" in listed(value_of(configs, "cleanup.policy")))
