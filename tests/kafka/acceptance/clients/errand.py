"""The work of a process for the check that has started it: a role with a plan.

The process writes lines of JSON to its output, and takes lines on its input: "stop" has it end as a client should. Its
results are in the file plan["result"] when it ends.
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
    """Tell the check."""
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
