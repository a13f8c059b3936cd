"""The owner, group and mode of a file that this user may not open, and the remedy: for messages."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

GROUP_NEEDS = {stat.S_IFDIR: 0o010, stat.S_IFSOCK: 0o060}  # mode bits that let a group use it; for a file: 0o040


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
        owner, group = user_named(status.st_uid), group_named(status.st_gid)
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        whose = f"{kind} belongs to {owner} and {group} (mode {mode}), and this is {user_named(os.geteuid())}"
        said = f"{os.strerror(errno.EACCES)}: {whose}: {_remedy(status)}{otherwise and f', or {otherwise}'}"
        return PermissionError(errno.EACCES, said, str(at))
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def in_words(error: OSError) -> str:
    """An error of the system: the file, if there is one, what went wrong, and the remedy if the error has one."""
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return f"{where}{error.strerror or error}"


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
        f"it belongs to {user_named(owner)}, and this is {user_named(os.geteuid())}: have root, or that user, remove "
        f"it (`rm -r {path}`), or give this daemon another --instance"
    )


def user_named(uid: int) -> str:
    """The user, for messages: "user www-data", or "uid 1000" where the user has no name."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def group_named(gid: int) -> str:
    """The group, for messages: "group timerd", or "gid 1000" where the group has no name."""
    try:
        return f"group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"gid {gid}"


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
