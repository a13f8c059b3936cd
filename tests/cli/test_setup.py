"""timerctl install-units and completion: what they write, what they leave alone, and what a shell offers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.real.shell import Run
from support.real.trees import ROOT
from timerctl import parser
from timerctl.exits import Exit
from timerctl.setup import completion, units

SYSTEMD = ROOT / "systemd"
DOCKER = {"Dockerfile", "Dockerfile.dockerignore", "compose.yaml"}  # they build an image from a checkout
NAMES = {path.name for path in SYSTEMD.iterdir()} - DOCKER
MACHINE = {
    "systemd/system/timerd.service": "timerd.service",
    "systemd/system/timerd@.service": "timerd@.service",
    "sysusers.d/timerd.conf": "timerd.sysusers",
    "tmpfiles.d/timerd.conf": "timerd.tmpfiles",
}


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /etc."""
    monkeypatch.setattr(units, "ETC", tmp_path / "etc")
    return tmp_path / "etc"


def files_below(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by their paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# units ---------------------------------------------------------------------------------------------------------------


def test_each_file_of_the_tree_is_declared() -> None:
    assert {unit.name for unit in units.UNITS} == NAMES


def test_units_go_where_systemd_looks_for_them(run: Run, etc: Path) -> None:
    status, out, err = run("install-units")
    assert (status, err) == (Exit.OK, "")
    assert files_below(etc) == {place: (SYSTEMD / name).read_bytes() for place, name in MACHINE.items()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in etc.rglob("*") if path.is_file()} == {0o644}
    rows = [line.split() for line in out.splitlines()]
    assert [[name, str(etc / place), "written"] for place, name in MACHINE.items()] == rows[1 : 1 + len(MACHINE)]
    assert "systemctl daemon-reload && systemctl enable --now timerd" in out


def test_a_dry_run_writes_nothing(run: Run, etc: Path) -> None:
    status, out, _ = run("install-units", "--dry-run")
    assert status == Exit.OK and not etc.exists()
    assert out.count("would be written") == len(MACHINE)


def test_a_file_that_differs_stops_the_command_before_it_writes_anything(run: Run, etc: Path) -> None:
    own = etc / "tmpfiles.d/timerd.conf"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    status, out, err = run("install-units")
    assert status == Exit.PROBLEM and "--force" in err
    assert files_below(etc) == {"tmpfiles.d/timerd.conf": b"mine"}
    assert "next:" not in out
    status, out, _ = run("install-units", "--force")
    assert status == Exit.OK and out.count("written") == len(MACHINE) - 1 and out.count("replaced") == 1
    assert own.read_bytes() == (SYSTEMD / "timerd.tmpfiles").read_bytes()
    assert run("install-units")[1].count("unchanged") == len(MACHINE)


def test_a_masked_unit_is_a_link_and_stays_one(run: Run, etc: Path) -> None:
    masked = etc / "systemd/system/timerd.service"
    masked.parent.mkdir(parents=True)
    masked.symlink_to("/dev/null")
    assert run("install-units")[0] == Exit.PROBLEM
    assert masked.is_symlink() and len(list(etc.rglob("*.service"))) == 1
    assert run("install-units", "--force")[0] == Exit.OK
    assert not masked.is_symlink() and masked.read_bytes() == (SYSTEMD / "timerd.service").read_bytes()


def test_a_directory_gets_all_files_and_its_json_names_them(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "of mine"
    status, out, _ = run("install-units", str(folder), "--json")
    assert status == Exit.OK
    assert set(files_below(folder)) == NAMES
    document = json.loads(out)
    assert document["written"] is True
    assert {row["file"] for row in document["files"]} == NAMES
    assert {row["state"] for row in document["files"]} == {"written"}
    (apply,) = (step["command"] for step in document["next"] if step["command"].startswith("kubectl"))
    assert shlex.split(apply)[-1] == str(folder / "web-daemonset.yaml")


def test_a_user_gets_the_unit_of_a_user(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    status, out, _ = run("install-units", "--user")
    assert status == Exit.OK and "systemctl --user" in out
    unit = (SYSTEMD / "timerd-user.service").read_bytes()
    assert files_below(tmp_path) == {"systemd/user/timerd.service": unit}
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # which systemd ignores, too
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run("install-units", "--user")[0] == Exit.OK
    assert (tmp_path / "home/.config/systemd/user/timerd.service").read_bytes() == unit
    status, out, _ = run("install-units", "--user", str(tmp_path / "elsewhere"))
    assert status == Exit.OK and set(files_below(tmp_path / "elsewhere")) == {"timerd.service"}
    assert "install-units --user" in out and "systemctl" not in out, "systemd does not look there"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_ordinary_user_reads_what_to_do(run: Run, etc: Path) -> None:
    etc.mkdir(mode=0o500)
    status, _, err = run("install-units")
    assert status == Exit.PROBLEM and "Permission denied: be root, or give --user or a DIRECTORY" in err


def test_a_wheel_has_the_units_beside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    cmake = (ROOT / "timerd/CMakeLists.txt").read_text()
    assert "install(DIRECTORY ${root}/systemd/ DESTINATION timerctl/units\n" in cmake
    monkeypatch.setattr(units, "__file__", str(tmp_path / "timerctl/setup/units.py"))
    status, _, err = run("install-units", str(tmp_path / "out"))
    assert status == Exit.PROBLEM and "has no units" in err
    shutil.copytree(SYSTEMD, tmp_path / "timerctl/units")
    assert run("install-units", str(tmp_path / "out"))[0] == Exit.OK
    assert set(files_below(tmp_path / "out")) == NAMES


# completion ----------------------------------------------------------------------------------------------------------


def script_of(run: Run, shell: str) -> str:
    status, out, err = run("completion", shell)
    assert (status, err) == (Exit.OK, "")
    return out


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_completion_has_each_command_and_option(run: Run, shell: str) -> None:
    script = script_of(run, shell)
    found = list(completion.places(parser()))
    assert {("calls", "cancel"), ("journal", "tail"), ("install-units",), ()} <= {place.words for place in found}
    for place in found:
        for word in (*place.commands, *place.options):
            spelt = word.text if shell != "fish" else word.text.lstrip("-")
            assert spelt in script, f"{place.name}: {word.text}"


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_shell_can_read_its_completion(run: Run, shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here")
    script = tmp_path / "script"
    script.write_text(script_of(run, shell))
    ran = subprocess.run([program, "-n", script], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# In zsh the functions that offer words exist only while the tab key is pressed. These stand for them, and print.
ZSH = r"""
compadd() { shift; print -rl -- "$@" }
_files() { print -rl -- *(N) }
_describe() { [[ $1 == -o ]] && shift; local each; for each in "${(@P)2}"; do print -r -- "${each%%:*}"; done }
compdef() { }
"""


def ask_bash(script: Path, line: list[str]) -> str:
    before = f"source {script}; COMP_WORDS=({shlex.join(['timerctl', *line])}); COMP_CWORD={len(line)}"
    return f"{before}; _timerctl; printf '%s\\n' \"${{COMPREPLY[@]}}\""


def ask_zsh(script: Path, line: list[str]) -> str:
    words = shlex.join(["timerctl", *line])
    return f"{ZSH}; source {script}; words=({words}); CURRENT={len(line) + 1}; _timerctl"


def ask_fish(script: Path, line: list[str]) -> str:
    return f"source {script}; complete -C {shlex.quote(' '.join(['timerctl', *line]))}"


@pytest.mark.parametrize("ask", [ask_bash, ask_zsh, ask_fish])
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["expl"], {"explain"}),
        (["--inst"], {"--instance"}),
        (["--instance", "ops", "pi"], {"ping"}),  # "ops" is the name of an instance here
        (["--instance", "=", "ops", "pi"], {"ping"}),  # bash cuts --instance=ops into three words
        (["ops", "--state", ""], {"pending", "settled", "all"}),
        (["ops", "--state", "=", "se"], {"settled"}),
        (["ops", "--state", "="], {"pending", "settled", "all"}),
        (["ops", "--key", ""], set()),
        (["ops", "--bucket", "--js"], {"--json"}),  # the value of --bucket may be left out
        (["calls", "c"], {"cancel"}),
        (["calls", "--json", "cancel", "--gr"], {"--group"}),
        (["journal", "export", "--format", ""], {"json", "parquet"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["check", "--file", "are"], {"arena of mine"}),
        (["install-units", "are"], {"arena of mine"}),
        (["nonsense", "expl"], {"explain"}),  # an unknown word changes nothing
    ],
)
def test_a_shell_offers_what_may_come_next(
    run: Run, tmp_path: Path, ask: Callable[[Path, list[str]], str], line: list[str], offered: set[str]
) -> None:
    shell = ask.__name__.removeprefix("ask_")
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here")
    if "=" in line and shell != "bash":
        pytest.skip("only bash cuts words at =")
    place = tmp_path / "here"
    place.mkdir()
    (place / "arena of mine").touch()
    script = tmp_path / "script"
    script.write_text(script_of(run, shell))
    environment = os.environ | {"HOME": str(tmp_path)}  # fish keeps a history there
    command = [program, "-c", ask(script, line)]
    ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert not ran.stderr, ran.stderr
    begun = "" if line[-1] == "=" else line[-1]
    words = {each.partition("\t")[0].replace("\\ ", " ") for each in ran.stdout.splitlines()}
    assert {each for each in words if each and each.startswith(begun)} == offered
