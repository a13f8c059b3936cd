"""The client of this process between two tests."""

from __future__ import annotations

import logging

from timerd_client.threaded import process
from timerd_shm.declare.errors import TimerdError

END_TIMEOUT_S = 1.0

log = logging.getLogger("timerd.testing")


def end_client_of_process() -> None:
    """Close `td.client()`, if there is one, so that the next test makes its own. An error of close() is logged."""
    client = process._client
    if client is None or client.closed:
        return
    try:
        client.close(timeout=END_TIMEOUT_S)
    except TimerdError as error:
        log.warning("td.client() at the end of a test: %s: %s", type(error).__name__, error)
