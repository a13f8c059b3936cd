"""The unix group whose users may connect and read (--unix-group), and the files that belong to it."""

from __future__ import annotations

import grp
import os
from pathlib import Path

from timerd_shm.declare.errors import InvalidConfigError, ResourceLimitError
from timerd_shm.host.access import group_named, user_named

GROUP_ID_MAX = (1 << 32) - 2  # 2 ** 32 - 1 means "leave it as it is" to chown


def group_id_of(name: str, source: str) -> int:
    """The id of a unix group, given by its name or number; `source`: where it was given. Raises InvalidConfigError.

    A number needs no name in this system: in a container the group may have a name only outside the container.
    """
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        if name.isascii() and name.isdecimal():
            if int(name) > GROUP_ID_MAX:
                raise InvalidConfigError(
                    f"unix-group = {name} ({source}): the number of a group is {GROUP_ID_MAX} at most"
                ) from None
            return int(name)
        raise InvalidConfigError(
            f"unix-group = {name!r} ({source}): no such group (`groupadd {name}` makes it)"
        ) from None


def change_group(file: Path | int, group_id: int) -> None:
    """Give one of our files the group `group_id`. Raises ResourceLimitError."""
    try:
        os.chown(file, -1, group_id)
    except OSError as error:
        group = group_named(group_id)
        raise ResourceLimitError(
            f"the daemon's files cannot be given to {group} ({error.strerror}): only root and members of the group may "
            f"do that, and this is {user_named(os.geteuid())}: make it a member (`usermod -aG`, and log in again), or "
            "choose another --unix-group"
        ) from None


def give_to_group(descriptor: int, group_id: int | None) -> None:
    """Let the group read a file of ours (0640); without a group the file is for this user alone (0600)."""
    if group_id is not None:
        change_group(descriptor, group_id)
    os.fchmod(descriptor, 0o600 if group_id is None else 0o640)
