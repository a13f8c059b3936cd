"""The acts that the page may do under --act: retry or drop a dead letter, cancel a call."""

from __future__ import annotations

import argparse
from typing import Any, Final

from timerctl.instance import connected, open_arena
from timerd_client.groups.listing import listed
from timerd_shm.host.paths import InstancePaths

from .answers import WrongQueryError

ACTS: Final = ("retry", "drop", "cancel")


def act(paths: InstancePaths, instance: str | None, wish: Any) -> dict[str, Any]:
    """Do what a page asks for: {"act": "retry", "number": 7} or {"act": "cancel", "id": "user-9", "group": "web"}."""
    if not isinstance(wish, dict) or wish.get("act") not in ACTS:
        raise WrongQueryError(f"an act is one of {', '.join(ACTS)}")
    arguments = argparse.Namespace(instance=instance)
    if wish["act"] == "cancel":
        id_, group = wish.get("id"), wish.get("group")
        if not isinstance(id_, str) or not isinstance(group, str):
            raise WrongQueryError("cancel needs an id and a group")
        with connected(arguments, group) as client:
            return {"done": client.cancel_call_wait(id_)}
    number = wish.get("number")
    if type(number) is not int:
        raise WrongQueryError(f"{wish['act']} needs the number of a dead letter")
    with open_arena(paths) as reader:
        group = next((call.group for call in listed(reader, failed=True) if call.number == number), None)
    if group is None:
        return {"done": False}
    with connected(arguments, group) as client:
        return {"done": client.retry_call_wait(number) if wish["act"] == "retry" else client.drop_call_wait(number)}
