"""Runs in each client's process: plays a role, by the plan of the check that has started the process.

The programs in the folder `other` do the same in other languages.

The process writes lines of JSON to its output, and reads lines from its input. After the line "stop", or the end of
its input, it ends as a client should. If it ends without an error, the file plan["result"] has its results.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Role = Callable[[dict[str, Any]], dict[str, Any]]

stop = threading.Event()


def say(**what: Any) -> None:
    """Send a line of JSON to the check."""
    print(json.dumps({"at": time.monotonic(), **what}), flush=True)


def run(roles: Mapping[str, Role], plan: dict[str, Any]) -> None:
    """Play the role of a plan."""
    threading.Thread(target=_listen, daemon=True).start()
    result = roles[plan["role"]](plan)
    draft = Path(plan["result"] + ".draft")
    draft.write_text(json.dumps(result))
    draft.replace(plan["result"])


def _listen() -> None:
    for line in sys.stdin:
        if line.strip() == "stop":
            break
    stop.set()
