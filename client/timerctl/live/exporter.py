"""timerctl exporter: the metrics of an instance for Prometheus, over HTTP. They are read from shared memory."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from timerctl.exits import Exit, UsageError
from timerctl.instance import paths_of
from timerctl.listing import declare_act
from timerctl.show.text import whole

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PORT: Final = 9_634
EPILOG: Final = """\
Prometheus' text format and OpenMetrics, as the scrape asks for. The metrics are
those of `timerctl stats --prometheus`. The exporter works while the daemon is
dead: timerd_up is 0 then. It is served to this host alone, unless --bind says
otherwise: keys, payloads and names of clients are not among the metrics, but
names of instances and purgatories are.

docs/grafana in timerd's sources has a dashboard and rules for alerts.
It needs timerd[metrics].

examples:
  timerctl exporter
  timerctl exporter --bind 0.0.0.0 --port 9634
  curl -s http://127.0.0.1:9634/metrics | grep timerd_pending
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare_act(
        commands,
        [common],
        "exporter",
        "metrics over HTTP, for Prometheus",
        "Serves until Ctrl-C or SIGTERM.",
        EPILOG,
        prints=False,
    )
    command.add_argument("--bind", metavar="ADDRESS", default="127.0.0.1", help="the address (default 127.0.0.1)")
    command.add_argument(
        "--port", metavar="N", type=whole(0, 65_535), default=PORT, help=f"the port (default {PORT}; 0: a free one)"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        from prometheus_client import start_http_server
        from prometheus_client.registry import CollectorRegistry
    except ImportError:
        raise UsageError("exporter needs prometheus_client: pip install 'timerd[metrics]'") from None
    from timerd_client.metrics import of_daemon

    paths = paths_of(arguments)

    class Daemon:
        """Reads the instance's arena at each scrape."""

        def collect(self) -> Iterable[Metric]:
            return of_daemon(paths)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Daemon())
    try:
        server, _ = start_http_server(arguments.port, arguments.bind, registry)
    except OSError as error:
        raise UsageError(
            f"port {arguments.port} of {arguments.bind}: {error.strerror}: give another --bind or --port"
        ) from None
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    address = f"http://{arguments.bind}:{server.server_address[1]}/metrics"
    print(f"The metrics of {paths.instance!r} are at {address}\nCtrl-C ends it.", flush=True)
    try:
        ended.wait()
    finally:
        server.shutdown()
    return Exit.OK
