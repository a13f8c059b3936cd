"""The systemd units: restarts, rights and flags of the daemon, and how secure systemd rates them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess

import pytest

from support.real.trees import ROOT
from timerd.config.config import KNOBS, dashed

UNITS = ROOT / "systemd"
EXPOSURE_MAX = 2.0  # out of 10; systemd calls 0 to 2 "safe"
SERVICES = ("timerd.service", "timerd@.service")


def section(name: str, of: str) -> dict[str, str]:
    """A section of a unit. If a key is given several times, its last value counts."""
    text = (UNITS / name).read_text()
    read = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string(text)
    return dict(read[of])


def service(name: str) -> dict[str, str]:
    return section(name, "Service")


@pytest.mark.parametrize("name", SERVICES)
def test_the_service_notifies_systemd_and_has_a_watchdog(name: str) -> None:
    unit = service(name)
    assert unit["Type"] == "notify"
    assert re.fullmatch(r"\d+s", unit["WatchdogSec"])


@pytest.mark.parametrize("name", SERVICES)
def test_the_service_is_started_again_however_often_it_ends(name: str) -> None:
    """It is not started again if no start can succeed: a wrong knob, a running daemon, an arena of another layout."""
    assert service(name)["Restart"] == "always"
    assert section(name, "Unit")["StartLimitIntervalSec"] == "0"
    assert service(name)["RestartSec"] == "200ms", "systemd does not limit the starts, so a pause is needed"
    assert service(name)["RestartPreventExitStatus"] == "2 3 5"


@pytest.mark.parametrize("name", SERVICES)
def test_the_arena_outlives_the_service(name: str) -> None:
    unit = service(name)
    assert unit["User"] == unit["Group"] == "timerd"
    assert "DynamicUser" not in unit
    assert unit["RemoveIPC"] == "no"
    assert unit["RuntimeDirectory"] == "timerd" and unit["RuntimeDirectoryPreserve"] == "yes"
    assert unit["RuntimeDirectoryMode"] == "0750"


@pytest.mark.parametrize("name", SERVICES)
def test_users_in_the_unix_group_may_connect_and_every_flag_exists(name: str) -> None:
    words = service(name)["ExecStart"].split()
    assert words[words.index("--unix-group") + 1] == "timerd"
    flags = [word for word in words if word.startswith("--")]
    assert set(flags) <= {f"--{dashed(knob)}" for knob in KNOBS}


def test_the_units_let_the_daemon_see_client_processes() -> None:
    assert service("timerd.service")["ProtectProc"] == "default"


def test_the_template_differs_from_the_service_in_its_instance_only() -> None:
    single, template = (service(name) for name in SERVICES)
    differing = {key for key in single if single[key] != template.get(key)} | (set(template) - set(single))
    assert differing == {"ExecStart", "EnvironmentFile"}
    assert "--instance %i" in template["ExecStart"]


def test_the_unit_of_a_user_starts_the_daemon_as_the_system_does_and_asks_for_no_right_of_root() -> None:
    name = "timerd-user.service"
    unit, system = service(name), service("timerd.service")
    for key in ("Type", "NotifyAccess", "WatchdogSec", "Restart", "RestartSec", "RestartPreventExitStatus", "UMask"):
        assert unit[key] == system[key], key
    assert section(name, "Unit")["StartLimitIntervalSec"] == "0"
    assert section(name, "Install")["WantedBy"] == "default.target"
    assert unit["ExecStart"].split() == ["/usr/bin/env", "timerd"]
    assert not {"User", "Group", "LimitNOFILE", "CPUWeight", "PrivateNetwork", "RuntimeDirectory"} & set(unit)


def test_the_user_and_the_directory_are_declared() -> None:
    assert re.search(r"^u timerd ", (UNITS / "timerd.sysusers").read_text(), re.MULTILINE)
    assert re.search(r"^d /run/timerd 0750 timerd timerd ", (UNITS / "timerd.tmpfiles").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", SERVICES)
def test_systemd_rates_the_service_as_secure(name: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed here")
    result = subprocess.run(
        [analyze, "security", "--offline=true", str(UNITS / name)], capture_output=True, text=True, timeout=60
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", result.stdout)
    assert found, result.stdout + result.stderr
    assert float(found[1]) <= EXPOSURE_MAX
