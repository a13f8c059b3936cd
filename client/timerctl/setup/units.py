"""timerctl install-units: copies the units of systemd, and the manifests of Kubernetes, out of the package.

A file that is there already, and differs, stops the command before it writes anything.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from timerctl.exits import Exit
from timerctl.listing import declare
from timerctl.show.table import Column, Table
from timerctl.show.text import print_json
from timerd_shm.declare.errors import TimerdError

ETC: Final = Path("/etc")
SYSTEMD_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"  # where systemd looks for `timerd`
HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))  # hidden from the unit by ProtectHome=
MODE: Final = 0o644
EPILOG: Final = """\
Without DIRECTORY the units go to the places where systemd looks for them: as
root for the whole machine, with --user for this user alone. With DIRECTORY all
files go there, also the manifests for Kubernetes; with --user only the user's
unit. The first lines of each file say what it is for.

A file that is there already stays as it is. If it differs, nothing is written,
and the exit status is 1; --force replaces it. Your own settings belong into
/etc/default/timerd, or into a drop-in (systemctl edit timerd).

examples:
  timerctl install-units --dry-run         what would be written, and where
  timerctl install-units                   as root, for the whole machine
  timerctl install-units --user            for this user alone
  timerctl install-units ./units           all files, to look at or to change
"""


class Unit(NamedTuple):
    """A file of the package: its name, and its place for the machine (below /etc) and for a user."""

    name: str
    system: str | None = None
    user: str | None = None  # the name in ~/.config/systemd/user


UNITS: Final = (
    Unit("timerd.service", system="systemd/system/timerd.service"),
    Unit("timerd@.service", system="systemd/system/timerd@.service"),
    Unit("timerd.sysusers", system="sysusers.d/timerd.conf"),
    Unit("timerd.tmpfiles", system="tmpfiles.d/timerd.conf"),
    Unit("timerd-user.service", user="timerd.service"),
    *(Unit(f"{name}.yaml") for name in ("web-daemonset", "web-sidecar", "spark-daemonset", "spark-executor")),
)


class Copy(NamedTuple):
    """A file to be copied. `state` is new, same or differs."""

    name: str
    path: Path
    data: bytes
    state: str


class Step(NamedTuple):
    """A command line for a person, and what it is for."""

    command: str
    about: str


class NoUnitsError(TimerdError):
    """The installation has no units."""


def add(commands: Any) -> None:
    """Declare the command."""
    common = argparse.ArgumentParser(add_help=False)  # without --instance: the units are for all instances
    command = declare(
        commands,
        common,
        "install-units",
        run,
        help="copy the units of systemd and Kubernetes' manifests out of the package",
        description="Copy the units of systemd, and the manifests for Kubernetes, out of the\n"
        "installed package. Prints what went where, and what to do next.",
        epilog=EPILOG,
    )
    command.add_argument("directory", metavar="DIRECTORY", type=Path, nargs="?", help="copy all files there")
    command.add_argument("--user", action="store_true", help="the unit for systemd of this user")
    command.add_argument("--dry-run", action="store_true", help="write nothing, and print what would be written")
    command.add_argument("--force", action="store_true", help="replace files that differ")


def run(arguments: argparse.Namespace) -> int:
    """Copy, and print what went where."""
    copies = planned(arguments.directory, arguments.user)
    stops = not arguments.force and any(each.state == "differs" for each in copies)
    writes = not (stops or arguments.dry_run)
    if writes:
        try:
            for each in copies:
                write(each)
        except PermissionError as error:
            remedy = "be root, or give --user or a DIRECTORY"
            raise PermissionError(error.errno, f"{error.strerror}: {remedy}", error.filename) from None
    steps = [] if stops else next_steps(arguments.directory, arguments.user)
    words = {each.path: state_after(each, writes, arguments.force) for each in copies}
    if arguments.json:
        rows = [{"file": each.name, "path": str(each.path), "state": words[each.path]} for each in copies]
        print_json({"written": writes, "files": rows, "next": [step._asdict() for step in steps]})
    else:
        table = Table(Column("file"), Column("to"), Column("state"))
        table.print([(each.name, each.path, words[each.path]) for each in copies])
        if steps:
            wide = max(len(step.command) for step in steps)
            print("next:", *(f"  {step.command:{wide}}  # {step.about}" for step in steps), sep="\n")
    if stops:
        print("timerctl: nothing was written, because files differ: --force replaces them", file=sys.stderr)
    return Exit.PROBLEM if stops else Exit.OK


def state_after(copy: Copy, writes: bool, force: bool) -> str:
    """The state of a file after the command."""
    if copy.state == "same":
        return "unchanged"
    if copy.state == "differs" and not force:
        return "differs"
    done = "replaced" if copy.state == "differs" else "written"
    return done if writes else f"would be {done}"


# files ---------------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Where the package has the units: beside this room in a wheel, and in systemd/ of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for found in (package / "units", package.parent.parent / "systemd"):
        if (found / UNITS[0].name).is_file():
            return found
    raise NoUnitsError(f"this installation has no units in {package / 'units'}: install the wheel of timerd again")


def planned(directory: Path | None, user: bool) -> list[Copy]:
    """The files to be copied, each with its place."""
    source, copies = folder(), list[Copy]()
    for unit in UNITS:
        path = place_of(unit, directory, user)
        if path is not None:
            data = (source / unit.name).read_bytes()
            copies.append(Copy(unit.name, path, data, state_of(path, data)))
    return copies


def place_of(unit: Unit, directory: Path | None, user: bool) -> Path | None:
    """Where a file goes; None if it is left out."""
    if user:
        return None if unit.user is None else (directory or user_units()) / unit.user
    if directory is not None:
        return directory / unit.name
    return None if unit.system is None else ETC / unit.system


def user_units() -> Path:
    """Where systemd looks for the units of this user."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".config") / "systemd/user"


def state_of(path: Path, data: bytes) -> str:
    """Whether a file is new, is there with these bytes, or differs. A link differs: a masked unit is a link."""
    if not os.path.lexists(path):
        return "new"
    is_same = path.is_file() and not path.is_symlink() and path.read_bytes() == data
    return "same" if is_same else "differs"


def write(copy: Copy) -> None:
    """Write a file, whole or not at all. Raises FileExistsError if somebody has made a new file meanwhile."""
    if copy.state == "same":
        return
    copy.path.parent.mkdir(parents=True, exist_ok=True)
    written = copy.path if copy.state == "new" else copy.path.with_name(f".{copy.path.name}.{os.getpid()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, MODE)  # whatever the umask is
            file.write(copy.data)
        if written != copy.path:
            os.replace(written, copy.path)
    except BaseException:
        written.unlink()
        raise


# next steps ----------------------------------------------------------------------------------------------------------


def next_steps(directory: Path | None, user: bool) -> list[Step]:
    """Command lines for a person."""
    if directory is not None and user:
        return [Step("timerctl install-units --user", "the unit, for this user")]
    if directory is not None:
        manifest = shlex.quote(str(directory / "web-daemonset.yaml"))
        return [
            Step("timerctl install-units", "as root: the units, for this machine"),
            Step(f"kubectl apply -f {manifest}", "after you have replaced IMAGE"),
        ]
    here = Path(sys.executable).absolute().parent / "timerd"
    if user:
        link = Step(f"mkdir -p ~/.local/bin && ln -s {shlex.quote(str(here))} ~/.local/bin/", "the unit looks there")
        steps = [
            Step("systemctl --user daemon-reload && systemctl --user enable --now timerd", "start it"),
            Step("loginctl enable-linger", "else logind removes the arena at the last logout"),
        ]
        search = f"{Path.home() / '.local/bin'}:{SYSTEMD_PATH}"
    else:
        link = Step(f"ln -s {shlex.quote(str(here))} /usr/local/bin/", "systemd looks there")
        steps = [
            Step("systemd-sysusers && systemd-tmpfiles --create timerd.conf", "make its user and directory"),
            Step("systemctl daemon-reload && systemctl enable --now timerd", "start it"),
            Step("usermod -aG timerd www-data", "a user whose processes may connect"),
        ]
        search = SYSTEMD_PATH
        for path in (here.resolve(), Path(sys.executable).resolve()):  # a venv links to its interpreter
            if any(path.is_relative_to(home) for home in HOMES):
                link = Step("", f"install timerd elsewhere: the unit does not see {path.parent}")
    return steps if shutil.which("timerd", path=search) or not here.exists() else [link, *steps]
