"""Where an instance is: a client looks for it in the places (places.py), and a daemon takes one of them."""

from __future__ import annotations

import contextlib
import errno
import os

from timerd_shm.declare.errors import InstanceRunningError, ResourceLimitError, TimerdUnavailableError

from .access import in_words, user_named
from .paths import ArenaLocation, InstancePaths, daemon_running, instance_name, listens
from .places import OTHER_PLACE, places
from .trust import daemon_user_of, judge

START_AS = f"start the daemon as the user of the directory, or {OTHER_PLACE}"


def find_instance(
    instance: str | None = None, directory: str | None = None, daemon_user: str | int | None = None
) -> InstancePaths:
    """The instance's files, in the first place where its daemon listens, else in the first that holds NAME.arena.

    So sockets and an arena that a dead daemon has left hide no daemon that runs. `directory`, if given, is the only
    place. `daemon_user` is a user whose files are used as well (trust.py).

    Raises TimerdUnavailableError, which says where it looked, PermissionError if this user may not look into one of the
    places and nothing is in the others, and InvalidNameError.
    """
    name, user = instance_name(instance), daemon_user_of(daemon_user)
    looked = places(directory)
    left: InstancePaths | None = None  # where a daemon that does not run has left files
    closed: PermissionError | None = None
    distrusted = ""
    for place in looked:
        paths = InstancePaths(place, name, user)
        try:
            try:
                paths = paths.judged()
            except ResourceLimitError as error:
                distrusted += f"; {error}"
                continue
            try:
                if daemon_running(paths):
                    return paths
            except ResourceLimitError as error:  # too long a path, or no socket of the daemon
                distrusted += f"; {error}"
            if left is None:
                os.stat(paths.arena)
                left = paths
        except PermissionError as error:
            closed = closed or error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # no file can be opened to look
            # Else there is no such file, or directory.
    if left is not None:
        return left
    if closed is not None:
        raise closed
    raise TimerdUnavailableError(
        f"no timerd instance {name!r} in {', '.join(map(str, looked))}{distrusted}: "
        f"start it ({InstancePaths(looked[0], name).command})",
        in_doubt=False,
    )


def find_remains(instance: str | None = None) -> InstancePaths | None:
    """The files of an instance that was killed while it made its arena: a lock, and nothing that leads to the arena."""
    for place in places():
        with contextlib.suppress(OSError):
            paths = InstancePaths(place, instance_name(instance), daemon_user_of()).judged()
            if os.access(paths.lock, os.F_OK) and ArenaLocation("shm", paths.shm_name, 0).path.exists():
                return paths
    return None


def make_instance(
    instance: str | None = None, directory: str | None = None, *, look_only: bool = False
) -> InstancePaths:
    """The instance's files in the first place that this process may write. If only the place is missing, it is made.

    A place that holds NAME.arena comes first: the operations of the last daemon are there. `directory`, when given, is
    the only place, as $TIMERD_RUNTIME_DIR is. With `look_only` nothing is made. Raises ResourceLimitError, which says
    what was tried, and InvalidNameError.
    """
    name = instance_name(instance)
    refusals: list[str] = []
    for place in sorted(places(directory), key=lambda place: not os.access(InstancePaths(place, name).arena, os.W_OK)):
        try:
            if look_only and not place.exists():
                if not os.access(place.parent, os.W_OK | os.X_OK):
                    refusals.append(f"{place}: does not exist, and cannot be made")
                    continue
                return InstancePaths(place, name)
            place.mkdir(mode=0o700, exist_ok=True)
            why, owner = judge(place, remedy=START_AS)
        except OSError as error:
            refusals.append(in_words(error))
            continue
        if why:
            refusals.append(f"{place}: {why}")
        elif os.geteuid() == 0 != owner:
            # Root may write everywhere, and that user's clients may open no files of root.
            refusals.append(f"{place}: belongs to {user_named(owner)}: start the daemon as that user, not as root")
        elif not os.access(place, os.W_OK | os.X_OK):
            refusals.append(f"{place}: not writable")
        else:
            return InstancePaths(place, name, owner=owner)
    raise ResourceLimitError(f"no runtime directory ({'; '.join(refusals)}): {OTHER_PLACE} that may be written")


def refuse_second(instance: str, directory: str | None) -> None:
    """Raises InstanceRunningError if a daemon of the instance listens in another place than a new daemon would take.

    This user's clients look into the same places: some would find one daemon, some the other. In the place itself,
    NAME.lock decides. A directory that is given is the only place, so nothing is checked there.
    """
    try:
        found = find_instance(instance, directory)
        place = make_instance(instance, directory, look_only=True).directory
    except (TimerdUnavailableError, PermissionError, ResourceLimitError):
        return
    if found.directory != place and listens(found):
        raise InstanceRunningError(
            f"a daemon of instance {instance!r} is running in {found.directory}, where this user's clients find it: "
            "stop it first, or give this daemon another --instance, or a --runtime-dir that its clients name as well"
        )
