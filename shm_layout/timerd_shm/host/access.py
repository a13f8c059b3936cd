"""The owner, group and mode of a file that this user may not open, and the remedy: for messages."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from functools import lru_cache
from pathlib import Path

OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")  # in a user namespace, the uid of all users that it does not map
USER_MAP = Path("/proc/self/uid_map")
NAMES_KEPT = 256
UIDS = (1 << 32) - 1  # there is no user with the last number
GROUP_NEEDS = {stat.S_IFDIR: 0o010, stat.S_IFSOCK: 0o060}  # of a directory, of a socket; of another file: 0o040


def denied(path: Path, otherwise: str = "") -> PermissionError:
    """The error for a file that this process may not open: whose the file is, and what would let this process in.

    If a directory on the way keeps this process out, the error names that directory. `otherwise` is another remedy.
    """
    for at in (*reversed(path.parents), path):
        if at != path and os.access(at, os.X_OK, effective_ids=True):
            continue
        try:
            status = os.stat(at)
        except OSError:
            continue  # it is made or removed at this moment
        kind = {stat.S_IFDIR: "the directory", stat.S_IFSOCK: "the socket"}.get(stat.S_IFMT(status.st_mode), "the file")
        owner, group = owner_named(status.st_uid), group_named(status.st_gid)
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        whose = f"{kind} belongs to {owner} and {group} (mode {mode}), and this is {user_named(os.geteuid())}"
        said = f"{os.strerror(errno.EACCES)}: {whose}: {_remedy(status)}{otherwise and f', or {otherwise}'}"
        return PermissionError(errno.EACCES, said, str(at))
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def in_words(error: OSError) -> str:
    """An error of the system: the file, if there is one, what went wrong, and the remedy if the error has one."""
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return f"{where}{error.strerror or error}"


def as_word(path: Path) -> str:
    """A path within a command line that a person may copy."""
    return shlex.quote(os.fspath(path))


def other_owner(path: Path) -> str:
    """For messages: that the file belongs to another user, and the remedy. Empty if the file is ours.

    In /dev/shm, and in a directory that others may write, any user can lay a file under a name of ours.
    """
    try:
        owner = path.lstat().st_uid
    except OSError:
        return ""
    if owner == os.geteuid():
        return ""
    return (
        f"it belongs to {owner_named(owner)}, and this is {user_named(os.geteuid())}: have root, or that user, remove "
        f"it (`rm -r {as_word(path)}`), or give this daemon another --instance"
    )


@lru_cache(NAMES_KEPT)
def user_named(uid: int) -> str:
    """The user, for messages: "user www-data", or "uid 1000" where the user has no name.

    A name is looked up once: a client that searches its daemon may make a message 20 times a second, and getpwuid()
    may ask a directory service.
    """
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def owner_named(uid: int) -> str:
    """The owner of a file, for messages: as user_named(), and whether this uid stands for other users, too."""
    named = user_named(uid)
    try:
        stands_for_others = uid == int(OVERFLOW_UID.read_text()) and not _maps_all_users()
    except (OSError, ValueError):
        return named  # /proc is not mounted
    if not stands_for_others:
        return named
    return f"{named} (uid {uid} stands for each user that this user namespace does not map, such as the machine's root)"


@lru_cache(NAMES_KEPT)
def group_named(gid: int) -> str:
    """The group, for messages: "group timerd", or "gid 1000" where the group has no name."""
    try:
        return f"group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"gid {gid}"


def _maps_all_users() -> bool:
    """Whether each user has a uid of its own in the user namespace of this process."""
    lines = USER_MAP.read_text().splitlines()
    return sum(int(line.split()[2]) for line in lines) >= UIDS


def _remedy(status: os.stat_result) -> str:
    needs = GROUP_NEEDS.get(stat.S_IFMT(status.st_mode), 0o040)
    if status.st_mode & needs != needs:
        return f"run this as {user_named(status.st_uid)}, or let a group in (`timerd --unix-group GROUP`)"
    if status.st_gid == os.getegid() or status.st_gid in os.getgroups():
        return "its mode lets this user in, so another rule keeps it out (SELinux, AppArmor, an ACL): look there"
    group = group_named(status.st_gid).split()[-1]
    user = user_named(os.geteuid()).split()[-1]
    if _is_member(user, status.st_gid):
        return f"{user} became a member of the group after this process began: log in again, or restart the service"
    return f"become a member of the group (`usermod -aG {group} {user}`, and log in again)"


def _is_member(user: str, gid: int) -> bool:
    try:
        return user in grp.getgrgid(gid).gr_mem
    except KeyError:
        return False
