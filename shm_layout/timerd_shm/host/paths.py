"""The files of an instance, for daemon and client alike. In one of the places (places.py), for an instance NAME:

    NAME.sock   commands (ROUTER)            NAME.arena  one line of JSON: where the arena is (ArenaLocation)
    NAME.pub    outcomes (XPUB): a connection of each client
    NAME.unix   commands and outcomes in one connection, for clients without ZeroMQ (SOCK_SEQPACKET)
                                             NAME.lock   flocked by the daemon all its life, never unlinked (0600)
    NAME.live   a connection of each client: it ends with the client; only the daemon listens there
                                             NAME.journal  link to the journal's directory, if there is one
                                             NAME.snapshot.NUMBER  a copy of the arena, for a short time

Beside the arena stand ARENA.lock, ARENA.seed (both 0600) and ARENA.journal (ArenaLocation).
"""

from __future__ import annotations

import _socket
import contextlib
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Literal, NamedTuple

from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    InvalidNameError,
    LayoutMismatchError,
    ResourceLimitError,
    TimerdError,
)
from timerd_shm.declare.limits import IPC_PATH_MAX, NAME_FORM, NAME_PATTERN

from .access import as_word, denied, other_owner
from .places import OTHER_PLACE, RUNTIME_DIR_VARIABLE, places
from .trust import ROOT, check_peer, check_socket, judge, open_trusted

INSTANCE_VARIABLE = "TIMERD_INSTANCE"
INSTANCE_DEFAULT = "default"
START_OWN = f"start a daemon of your own (`timerd`), in another directory if {RUNTIME_DIR_VARIABLE} names this one"
SHM_DIRECTORY = Path("/dev/shm")
LOCATION_SIZE_MAX = 16_384  # bytes of NAME.arena; a path has 4,096 at most
# Why an arena does not exist although its daemon runs. timerd/names.py logs the second cause.
NOT_HERE = (
    "the daemon runs, so this process may be in another container ({}), or the file was removed (logind does that at a "
    "logout: RemoveIPC=yes; see the daemon's log)"
)
SHARE = {"shm": "mount the daemon's /dev/shm here", "file": "mount the volume of the daemon's --arena-file here"}


class InstancePaths(NamedTuple):
    """The files of one instance."""

    directory: Path
    instance: str
    daemon_user: int | None = None  # whose files are used as well; None = nobody is named
    owner: int | None = None  # of the directory as judged() found it, not of a later one in its place

    def judged(self) -> InstancePaths:
        """These files, for a directory that is trusted as it is now. Call it before each connection, not only once.

        Raises ResourceLimitError, which says why no file in the directory is to be trusted, and OSError.
        """
        why, owner = judge(self.directory, self.daemon_user)
        if why:
            raise ResourceLimitError(f"{self.directory} is left out, because it {why}")
        return self._replace(owner=owner)

    @property
    def owners(self) -> frozenset[int]:
        """The users whose files are used here: root, this user, the owner of the directory, and the one named."""
        users = (ROOT, os.geteuid(), self.daemon_user, self.owner)
        return frozenset(user for user in users if user is not None)

    def check_socket(self, path: Path) -> os.stat_result:
        """The status of a socket. Raises ResourceLimitError if it is no socket of one of `owners`."""
        return check_socket(path, self.owners)

    def connect(self, made: _socket.socket, path: Path) -> None:
        """Connect to one of the instance's sockets. Raises ResourceLimitError and OSError.

        Both the file and the process that listens must belong to `owners`: else it raises ResourceLimitError.
        """
        self.check_socket(path)
        made.connect(_address(path))
        check_peer(made, path, self.owners)

    @property
    def commands(self) -> Path:
        """Socket that takes commands."""
        return self.directory / f"{self.instance}.sock"

    @property
    def outcomes(self) -> Path:
        """Socket that publishes outcomes, to each client its own."""
        return self.directory / f"{self.instance}.pub"

    @property
    def packets(self) -> Path:
        """Socket that takes commands and gives outcomes, in packets, to a client without ZeroMQ."""
        return self.directory / f"{self.instance}.unix"

    @property
    def liveness(self) -> Path:
        """Socket to which each client holds a connection. The connection ends with the client, or with the daemon."""
        return self.directory / f"{self.instance}.live"

    @property
    def sockets(self) -> tuple[Path, ...]:
        """All sockets of a daemon."""
        return self.liveness, self.commands, self.outcomes, self.packets

    @property
    def arena(self) -> Path:
        """The file that holds the arena's location."""
        return self.directory / f"{self.instance}.arena"

    @property
    def lock(self) -> Path:
        """The daemon's lock file, which only its user may open. Its content is the daemon's pid.

        It is written when a daemon starts and when a daemon ends. So its modification time shows when that was.
        """
        return self.directory / f"{self.instance}.lock"

    def snapshot(self, number: int) -> Path:
        """Copy of the arena between two turns, made on request for `timerctl check`."""
        return self.directory / f"{self.instance}.snapshot.{number}"

    def snapshots(self) -> list[Path]:
        """The existing copies: one at most while the daemon runs."""
        return list(self.directory.glob(f"{self.instance}.snapshot.*"))

    @property
    def journal(self) -> Path:
        """Link to the journal's directory, while the daemon writes one."""
        return self.directory / f"{self.instance}.journal"

    @property
    def commands_endpoint(self) -> str:
        """Address of `commands` for ZeroMQ; raises ResourceLimitError when the path is too long for a socket."""
        return _endpoint(self.commands)

    @property
    def outcomes_endpoint(self) -> str:
        """Address of `outcomes` for ZeroMQ; raises ResourceLimitError when the path is too long for a socket."""
        return _endpoint(self.outcomes)

    @property
    def packets_address(self) -> str:
        """Address of `packets`; raises ResourceLimitError when the path is too long for a socket."""
        return _address(self.packets)

    @property
    def command(self) -> str:
        """The command that starts the instance's daemon at a shell with this environment, for messages."""
        usual = f"`timerd --instance {self.instance}"
        return f"{usual}`" if self.directory in places() else f"{usual} --runtime-dir {as_word(self.directory)}`"

    @property
    def shm_name(self) -> str:
        """Name of the arena in POSIX shared memory: it holds the uid, and differs for each runtime directory."""
        digest = hashlib.blake2b(os.fsencode(self.directory), digest_size=4).hexdigest()
        return f"/timerd-{os.geteuid()}-{self.instance}-{digest}"


class ArenaLocation(NamedTuple):
    """The content of NAME.arena: shared memory or a file, its name, and the arena's incarnation."""

    kind: Literal["shm", "file"]
    name: str
    incarnation: int

    @property
    def path(self) -> Path:
        """The file that a reader maps: shared memory is a file under /dev/shm on Linux."""
        return SHM_DIRECTORY / self.name.lstrip("/") if self.kind == "shm" else Path(self.name)

    @property
    def lock(self) -> Path:
        """The lock file of the daemon that uses the arena, beside it."""
        return self.path.with_name(f"{self.path.name}.lock")

    @property
    def journal_buffer(self) -> Path:
        """The journal's buffer, which stands beside the arena."""
        return self.path.with_name(f"{self.path.name}.journal")

    @property
    def seed(self) -> Path:
        """The seed of the arena's hashes, beside it. Only the daemon's user may open it."""
        return self.path.with_name(f"{self.path.name}.seed")

    @property
    def files(self) -> tuple[Path, ...]:
        """The arena and the files beside it. The lock comes last: it is held while the others may exist."""
        return self.path, self.journal_buffer, self.seed, self.lock


def instance_name(name: str | None = None) -> str:
    """The instance's name: `name`, else $TIMERD_INSTANCE, else "default". Raises InvalidNameError."""
    name = name if name is not None else os.environ.get(INSTANCE_VARIABLE) or INSTANCE_DEFAULT
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise InvalidNameError(f"instance {name!r} {NAME_FORM}")
    return name


def read_location(paths: InstancePaths) -> ArenaLocation:
    """The content of NAME.arena. Raises ArenaNotReadyError if there is none, LayoutMismatchError if it is wrong.

    Raises PermissionError, with who may read it, and ResourceLimitError if it is no plain file of `paths.owners`.
    """
    try:
        descriptor = open_trusted(paths.arena, paths.owners)
    except PermissionError:
        raise denied(paths.arena) from None
    except FileNotFoundError:
        raise ArenaNotReadyError(
            f"{paths.arena} does not exist: no daemon has made an arena yet, or the arena was removed"
        ) from None
    with open(descriptor, "rb") as file:
        held = file.read(LOCATION_SIZE_MAX + 1)
    try:
        return _location_in(held)
    except (ValueError, TypeError, KeyError, RecursionError):
        shown = held[:80].decode(errors="backslashreplace")
        raise LayoutMismatchError(f"{paths.arena} does not name an arena: it holds {shown!r}") from None


def _location_in(held: bytes) -> ArenaLocation:
    """The location that these bytes name. Raises ValueError, TypeError, KeyError, RecursionError."""
    if len(held) > LOCATION_SIZE_MAX:
        raise ValueError("too long")
    found = json.loads(held)
    location = ArenaLocation(found["kind"], found["name"], found["incarnation"])
    if location.kind not in ("shm", "file") or not isinstance(location.incarnation, int):
        raise ValueError("of an unknown kind")
    if b"\0" in os.fsencode(location.name) or len(location.path.name) > LOCATION_SIZE_MAX:
        raise ValueError("no path")
    if "/" in location.name[1:] if location.kind == "shm" else not location.path.is_absolute():
        raise ValueError("no name of shared memory, or no absolute path")
    return location


def write_location(paths: InstancePaths, location: ArenaLocation, group_id: int | None = None) -> None:
    """Write NAME.arena as a whole: a reader sees the old one or the new one. 0600, or 0640 for that group.

    Raises ResourceLimitError if a file of another user is in the way, which may have been laid there on purpose.
    """
    fresh = paths.arena.with_name(f".{paths.arena.name}.{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        if why := other_owner(fresh):
            raise ResourceLimitError(f"{fresh}: {why}") from None
        raise
    with open(descriptor, "w") as file:
        if group_id is not None:
            os.fchown(descriptor, -1, group_id)
            os.fchmod(descriptor, 0o640)
        json.dump(location._asdict(), file)
        file.write("\n")
    os.rename(fresh, paths.arena)


def remove_arena(paths: InstancePaths) -> None:
    """Remove the arena with every operation in it, if there is one. Its daemon must have ended."""
    try:
        location = read_location(paths)
    except (TimerdError, OSError):
        location = ArenaLocation("shm", paths.shm_name, 0)  # a daemon killed at its start has written no NAME.arena
    remove_files(paths, location)
    paths.arena.unlink(missing_ok=True)


def owner_of(paths: InstancePaths) -> int:
    """The user who wrote NAME.arena; the owner of the directory if there is no such file."""
    try:
        return paths.arena.lstat().st_uid
    except FileNotFoundError:
        return paths.directory.stat().st_uid


def remove_files(paths: InstancePaths, location: ArenaLocation) -> None:
    """Remove the arena and the files beside it, as far as they belong to the user who wrote NAME.arena.

    Otherwise that user could name any file in NAME.arena, and root, who destroys the instance, would remove it.
    """
    owner = owner_of(paths)
    for file in location.files:
        with contextlib.suppress(FileNotFoundError):
            if file.lstat().st_uid == owner:
                file.unlink()


def open_arena_file(paths: InstancePaths) -> int:
    """A read-only descriptor of the arena that NAME.arena names; the caller closes it.

    Raises ArenaNotReadyError when there is none, LayoutMismatchError when NAME.arena names none, PermissionError,
    and ResourceLimitError if one of the two is no plain file of `paths.owners`.
    """
    location = read_location(paths)
    try:
        return open_trusted(location.path, paths.owners)
    except PermissionError:
        raise denied(location.path) from None
    except FileNotFoundError:
        remedy = "start the daemon, which makes it anew"
        if listens(paths):
            remedy = NOT_HERE.format(SHARE[location.kind])
        raise ArenaNotReadyError(f"{paths.arena} names {location.path}, which does not exist: {remedy}") from None


def daemon_running(paths: InstancePaths) -> bool:
    """Whether a process listens at NAME.live, or, where that is missing, at NAME.sock.

    Raises PermissionError, with who may look, where this user may not look, and ResourceLimitError where the path is
    too long for a socket, or something else stands there than a socket of `paths.owners`.

    Only the daemon's user can bind a socket in its directory, and the kernel ends a socket with its process. So
    neighbours can see whether the daemon runs, also from another pid namespace. And no neighbour can pretend that it
    runs. A daemon that is stopped (SIGSTOP) counts as running. A daemon that still opens its arena does not listen yet.
    """
    for path in (paths.liveness, paths.commands):
        # _socket: a client's thread may look, and gevent's sockets belong to hubs.
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with contextlib.closing(_socket.socket(socket.AF_UNIX, kind)) as look:
            try:
                paths.connect(look, path)
            except BlockingIOError:
                return True  # its queue is full
            except FileNotFoundError:
                continue  # NAME.live was removed by hand: clients do without it
            except PermissionError:
                raise denied(path, START_OWN) from None
            except ResourceLimitError:
                raise
            except OSError:  # nobody listens
                return False
        return True
    return False


def listens(paths: InstancePaths) -> bool:
    """Whether a daemon listens that this user may reach. A socket of a user who is not trusted does not count."""
    try:
        return daemon_running(paths)
    except (PermissionError, ResourceLimitError):
        return False


def refusal(paths: InstancePaths) -> PermissionError | None:
    """Why this user may not open one of the instance's sockets; None if it may open all of them."""
    for path in paths.sockets:
        try:
            os.stat(path)
        except PermissionError:
            return denied(path)
        except OSError:
            continue  # there is no such socket
        if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
            return denied(path)
    return None


def _endpoint(path: Path) -> str:
    return f"ipc://{_address(path)}"


def _address(path: Path) -> str:
    size = len(os.fsencode(path))
    if size > IPC_PATH_MAX:
        raise ResourceLimitError(
            f"{path} has {size} bytes, and a socket's path at most {IPC_PATH_MAX}: {OTHER_PLACE} that is shorter"
        )
    return str(path)
