"""The seed of an arena's hashes: a secret of the daemon's user. It is kept with the arena, and made anew if lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon, arenas_of
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from timerctl.exits import Exit
from timerd.arena.seed import NoSeedError, make_seed, read_seed
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.host.paths import read_location
from timerd_shm.read.hashing import SEED_SIZE

Run = Callable[..., tuple[int, str, str]]


def test_a_seed_is_random_and_only_its_user_may_open_it(tmp_path: Path) -> None:
    path = tmp_path / "seed"
    umask = os.umask(0)
    try:
        seed = make_seed(path)
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (read_seed(path), len(seed)) == (seed, SEED_SIZE)
    assert make_seed(path) != seed, "a new arena got the old seed"


def short(path: Path) -> None:
    path.write_bytes(bytes(SEED_SIZE - 1))  # as after a daemon that was killed while it wrote the seed


def long(path: Path) -> None:
    path.write_bytes(bytes(SEED_SIZE + 1))


def known_to_the_group(path: Path) -> None:
    path.write_bytes(bytes(SEED_SIZE))
    path.chmod(0o640)


def link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(bytes(SEED_SIZE))
    path.with_name("elsewhere").chmod(0o600)
    path.symlink_to("elsewhere")


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def nothing(path: Path) -> None:
    pass


NO_SEEDS = {
    short: "had 15 bytes, and a seed has 16",
    long: "had 17 bytes, and a seed has 16",
    known_to_the_group: "was open to others, who may know it (mode 0640)",
    link: "could not be opened (Too many levels of symbolic links)",
    fifo: "was no plain file",
    Path.mkdir: "was no plain file",
    nothing: "was missing",
}


@pytest.mark.parametrize("put", NO_SEEDS)
def test_a_file_that_others_may_read_or_have_put_there_is_no_seed(put: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "seed"
    put(path)
    path.chmod(0o600) if put in (short, long) else None
    with pytest.raises(NoSeedError) as refused:
        read_seed(path)
    assert str(refused.value) == NO_SEEDS[put]
    if put is Path.mkdir:
        with pytest.raises(ResourceLimitError, match="remove what is there, or give this daemon another --instance"):
            make_seed(path)
        return
    seed = make_seed(path)
    assert read_seed(path) == seed and path.is_file() and not path.is_symlink()


@pytest.mark.long
def test_a_daemon_that_lost_its_seed_keeps_operations_and_ids(daemon: Daemon, run: Run) -> None:
    path = read_location(daemon.paths).seed
    assert path.stat().st_mode & 0o777 == 0o600
    with td.connect(timeout=PATIENCE_S) as client:
        pending = [client.register(f"a key that is too long for a record/{number}", timeout=60) for number in range(50)]
        named = client.register("named", id="once", timeout=60)
        client.flush()
        seed = path.read_bytes()
        daemon.kill()
        daemon.start()
        assert path.read_bytes() == seed and "made anew" not in daemon.log
        daemon.kill()
        path.unlink()
        daemon.start()
        assert path.read_bytes() != seed and path.stat().st_mode & 0o777 == 0o600
        assert f"{path} was missing: the hashes were made anew" in daemon.log
        for number, operation in enumerate(pending):
            client.fire(f"a key that is too long for a record/{number}", value=b"%d" % number)
            assert operation.result(PATIENCE_S).value == b"%d" % number
        with td.connect(timeout=PATIENCE_S) as other:
            refused = other.register("other", id="once", timeout=60).result(PATIENCE_S)
            assert isinstance(refused.error, td.OperationExistsError)
        assert run("check")[0] == Exit.OK
        client.fire("named")
        assert named.result(PATIENCE_S)
    daemon.stop()
    assert run("destroy", "--yes")[0] == Exit.OK
    assert not path.exists() and arenas_of(daemon.paths.directory) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.chmod(0o644), "was open to others, who may know it (mode 0644)"),
        (lambda path: path.write_bytes(bytes(SEED_SIZE)), "was of another arena"),
        (Path.unlink, "was missing"),
    ],
)
def test_an_operator_learns_why_a_seed_was_replaced(
    daemon: Daemon, run: Run, change: Callable[[Path], None], said: str
) -> None:
    path = read_location(daemon.paths).seed
    daemon.stop()
    change(path)
    daemon.start()
    assert f"{path} {said}: the hashes were made anew, and marks before event " in daemon.log
    [row] = json.loads(run("errors", "--json")[1])["rows"]
    assert (row["error"], row["count"]) == ("RESOURCE_LIMIT", 1)
    assert row["message"] == f"{path.name} {said}: the hashes were made anew"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_worker_gets_calls_after_its_daemon_lost_the_seed(daemon: Daemon) -> None:
    """The arena has hashes of the names that a member handles, but not the names.

    So a start could not compute these hashes again with another seed. Therefore they use no seed.
    """
    done: list[bytes] = []
    with td.connect(group="web", timeout=PATIENCE_S) as worker:
        serve(worker, "work", lambda call: done.append(call.payload))
        worker.call_later("work", 0, payload=b"before")
        eventually(lambda: done == [b"before"])
        daemon.kill()
        read_location(daemon.paths).seed.unlink()
        daemon.start()
        worker.call_later("work", 0, payload=b"after")
        eventually(lambda: done == [b"before", b"after"])
