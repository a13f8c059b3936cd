"""The settings of a cluster, given at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WORKERS_MAX = 64
PARTITIONS_MAX = 4_000  # of all topics: a partition takes two descriptors of each broker that holds it
PORT_MAX = 65_535
DELAY_MAX = 3_600.0
ANY = ("0.0.0.0", "::")  # addresses that stand for all of this machine's
LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where the brokers reach each other if `bind` is in ANY
FRAME_MAX = 100 << 20  # Kafka's socket.request.max.bytes


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
        """Raise SettingsError if a setting is out of its bounds."""
        if not 1 <= self.workers <= WORKERS_MAX:
            raise SettingsError(f"workers={self.workers}: 1 to {WORKERS_MAX}")
        if not self.replicas >= 1:
            raise SettingsError(f"replicas={self.replicas}: 1 at least, {self.workers} (the workers) at most")
        if self.replicas > self.workers:
            raise SettingsError(f"replicas={self.replicas} on {self.workers} workers: start more, or ask for fewer")
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise SettingsError(f"partitions={self.partitions}: 1 to {PARTITIONS_MAX}")
        if not 0 <= self.port <= PORT_MAX:
            raise SettingsError(f"port={self.port}: 1 to {PORT_MAX}, or 0 for any")
        if not 0 <= self.initial_rebalance_delay <= DELAY_MAX:
            raise SettingsError(f"initial_rebalance_delay={self.initial_rebalance_delay:g}: 0 to {DELAY_MAX:g} s")
        if not self.bind:
            raise SettingsError("bind='': give an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all")
        if self.bind in ANY and (not self.advertised_host or self.advertised_host in ANY):
            raise SettingsError(
                f"bind={self.bind} advertised_host={self.advertised_host!r}: clients get the advertised host, so name "
                "one that they can reach (--advertised-host localhost)"
            )
        if self.workers > 1 and self.port + self.workers > PORT_MAX:
            raise SettingsError(
                f"port={self.port}: the brokers have the {self.workers} ports behind it: {PORT_MAX} at most"
            )
        for name in ("produce_quota", "fetch_quota"):
            quota = getattr(self, name)
            if quota is not None and not quota > 0:
                raise SettingsError(f"{name}={quota}: above 0 bytes a second; leave it out for no quota")
