"""Makes an arena, or opens the existing one: POSIX shared memory or a file, as the configuration says.

If an existing arena fits (check.py), it is attached. If not, the start is refused, with flags that fit (advice.py).
An arena is made anew only if no daemon can use the old one any more: it is unfinished, or of another boot.
"""

from __future__ import annotations

import mmap
import os
import stat

import posix_ipc
from timerd.config.config import Config
from timerd.host.group import give_to_group
from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    ArenaTruncatedError,
    InstanceRunningError,
    LayoutMismatchError,
    ResourceLimitError,
)
from timerd_shm.host.access import other_owner
from timerd_shm.host.lock import ArenaLock
from timerd_shm.host.paths import SHM_DIRECTORY, ArenaLocation, InstancePaths
from timerd_shm.host.process import boot_id

from . import pages
from .advice import flags_as_made, flags_that_fit
from .arena import ATTACHED, Arena
from .check import check_arena
from .format import format_arena
from .plan import ArenaPlan, plan_of
from .seed import NoSeedError, make_seed, read_seed

ARENA_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_or_create(config: Config, paths: InstancePaths, *, wall_ns: int, group_id: int | None = None) -> Arena:
    """Open the instance's arena, or make it. The caller writes NAME.arena.

    Raises LayoutMismatchError and ArenaTruncatedError if the existing arena does not fit (it stays as it is),
    InstanceRunningError if another daemon has it, ResourceLimitError if the machine lacks room or permission.
    """
    plan, boot = plan_of(config), boot_id()
    if config.arena_file:
        location = ArenaLocation("file", os.path.abspath(config.arena_file), 0)
    else:
        location = ArenaLocation("shm", paths.shm_name, 0)
    try:
        lock = ArenaLock(location.lock, location.path)
    except InstanceRunningError as error:
        raise InstanceRunningError(f"{error}, or give this daemon another --instance") from None
    try:
        return _open_or_create(config, paths, plan, boot, location, lock, wall_ns=wall_ns, group_id=group_id)
    except BaseException:
        if not location.path.exists() or other_owner(location.path):
            lock.remove()
        lock.release()
        raise


def _open_or_create(
    config: Config,
    paths: InstancePaths,
    plan: ArenaPlan,
    boot: bytes,
    location: ArenaLocation,
    lock: ArenaLock,
    *,
    wall_ns: int,
    group_id: int | None,
) -> Arena:
    descriptor = _open(location)
    origin, is_new = "made", False
    try:
        if os.fstat(descriptor).st_size:
            try:
                _check_descriptor(descriptor, plan, boot)
            except ArenaNotReadyError as error:
                origin = f"made anew: {error}"
            except (LayoutMismatchError, ArenaTruncatedError) as error:
                made_with = flags_as_made(descriptor, config)
                raise type(error)(
                    f"{location.path}: {error}: "
                    + (
                        f"start with {made_with}, as it was made, or"
                        if made_with
                        else "start the timerd that made it, or"
                    )
                    + f" remove it with every operation in it (`timerctl destroy --instance {paths.instance}`)"
                ) from None
            else:
                origin = ATTACHED
        if origin != ATTACHED:
            if os.fstat(descriptor).st_size:
                location.path.unlink(missing_ok=True)
                old, descriptor = descriptor, _open(location)
                os.close(old)
            _reserve(descriptor, location, plan, config)
            is_new = True
            with mmap.mmap(descriptor, plan.size) as memory, memoryview(memory) as view:
                format_arena(view, plan, instance=paths.instance, boot=boot, wall_ns=wall_ns)
        give_to_group(descriptor, group_id)
        seed, seed_lost = None, ""
        if origin == ATTACHED:
            try:
                seed = read_seed(location.seed)
            except NoSeedError as error:
                seed_lost = str(error)
        arena = Arena(descriptor, location, plan, origin, lock, seed or make_seed(location.seed), seed_lost)
    except BaseException:
        os.close(descriptor)
        if is_new:
            location.path.unlink(missing_ok=True)
        raise
    arena.location = location._replace(incarnation=arena.header().incarnation)
    if origin == ATTACHED:
        arena.refresh()
    return arena


def _open(location: ArenaLocation) -> int:
    """A descriptor of the arena's object, made (0600, empty) if it is not there. The caller holds the arena's lock."""
    try:
        if location.kind == "shm":
            descriptor: int = posix_ipc.SharedMemory(location.name, posix_ipc.O_CREAT, mode=0o600).fd
        else:
            descriptor = os.open(location.name, ARENA_FLAGS, 0o600)
    except (OSError, posix_ipc.Error) as error:
        why = other_owner(location.path) or str(error)
        raise ResourceLimitError(f"the arena {location.path} cannot be opened: {why}") from None
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        why = other_owner(location.path) or "it is no plain file: remove it"
        raise ResourceLimitError(f"the arena {location.path} cannot be opened: {why}")
    return descriptor


def _check_descriptor(descriptor: int, plan: ArenaPlan, boot: bytes) -> None:
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        check_arena(view, plan, boot)


def _reserve(descriptor: int, location: ArenaLocation, plan: ArenaPlan, config: Config) -> None:
    try:
        pages.reserve(descriptor, plan.size)
    except OSError as error:
        file_system = os.fstatvfs(descriptor)
        free = file_system.f_bavail * file_system.f_frsize
        location.path.unlink(missing_ok=True)
        where = SHM_DIRECTORY if location.kind == "shm" else location.path.parent
        raise ResourceLimitError(
            f"the arena of {plan.capacity} operations needs {plan.size} bytes, and {where} has {free} free "
            f"({error.strerror}): {flags_that_fit(config, free)}enlarge {where}, or use --arena-file elsewhere"
        ) from None
