"""Whose files a client uses: those of root, of its own user, and of the user who runs the daemon.

Any user may lay a directory, a socket or a file under a name that a client looks for. Example: mallory makes
/tmp/jobs, and a worker of carol has TIMERD_RUNTIME_DIR=/tmp/jobs. In /tmp anybody may have made it, so it is refused.
/run/timerd-shop belongs to the user timerd-shop: only root can have made it in /run, so root has chosen that user.

`daemon_user`, or $TIMERD_DAEMON_USER, names one more user whose directory is used, whatever its mode is.
"""

from __future__ import annotations

import _socket
import errno
import os
import pwd
import socket
import stat
import struct
from collections.abc import Collection
from functools import cache
from pathlib import Path

from timerd_shm.declare.errors import InvalidNameError, ResourceLimitError

from .access import as_word, in_words, owner_named
from .places import OTHER_PLACE, own_places
from .plain_file import NotPlainError, open_plain

DAEMON_USER_VARIABLE = "TIMERD_DAEMON_USER"
ROOT = 0
WRITABLE = stat.S_IWGRP | stat.S_IWOTH
UID_MAX = (1 << 32) - 2  # the last number is no user's
LINKS_MAX = 40  # on one path, as in the kernel
CREDENTIALS = struct.Struct("iII")  # of SO_PEERCRED: pid, uid, gid
NAME_USER = f"if its daemon is to be trusted, name that user (daemon_user= of the client, or {DAEMON_USER_VARIABLE})"


def daemon_user_of(given: str | int | None = None) -> int | None:
    """The uid of `given`, else of $TIMERD_DAEMON_USER: a user's name or number. Raises InvalidNameError."""
    source = DAEMON_USER_VARIABLE if given is None else "daemon_user"
    named = os.environ.get(DAEMON_USER_VARIABLE) or None if given is None else given
    if named is None:
        return None
    if isinstance(named, str) and not (named.isascii() and named.isdecimal() and len(named) <= 10):
        try:
            return _uid_of(named)
        except (KeyError, ValueError):
            raise InvalidNameError(f"{source} = {named!r}: no such user; give a user's name or number") from None
    if isinstance(named, bool) or not isinstance(named, str | int) or not 0 <= int(named) <= UID_MAX:
        raise InvalidNameError(f"{source} = {named!r}: give a user's name, or its number, 0 to {UID_MAX}")
    return int(named)


@cache
def _uid_of(name: str) -> int:
    """The uid of a user. It is looked up once: getpwnam() may ask a directory service, and wait for its answer.

    A client looks for a lost daemon some 20 times a second, and each fork of this process waits for the end of a look.
    """
    return pwd.getpwnam(name).pw_uid


def distrust(place: Path, daemon_user: int | None = None, *, remedy: str = f"{NAME_USER}, or {OTHER_PLACE}") -> str:
    """Why no file in this place is to be trusted; empty if there is no reason. Raises OSError if it does not exist.

    A place of our own (own_places) must belong to us, and others may not write it. Any other place may be root's or
    `daemon_user`'s. If others may not write it, it may also be ours, or that of a user whom only root or we can have
    chosen. The reason ends with `remedy`.
    """
    return judge(place, daemon_user, remedy=remedy)[0]


def judge(
    place: Path, daemon_user: int | None = None, *, remedy: str = f"{NAME_USER}, or {OTHER_PLACE}"
) -> tuple[str, int]:
    """The reason that distrust() gives, and the owner of the directory that was judged.

    A caller must not look for the owner again: meanwhile the name of the place may lead to another directory.
    """
    if place in own_places():
        status = place.lstat()
        return _distrust_own(place, status), status.st_uid
    status, chosen = _walk(place, daemon_user)
    return _distrust(place, status, chosen, daemon_user, remedy), status.st_uid


def _distrust(place: Path, status: os.stat_result, chosen: set[int], daemon_user: int | None, remedy: str) -> str:
    if not stat.S_ISDIR(status.st_mode):
        return f"is no directory: remove it (`rm {as_word(place)}`)"
    if status.st_uid in (ROOT, daemon_user):
        return ""
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if status.st_mode & stat.S_IWOTH:
        whose = "" if status.st_uid == os.geteuid() else f"belongs to {owner_named(status.st_uid)}, and "
        return f"{whose}others may write it (mode {mode}): take that away (`chmod o-w {as_word(place)}`), or {remedy}"
    if status.st_uid != os.geteuid() and status.st_uid not in chosen:
        return f"belongs to {owner_named(status.st_uid)}: {remedy}"
    return ""


def open_trusted(path: Path, owners: Collection[int]) -> int:
    """A read-only descriptor of a plain file that belongs to one of these users; the caller closes it. Never waits.

    Raises ResourceLimitError, which says what stands there, and the OSError of any other failure.
    """
    try:
        return open_plain(path, owners=owners)
    except NotPlainError as error:
        raise ResourceLimitError(
            f"{in_words(error)}: no daemon made it: remove it, and start the daemon again"
        ) from None


def check_peer(connected: _socket.socket, path: Path, owners: Collection[int]) -> None:
    """Raises ResourceLimitError if another user than these listens at the socket to which this one is connected.

    The file at `path` may have been exchanged between check_socket() and the connection.
    """
    _, user, _ = CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    if user not in owners:
        raise ResourceLimitError(f"{path}: a process of {owner_named(user)} listens there: {NAME_USER}")


def check_socket(path: Path, owners: Collection[int]) -> os.stat_result:
    """The status of a socket of one of these users. Raises ResourceLimitError if something else stands there, OSError.

    A missing socket is an error, too: between this look and a connection, another user may lay one there.
    """
    status = os.lstat(path)
    if not stat.S_ISSOCK(status.st_mode):
        raise ResourceLimitError(f"{path}: it is no socket: no daemon made it: remove it, and start the daemon again")
    if status.st_uid not in owners:
        raise ResourceLimitError(f"{path}: it belongs to {owner_named(status.st_uid)}: {NAME_USER}, or remove it")
    return status


def _distrust_own(place: Path, status: os.stat_result) -> str:
    remove = f"`rm -r {as_word(place)}`"
    if not stat.S_ISDIR(status.st_mode):
        return f"is no directory: remove it (`rm {as_word(place)}`)"
    if status.st_uid != os.geteuid():
        return f"belongs to {owner_named(status.st_uid)}: have root remove it ({remove}), or {OTHER_PLACE}"
    if status.st_mode & WRITABLE:
        return f"others may write it (mode {stat.S_IMODE(status.st_mode):04o}): remove it ({remove})"
    return ""


def _walk(place: Path, daemon_user: int | None) -> tuple[os.stat_result, set[int]]:
    """The status of the last directory, and the users along the path whom root, we, or a user chosen before has chosen.

    A directory that its owner alone may write holds what this owner has put there. In a directory that others may
    write, as /tmp, anybody may have made the next one: its owner is not chosen. And anybody may have made a link there,
    to any directory: if the link is of no chosen user, nobody is chosen.

    Each component is opened within the directory before it. So what is judged is one path, whatever others rename.
    """
    chosen = {ROOT, os.geteuid()} | ({daemon_user} if daemon_user is not None else set())
    is_chosen, links = True, 0
    left = list(reversed(place.parts))
    at = -1  # the directory so far
    try:
        while left:
            name = left.pop()
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=None if at < 0 else at)
            entry = os.fstat(found)
            is_link = stat.S_ISLNK(entry.st_mode)
            if at >= 0 and name not in ("/", ".."):  # the directory above was judged on the way down
                directory = os.fstat(at)
                if directory.st_uid not in chosen:
                    is_chosen = False
                elif not directory.st_mode & WRITABLE:
                    chosen |= set() if is_link else {entry.st_uid}
                elif is_link and entry.st_uid not in chosen:
                    is_chosen = False
            if is_link:
                links += 1
                target = os.readlink("", dir_fd=found)
                os.close(found)
                if links > LINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                left += reversed(Path(target).parts)
            else:
                if at >= 0:
                    os.close(at)
                at = found
        return os.fstat(at), chosen if is_chosen else set()
    except OSError as error:
        error.filename = str(place)
        raise
    finally:
        if at >= 0:
            os.close(at)
