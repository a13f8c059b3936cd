"""The settings of a cluster, given at its start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORKERS_MAX = 64
PARTITIONS_MAX = 4_000  # of all topics: a partition takes two descriptors of each broker that holds it
PORT_MAX = 65_535
TIME_MAX = 3_600.0  # s
ANY = ("0.0.0.0", "::")  # addresses that stand for all of this machine's
LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where the brokers reach each other if `bind` is in ANY
FRAME_MIN, FRAME_MAX = 1 << 10, 100 << 20  # of Kafka's socket.request.max.bytes, which is FRAME_MAX by default
QUOTA_MAX = 1e15  # bytes a second
SESSION_MAX = 86_400.0  # s
# A name, or an address: an IPv4 address looks like a name, and an IPv6 address has two colons at least.
HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?")


class SettingsError(ValueError):
    """A setting out of its bounds. The text has the setting, its bounds, and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The cluster's settings: the same in each of its processes. Times are in seconds, sizes in bytes."""

    data: Path
    workers: int = 4
    replicas: int = 3  # of a topic that is created without a number; `workers` at most
    partitions: int = 1  # of a topic that is created without a number
    bind: str = "127.0.0.1"  # the address at which the brokers listen
    advertised_host: str = ""  # the host that clients get; empty: `bind`
    port: int = 9092  # of the bootstrap address
    ports: tuple[int, ...] = ()  # of each worker
    secret: str = ""  # followers show it to their leaders
    instance: str | None = None  # of the timer daemon
    runtime_dir: str | None = None
    auto_create: bool = True  # whether a topic that a client asks for is created
    produce_quota: float | None = None  # bytes a second of each client id, over all workers
    fetch_quota: float | None = None
    quota_window: float = 1.0
    initial_rebalance_delay: float = 0.0  # Kafka's group.initial.rebalance.delay.ms
    session_timeout_min: float = 0.1
    session_timeout_max: float = 1800.0
    request_max: int = FRAME_MAX

    @property
    def host(self) -> str:
        """The host that clients get."""
        return self.advertised_host or self.bind

    @property
    def local_host(self) -> str:
        """The host at which the brokers reach each other."""
        return LOCAL.get(self.bind, self.bind)

    def check(self) -> None:
        """Raise SettingsError if a setting is out of its bounds. The settings' types are those that are declared."""
        for error in (*self._numbers(), *self._hosts(), *self._quotas(), *self._times()):
            raise SettingsError(error)

    def _numbers(self) -> Iterator[str]:
        """The errors in numbers of brokers, replicas, partitions, ports and bytes."""
        if not 1 <= self.workers <= WORKERS_MAX:
            yield f"workers={self.workers}: 1 to {WORKERS_MAX}; leave it out for {Settings.workers}"
        elif not self.replicas >= 1:
            yield (
                f"replicas={self.replicas}: 1 at least, {self.workers} (the workers) at most; leave it out for "
                f"{min(Settings.replicas, self.workers)}"
            )
        elif self.replicas > self.workers:
            yield f"replicas={self.replicas} on {self.workers} workers: start more, or ask for fewer"
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            yield f"partitions={self.partitions}: 1 to {PARTITIONS_MAX}; leave it out for {Settings.partitions}"
        if not 0 <= self.port <= PORT_MAX:
            yield f"port={self.port}: 1 to {PORT_MAX}, or 0 for any"
        elif self.workers > 1 and self.port + self.workers > PORT_MAX:
            yield (
                f"port={self.port}: the brokers have the {self.workers} ports after it: {PORT_MAX} at most; give "
                f"{PORT_MAX - self.workers} or less, or 0 for any"
            )
        if not FRAME_MIN <= self.request_max <= FRAME_MAX:
            yield f"request_max={self.request_max}: {FRAME_MIN} to {FRAME_MAX} bytes; leave it out for {FRAME_MAX}"

    def _hosts(self) -> Iterator[str]:
        """The errors in the addresses."""
        if not self.bind:
            yield "bind='': give an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"
        elif self.bind in ANY and (not self.advertised_host or self.advertised_host in ANY):
            yield (
                f"bind={self.bind} advertised_host={self.advertised_host!r}: clients get the advertised host, so name "
                "one that they can reach (--advertised-host localhost)"
            )
        elif self.advertised_host and not HOST.fullmatch(self.advertised_host):
            yield (
                f"advertised_host={self.advertised_host!r}: the name or the address of one host, of 253 characters at "
                "most; leave out the port, which is --port"
            )

    def _quotas(self) -> Iterator[str]:
        """The errors in the quotas. NaN is out of all bounds, here and below."""
        for name in ("produce_quota", "fetch_quota"):
            quota = getattr(self, name)
            if quota is not None and not 0 < quota <= QUOTA_MAX:
                yield f"{name}={quota}: above 0 bytes a second, {QUOTA_MAX:g} at most; leave it out for no quota"
        if not 0 < self.quota_window <= TIME_MAX:
            yield (
                f"quota_window={self.quota_window:g}: above 0 s, {TIME_MAX:g} s at most; leave it out for "
                f"{Settings.quota_window:g} s"
            )

    def _times(self) -> Iterator[str]:
        """The errors in the times of groups."""
        if not 0 <= self.initial_rebalance_delay <= TIME_MAX:
            yield f"initial_rebalance_delay={self.initial_rebalance_delay:g}: 0 to {TIME_MAX:g} s; leave it out for 0 s"
        if not 0 < self.session_timeout_min <= SESSION_MAX:
            yield (
                f"session_timeout_min={self.session_timeout_min:g}: above 0 s, {SESSION_MAX:g} s at most; leave it out "
                f"for {Settings.session_timeout_min:g} s"
            )
        elif not self.session_timeout_min <= self.session_timeout_max <= SESSION_MAX:
            yield (
                f"session_timeout_max={self.session_timeout_max:g}: {self.session_timeout_min:g} s "
                f"(session_timeout_min) to {SESSION_MAX:g} s; leave it out for {Settings.session_timeout_max:g} s"
            )
