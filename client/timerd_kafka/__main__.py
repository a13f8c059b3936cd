"""`python -m timerd_kafka`: a Kafka cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

from timerd_client.errors import TimerdError
from timerd_kafka.apis.table import preload
from timerd_kafka.cluster.settings import Settings, SettingsError
from timerd_kafka.supervisor import shell
from timerd_kafka.supervisor.supervisor import Supervisor

INTERRUPTED = 130
CAPACITY_MIN, CAPACITY_MAX = 16, 1 << 24
DESCRIPTION = """\
A Kafka cluster on this machine, for tests and development. Its brokers are
processes, and every wait of a client is a delayed operation of timerd. It runs
in the foreground until Ctrl-C.

  python -m timerd_kafka                       a new directory, port 9092
  python -m timerd_kafka --data kafka-data     a cluster that keeps its records
  kafka-console-consumer.sh --bootstrap-server 127.0.0.1:9092 \\
    --topic orders --from-beginning
  timerctl --instance kafka-9092 stats         the waits of its requests
  python -m timerd_kafka fault --help          errors and late answers on demand
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="timerd_kafka", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Settings(data=Path())
    made.add_argument(
        "--data", type=directory, help="directory of records, offsets and topics (default: a temporary one)"
    )
    made.add_argument("--workers", type=int, default=default.workers, help="number of brokers (default: %(default)s)")
    made.add_argument("--replicas", type=int, help="replicas of a topic that names none (default: min(3, workers))")
    made.add_argument("--partitions", type=int, default=1, help="partitions of a topic that names none (default: 1)")
    made.add_argument(
        "--bind", default=default.bind, metavar="ADDRESS", help="address to listen at (default: %(default)s)"
    )
    made.add_argument(
        "--advertised-host", default="", metavar="HOST", help="host that clients get (default: the address of --bind)"
    )
    made.add_argument(
        "--port",
        type=int,
        default=default.port,
        help="bootstrap port; the brokers have the next ones, or with --workers 1 the same; 0 = those in --data, or "
        "any (default: %(default)s)",
    )
    made.add_argument(
        "--produce-quota", type=size, metavar="BYTES", help="bytes a second that a client id may write, such as 1MB"
    )
    made.add_argument("--fetch-quota", type=size, metavar="BYTES", help="bytes a second that a client id may read")
    made.add_argument("--no-auto-create", action="store_true", help="do not create topics that clients ask for")
    made.add_argument(
        "--initial-rebalance-delay",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds that a new group waits for members (default: %(default)s)",
    )
    made.add_argument("--instance", help="a running timer daemon (default: a new one, kafka-PORT)")
    made.add_argument(
        "--capacity", type=capacity, default=32_768, help="waits that the new daemon holds (default: %(default)s)"
    )
    made.add_argument("--runtime-dir", help="directory of the timer daemon's sockets (default: timerd's default)")
    made.add_argument("--json", action="store_true", help="print a line of JSON (bootstrap, ...) when brokers listen")
    made.add_argument("--commands", action="store_true", help="for tests: take commands from standard input")
    made.add_argument(
        "--log-level",
        default="warning",
        choices=("debug", "info", "warning", "error"),
        help="info also logs why a connection was closed (default: %(default)s)",
    )
    return made


def directory(text: str) -> Path:
    """The directory of --data."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no directory")
    return Path(text)


def capacity(text: str) -> int:
    """The number of waits that the daemon holds."""
    if not text.isdecimal() or not CAPACITY_MIN <= int(text) <= CAPACITY_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: {CAPACITY_MIN} to {CAPACITY_MAX}")
    return int(text)


def size(text: str) -> float:
    """Bytes, perhaps with a unit: 1MB."""
    units = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "b": 1.0}
    lower = text.lower()
    unit = next((unit for unit in sorted(units, key=len, reverse=True) if lower.endswith(unit)), "")
    try:
        return float(lower.removesuffix(unit)) * units.get(unit, 1.0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: bytes a second, such as 1000000, 1MB or 512kB") from None


def main() -> int:
    """Run until SIGTERM or Ctrl-C. Returns 2 for wrong arguments, and after an error of the timer daemon."""
    if sys.argv[1:2] == [shell.NAME]:
        return shell.main(sys.argv[2:])
    given = parser().parse_args()
    logging.basicConfig(
        level=given.log_level.upper(), format="%(asctime)s %(name)s[%(process)d] %(levelname)s %(message)s"
    )
    with tempfile.TemporaryDirectory(prefix="timerd-kafka-") as scratch:
        settings = Settings(
            data=given.data or Path(scratch),
            workers=given.workers,
            replicas=min(3, given.workers) if given.replicas is None else given.replicas,
            partitions=given.partitions,
            bind=given.bind,
            advertised_host=given.advertised_host,
            port=given.port,
            instance=given.instance,
            runtime_dir=given.runtime_dir,
            auto_create=not given.no_auto_create,
            produce_quota=given.produce_quota,
            fetch_quota=given.fetch_quota,
            initial_rebalance_delay=given.initial_rebalance_delay,
        )
        try:
            cluster = Supervisor(settings, ("--capacity", str(given.capacity)))
            preload()

            def ready() -> None:
                made = cluster.settings
                if given.json:
                    names = {"instance": made.instance, "runtime_dir": made.runtime_dir, "data": str(made.data)}
                    print(json.dumps({"bootstrap": cluster.bootstrap, **names}))
                else:
                    print(f"{made.workers} brokers at {cluster.bootstrap}, records in {made.data}; Ctrl-C ends them")
                sys.stdout.flush()

            cluster.run(ready, commands=given.commands)
        except (SettingsError, TimerdError) as error:
            print(f"timerd_kafka: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
