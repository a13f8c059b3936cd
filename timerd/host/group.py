"""The unix group whose users may connect and read (--unix-group), and the files that belong to it."""

from __future__ import annotations

import grp
import os

from timerd_shm.declare.errors import InvalidConfigError


def group_id_of(name: str, source: str) -> int:
    """The id of a unix group; `source`: where the name was given. Raises InvalidConfigError."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise InvalidConfigError(
            f"unix-group = {name!r} ({source}): no such group (`groupadd {name}` makes it)"
        ) from None


def give_to_group(descriptor: int, group_id: int | None) -> None:
    """Let the group read a file of ours (0640); without a group the file is for this user alone (0600)."""
    if group_id is not None:
        os.fchown(descriptor, -1, group_id)
    os.fchmod(descriptor, 0o600 if group_id is None else 0o640)
