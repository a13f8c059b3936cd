"""Where an instance is: one list for every process of a user, and which place of it a client and a daemon take."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import timerd as td
from support.fakes.own_places import OwnPlaces
from support.real.daemons import SMALL, Daemon
from support.real.patience import PATIENCE_S
from support.real.users import NOBODY, a_member, shut_out
from timerd_client.discovery.find_daemon import has_run_lately
from timerd_client.discovery.target import target_of
from timerd_shm.declare.errors import ResourceLimitError, TimerdUnavailableError
from timerd_shm.host.paths import ArenaLocation, InstancePaths, write_location
from timerd_shm.host.places import places
from timerd_shm.host.search import find_instance, make_instance

ANYWHERE = target_of("connect", None, {})
MakeDaemon = Callable[..., Daemon]


def leave_remains(place: Path, instance: str = "default") -> InstancePaths:
    """The files of a daemon that was killed: its sockets are there, and nobody listens."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = InstancePaths(place, instance)
    for path in (paths.liveness, paths.commands):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    write_location(paths, ArenaLocation("shm", "/timerd-x", 1))
    return paths


def test_a_set_variable_is_the_only_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIMERD_RUNTIME_DIR", str(tmp_path / "only"))
    assert places() == (tmp_path / "only",)
    assert make_instance("x").directory == tmp_path / "only"
    assert stat.S_IMODE((tmp_path / "only").stat().st_mode) == 0o700


def test_a_set_directory_is_made_but_its_parent_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A misspelt path is an error: no parent directories are made, not even for root."""
    monkeypatch.setenv("TIMERD_RUNTIME_DIR", str(tmp_path / "missing" / "here"))
    for look_only in (True, False):
        with pytest.raises(ResourceLimitError, match=r"missing/here: .*choose another directory \(TIMERD_RUNTIME_DIR"):
            make_instance(look_only=look_only)
    assert not (tmp_path / "missing").exists()
    monkeypatch.setenv("TIMERD_RUNTIME_DIR", str(tmp_path / "here"))
    assert make_instance().directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("set_to", ["", "/run/user/1", "/mnt/wslg/runtime-dir"])
def test_the_places_are_the_same_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch, set_to: str) -> None:
    """The sessions of a login, of cron and of su differ in these variables."""
    monkeypatch.delenv("TIMERD_RUNTIME_DIR")
    for name in ("XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "HOME", "USER"):
        monkeypatch.setenv(name, set_to)
    uid = os.geteuid()
    assert places() == (Path("/run/timerd"), Path(f"/run/user/{uid}/timerd"), Path(f"/tmp/timerd-{uid}"))


@pytest.mark.root("becomes another user")
def test_a_process_that_becomes_another_user_looks_in_the_places_of_that_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example, a worker whose master was root: the master had imported timerd."""
    monkeypatch.delenv("TIMERD_RUNTIME_DIR")
    assert places()[2] == Path("/tmp/timerd-0")
    with a_member(NOBODY, lambda: str(places()[2])) as said:
        assert said == f"/tmp/timerd-{NOBODY}"


def test_the_error_names_all_places_and_the_command(own: OwnPlaces) -> None:
    with pytest.raises(TimerdUnavailableError, match=r"start it \(`timerd --instance jobs`\)") as error:
        find_instance("jobs")
    assert all(str(place) in str(error.value) for place in own.all)


def test_the_daemon_that_listens_is_found_behind_the_remains_of_dead_ones(own: OwnPlaces) -> None:
    remains = [leave_remains(place) for place in own.all[:2]]
    own.temporary.mkdir(mode=0o700)
    with Daemon(own.temporary) as daemon:
        assert find_instance().directory == daemon.paths.directory
        with td.connect(timeout=PATIENCE_S) as client:
            assert client.fire_wait("k") == 0
        client = td.Client()
        assert client.fire_wait("k") == 0
        client.close()
        daemon.stop()
        assert find_instance().directory == remains[0].directory, "none listens, so the first one that has an arena"


def test_the_first_place_with_a_daemon_is_taken(own: OwnPlaces) -> None:
    own.session.mkdir(mode=0o700, parents=True)
    own.temporary.mkdir(mode=0o700)
    with Daemon(own.temporary) as behind, Daemon(own.session) as before:
        assert find_instance().directory == before.paths.directory
        before.stop()
        assert find_instance().directory == behind.paths.directory


def test_a_place_that_this_user_may_not_enter_hides_no_daemon_behind_it(own: OwnPlaces) -> None:
    leave_remains(own.system)
    own.system.chmod(0o700 if os.geteuid() == 0 else 0)
    own.temporary.mkdir()
    uid = NOBODY if os.geteuid() == 0 else os.geteuid()
    behind = own.temporary.with_name(f"timerd-{uid}")
    behind.mkdir(exist_ok=True)
    os.chown(behind, uid, -1)
    write_location(InstancePaths(behind, "default"), ArenaLocation("shm", "/timerd-x", 1))
    assert shut_out(lambda: str(find_instance().directory)) == str(behind)
    own.system.chmod(0o700)


@pytest.mark.parametrize("kind", ["mode", "link", "file"])
def test_a_directory_of_our_name_under_tmp_that_others_may_change_is_not_trusted(own: OwnPlaces, kind: str) -> None:
    planted = own.temporary
    target = planted.with_name("target")
    leave_remains(target)
    if kind == "link":
        planted.symlink_to(target)
    elif kind == "file":
        planted.touch()
    else:
        target.rename(planted)
        planted.chmod(0o777)
    why = {"mode": r"others may write it \(mode 0777\)", "link": "is no directory", "file": "is no directory"}[kind]
    with pytest.raises(TimerdUnavailableError, match=f"{planted} is left out, because it {why}: remove it"):
        find_instance()
    with pytest.raises(ResourceLimitError, match=r"remove it \(`rm |File exists") as error:
        make_instance()
    assert str(planted) in str(error.value)


@pytest.mark.root("makes a directory of another user")
def test_a_directory_of_our_name_that_another_user_has_made_is_named_with_its_owner(own: OwnPlaces) -> None:
    leave_remains(own.temporary)
    os.chown(own.temporary, NOBODY, -1)
    said = f"belongs to user nobody: have root remove it (`rm -r {own.temporary}`), or choose another directory (TIMERD"
    with pytest.raises(TimerdUnavailableError) as unavailable:
        td.connect()
    with pytest.raises(ResourceLimitError) as refused:
        td.connect(autostart=True)
    assert said in str(unavailable.value) and said in str(refused.value)
    own.log_in()
    assert make_instance().directory == own.session, "another user cannot keep this user from the other place"


@pytest.mark.root("makes a directory of another user")
def test_a_daemon_of_root_does_not_take_the_directory_of_another_user(own: OwnPlaces, tmp_path: Path) -> None:
    """Its clients are processes of that user, which may open nothing of root's."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, -1)
    for look_only in (True, False):
        with pytest.raises(ResourceLimitError, match="belongs to user nobody: start the daemon as that user, not as r"):
            make_instance(directory=str(theirs), look_only=look_only)
    own.system.mkdir(parents=True)
    os.chown(own.system, NOBODY, -1)
    assert make_instance().directory == own.temporary, "root took a directory of another user"


def test_a_daemon_takes_the_place_that_has_the_arena_of_the_last_one(own: OwnPlaces) -> None:
    """The last daemon ran before the login. In another place the next one would begin anew, without any operation."""
    assert make_instance().directory == own.temporary
    leave_remains(own.temporary)
    own.log_in()
    assert make_instance("other").directory == own.session
    assert make_instance().directory == own.temporary


@pytest.mark.long
def test_a_second_daemon_that_clients_would_not_find_is_refused(own: OwnPlaces) -> None:
    """Users who may connect to the system's daemon would find that daemon first, and so would some later processes."""
    program = f"{own.prelude}import sys\nfrom timerd.__main__ import main\nsys.exit(main(sys.argv[1:]))"

    def start(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *SMALL, "--ephemeral", "--idle-exit=0", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)

    own.system.mkdir(parents=True, mode=0o700)
    with Daemon(own.system):
        # From now on this user may connect there, but start no daemon: root starts none in a directory of another user.
        if os.geteuid() == 0:
            os.chown(own.system, NOBODY, -1)
        else:
            own.system.chmod(0o500)
        second = start()
        assert second.returncode == 3, second.stderr
        assert f"a daemon of instance 'default' is running in {own.system}, where this user's clients" in second.stderr
        assert start("--instance=other").returncode == 0
        assert start(f"--runtime-dir={own.temporary}").returncode == 0
        os.chown(own.system, os.geteuid(), -1)
        own.system.chmod(0o700)


def test_a_daemon_that_begins_to_start_is_waited_for(own: OwnPlaces) -> None:
    """The daemon has its lock, and is about to listen. The client must not say that no daemon is there."""
    assert not has_run_lately(ANYWHERE)
    own.temporary.mkdir(mode=0o700)
    InstancePaths(own.temporary, "default").lock.touch()
    assert has_run_lately(ANYWHERE)
