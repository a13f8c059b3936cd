"""Hooks of gunicorn, for the workers sync, gthread and gevent.

    # gunicorn.conf.py
    from timerd_client.web.gunicorn import *

A worker drains when it has to end: at SIGTERM, which it also gets at a reload, and after its `max_requests`. If your
configuration has hooks of the same names, call these hooks in yours.
"""

from __future__ import annotations

import signal
from typing import Any

from .files import shortage
from .requests import drain, drain_at

__all__ = ["post_request", "post_worker_init"]


def post_worker_init(worker: Any) -> None:
    """Drain at signals. The worker has already set its own handlers, which are called after the drain."""
    drain_at(signal.SIGTERM)
    # A sync worker has no `worker_connections`. All other workers have the same number, so only the first one warns.
    if worker.age == 1 and (short := shortage(getattr(worker, "worker_connections", 0))):
        worker.log.warning(short)


def post_request(worker: Any, request: Any, environ: Any, response: Any) -> None:
    """Drain after the last request of a worker. The worker then waits for its open requests."""
    if not worker.alive:
        drain()
