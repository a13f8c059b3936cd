"""The daemon's knobs: precedence, limits, units, and errors that say what to write instead."""

from __future__ import annotations

import grp
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import timerd
from support.real.trees import SETTINGS
from timerctl.show.text import duration_ns
from timerd.arena.plan import CONFIGURED, plan_of
from timerd.config.command_line import parser, read_command_line
from timerd.config.config import KNOBS, Config, dashed
from timerd.config.settings import Settings
from timerd.config.sources import variable
from timerd.host.group import group_id_of
from timerd_shm.declare.errors import InvalidConfigError
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import CAPACITY_DEFAULT
from timerd_shm.declare.records import ArenaHeader


def settle(*flags: str, **environment: str) -> Settings:
    return read_command_line(flags, environment).settings


def test_a_closed_pipe_of_the_shown_configuration_is_no_error() -> None:
    command = [sys.executable, "-m", "timerd", "--show-config"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    says = "timerd: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (4, says)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as broken:
        done = subprocess.run(command, stdout=broken, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_any_setting_every_knob_has_its_default() -> None:
    settings = settle()
    assert settings.config == Config()
    assert set(settings.sources.values()) == {"default"}


def test_every_default_is_within_its_own_limits() -> None:
    for name, knob in KNOBS.items():
        default = Config._field_defaults[name]
        if default is not None:
            assert knob.accept(knob.show(default)) == default, name


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "timerd.toml"
    file.write_text('capacity = 100\nwatermarks = 200\nblocks = 300\ntick = "2ms"\n')
    settings = settle("--config", str(file), "--capacity=128", TIMERD_CAPACITY="256", TIMERD_WATERMARKS="512")
    assert (settings.config.capacity, settings.config.watermarks, settings.config.blocks) == (128, 512, 300)
    assert settings.config.tick == 2_000_000
    assert settings.sources["capacity"] == "flag --capacity"
    assert settings.sources["watermarks"] == "environment TIMERD_WATERMARKS"
    assert settings.sources["blocks"] == f"file {file}"
    assert settings.sources["nodes"] == "default"


def test_the_file_can_be_named_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("ephemeral = true\n")
    assert settle(TIMERD_CONFIG=str(tmp_path / "t.toml")).config.ephemeral is True


@pytest.mark.parametrize(("wrong", "near"), [("ring_events", "ring-events"), ("capcity", "capacity"), ("x", "")])
def test_an_unknown_key_of_the_file_is_refused_with_a_suggestion(tmp_path: Path, wrong: str, near: str) -> None:
    (tmp_path / "t.toml").write_text(f"{wrong} = 1\n")
    with pytest.raises(InvalidConfigError, match=f"unknown key '{wrong}'; did you mean '{near}") as error:
        settle("--config", str(tmp_path / "t.toml"))
    assert str(tmp_path / "t.toml") in str(error.value)


@pytest.mark.parametrize(
    "text", ["[timerd]\nkeys = 5\n", "[[timerd]]\nkeys = 5\n", "timerd = {keys = 5}\n", "[keys]\n"]
)
def test_a_table_in_the_file_is_refused_because_keys_belong_at_the_top_level(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(InvalidConfigError, match="is a table, but all keys belong at the top level"):
        settle("--config", str(tmp_path / "t.toml"))


@pytest.mark.parametrize("text", ["capacity = ", "capacity = 1 2", "\x00", "[table]\ncapacity = 5\n"])
def test_a_file_that_is_not_toml_or_has_tables_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(InvalidConfigError, match=r"t\.toml"):
        settle("--config", str(tmp_path / "t.toml"))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"/nowhere/t\.toml cannot be read: No such file"):
        settle("--config", "/nowhere/t.toml")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--capacity=15", "limits are 16 to 16777216"),
        ("--capacity=99999999", "limits are 16 to 16777216"),
        ("--capacity=many", "write a whole number"),
        ("--capacity=1.5", "write a whole number"),
        ("--tick=99us", "limits are 100us to 1s"),
        ("--tick=2s", "limits are 100us to 1s"),
        ("--tick=5", 'limits are 100us to 1s; a number without a unit is seconds: write "5ms"'),
        ("--tick=-1ms", "write seconds, or a number and one of ns, us, ms"),
        ("--tick=0.5ns", "not a whole number of ns"),
        ("--tick=nan", "write seconds, or a number and one of ns, us, ms"),
        ("--ring-events=1000", "nearest are 512 and 1024"),
        ("--ring-bytes=3XB", "KiB, MiB or GiB"),
        ("--clients=0", "limits are 1 to"),
        ("--instance=Jobs", "a name has the form"),
        ("--instance=../x", "a name has the form"),
        ("--log-level=loud", "debug, info, warning, error"),
        ("--arena-file=", "it is empty"),
        ("--lease=10ms", "limits are 2s to 366d"),
    ],
)
def test_a_value_out_of_range_is_refused_with_value_limit_and_remedy(flag: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said) as error:
        settle(flag)
    name, _, value = flag.removeprefix("--").partition("=")
    assert name in str(error.value) and value in str(error.value)


@pytest.mark.parametrize("line", ["capacity = true", 'capacity = "x"', "tick = 5", "instance = 5", 'ephemeral = "eh"'])
def test_a_wrong_type_in_the_file_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "t.toml").write_text(line + "\n")
    with pytest.raises(InvalidConfigError, match=line.partition(" ")[0]):
        settle("--config", str(tmp_path / "t.toml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("100us", 100_000), ("1ms", 10**6), ("0.5s", 5 * 10**8), ("1.25 ms", 1_250_000), ("0.01", 10**7), ("1", 10**9)],
)
def test_durations_are_read_to_the_nanosecond_and_a_bare_number_is_seconds_as_in_timerctl(
    text: str, value: int
) -> None:
    assert settle(f"--tick={text}").config.tick == value == duration_ns(text)


@pytest.mark.parametrize(("line", "value"), [("lease = 15", 15 * 10**9), ("lease = 2.5", 25 * 10**8)])
def test_a_number_in_the_file_is_seconds_too(tmp_path: Path, line: str, value: int) -> None:
    (tmp_path / "t.toml").write_text(line)
    assert settle("--config", str(tmp_path / "t.toml")).config.lease == value


@pytest.mark.parametrize("line", ["unix-group = 1234567", 'unix-group = "1234567"'])
def test_a_unix_group_may_be_a_number_without_a_name_in_this_system(tmp_path: Path, line: str) -> None:
    """In a container the group may have a name only outside the container."""
    (tmp_path / "t.toml").write_text(line)
    group = settle("--config", str(tmp_path / "t.toml")).config.unix_group
    assert group == "1234567" and group_id_of(group, "a test") == 1234567
    assert group_id_of("daemon", "a test") == grp.getgrnam("daemon").gr_gid
    with pytest.raises(InvalidConfigError, match=r"unix-group = 4294967295 \(a test\): .* is 4294967294 at most"):
        group_id_of("4294967295", "a test")


def test_a_tick_without_a_unit_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("tick = 5")
    with pytest.raises(InvalidConfigError, match=r'limits are 100us to 1s; .* write "5ms" for milli'):
        settle("--config", str(tmp_path / "t.toml"))


def test_a_misspelt_variable_is_ignored_with_a_warning_that_has_a_suggestion() -> None:
    settings = settle(
        TIMERD_CAPCITY="64",
        TIMERD_PORT_80_TCP="x",
        TIMERD_CONFIG="",
        TIMERD_INSTANCE="a",
        TIMERD_TRANSPORT="unix",
        HOME="/",
    )
    assert settings.config == Config(instance="a")
    assert settings.warnings == (
        "variable TIMERD_CAPCITY is ignored: did you mean TIMERD_CAPACITY?",
        "variable TIMERD_PORT_80_TCP is ignored: it is no knob",
    )


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("4096", 4096), ("64KiB", 1 << 16), ("1.5MiB", 3 << 19)])
def test_sizes_are_read_to_the_byte(text: str, value: int) -> None:
    assert settle(f"--ring-bytes={text}").config.ring_bytes == value


def test_a_shown_value_can_be_read_again() -> None:
    for name, knob in KNOBS.items():
        for value in (knob.low, knob.high, 1_500_000, 12_345_678):
            if knob.unit in ("duration", "bytes", "count") and knob.low <= value <= knob.high:
                assert knob.accept(knob.show(value)) == value, (name, value)


def test_the_environment_can_switch_a_flag_off_and_the_command_line_back_on() -> None:
    assert settle(TIMERD_EPHEMERAL="no").config.ephemeral is False
    assert settle("--ephemeral", TIMERD_EPHEMERAL="no").config.ephemeral is True
    assert settle("--no-ephemeral", TIMERD_EPHEMERAL="yes").config.ephemeral is False


def test_a_shortened_flag_is_refused_as_a_later_knob_could_change_its_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        settle("--cap=64")
    assert ended.value.code == 2
    assert "--cap=64" in capsys.readouterr().err


def test_an_unknown_flag_is_refused_with_a_suggestion_in_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settle("--capcity=64")
    assert ended.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: timerd ")
    assert error == "timerd: error: unknown argument '--capcity=64'; did you mean --capacity?"


def test_help_names_every_knob_its_default_and_every_exit_status() -> None:
    text = parser().format_help()
    for name in KNOBS:
        assert f"--{dashed(name)}" in text
    for status in range(6):
        assert f"\n  {status}  " in text


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timerd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env={"PATH": "/usr/bin", **environment})


def test_show_config_prints_each_knob_with_value_and_source() -> None:
    shown = run("--show-config", "--capacity=64", TIMERD_TICK="100us")
    assert shown.returncode == 0, shown.stderr
    table, _, memory = shown.stdout.partition("\n\n")
    rows = {row.split()[0]: row for row in table.splitlines()[1:]}
    assert "64 operations takes 10 MiB of memory" in memory
    assert set(rows) == {dashed(name) for name in KNOBS}
    assert rows["capacity"].split() == ["capacity", "64", "flag", "--capacity"]
    assert rows["tick"].split() == ["tick", "100us", "environment", variable("tick")]
    assert rows["clients"].split()[-1] == "default"


def test_a_derived_size_is_shown_with_its_formula_and_used_for_the_arena() -> None:
    arguments = ("--show-config", "--capacity=1000", "--watermarks=100")
    rows = {row.split()[0]: row for row in run(*arguments).stdout.partition("\n\n")[0].splitlines()[1:]}
    assert rows["nodes"].split()[1:] == ["750", "(0.75", "x", "capacity)", "default"]
    assert rows["watermarks"].split()[1:] == ["100", "flag", "--watermarks"]
    assert rows["quota-watermarks"].split()[1:] == ["50", "(half", "of", "watermarks)", "default"]
    shown = json.loads(run(*arguments, "--json").stdout)
    assert shown["blocks"] == {"value": 750, "source": "default", "formula": "0.75 x capacity"}
    plan = plan_of(Config(capacity=1000, watermarks=100))
    for name in ("quota-operations", "quota-bytes", "quota-watermarks"):
        assert shown[name]["value"] == plan.words[name.replace("-", "_")]
    for name in ("nodes", "watermarks", "blocks", "ids"):
        assert shown[name]["value"] == plan.regions[Region[name.upper()]].count


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--journal=/nowhere/j"], 4, "the journal's directory /nowhere/j cannot be made, or may not be written"),
        (["--ring-events=100"], 2, "ring-events = 100"),
        (["--unix-group=no-such-group"], 2, "unix-group = 'no-such-group' (flag --unix-group): no such group"),
        (["--runtime-dir=/nowhere/t"], 4, "/nowhere/t: does not exist, and cannot be made): choose another directory"),
        ([f"--runtime-dir=/tmp/{'x' * 120}"], 4, "a socket's path at most 107"),
        (["--arena-file=/nowhere/arena"], 4, "the arena /nowhere/arena cannot be opened"),
    ],
)
def test_show_config_reports_the_errors_of_a_start_and_makes_no_files(
    arguments: list[str], status: int, said: str
) -> None:
    shown = run("--show-config", *arguments)
    assert (shown.returncode, shown.stdout) == (status, "")
    assert said in shown.stderr
    assert not Path(f"/tmp/{'x' * 120}").exists()


def test_an_impossible_runtime_directory_is_refused_with_both_ways_to_choose_another() -> None:
    refused = run("--runtime-dir=/proc/nothing")
    assert refused.returncode == 4
    remedy = "choose another directory (TIMERD_RUNTIME_DIR, or --runtime-dir of timerd) that may be written"
    assert remedy in refused.stderr


def test_help_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = parser().format_help()
    assert [line for line in text.splitlines() if len(line) > 80] == []
    flat = " ".join(text.split())
    assert "[16 to 16777216; default: 131072]" in flat and "[100us to 1s; default: 1ms]" in flat


def test_the_version_is_the_projects() -> None:
    project = SETTINGS["project"]
    assert run("--version").stdout == f"timerd {project['version']}\n"
    assert timerd.__version__ == project["version"]


def test_show_config_as_json_has_plain_numbers() -> None:
    shown = json.loads(run("--show-config", "--json").stdout)
    assert shown["capacity"] == {"value": CAPACITY_DEFAULT, "source": "default"}
    assert shown["tick"]["value"] == 1_000_000


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--tick=2s"], "limits"), (["--journal-level=all"], "outcomes, events")]
)
def test_a_wrong_knob_ends_with_status_2_and_one_line(arguments: list[str], said: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith("timerd: ") and said in ended.stderr and ended.stderr.count("\n") == 1


def test_a_daemon_without_assertions_is_refused() -> None:
    command = [sys.executable, "-O", "-m", "timerd", "--show-config"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "python -O" in ended.stderr


def test_every_configured_word_of_the_header_follows_from_its_knob_by_name() -> None:
    quotas = {name for name in ArenaHeader._fields if name.startswith("quota_")}
    renamed = {
        "ring_bytes_max": "ring_bytes",
        "ids_kept_ns": "settled_ids_kept",
        "group_kept_ns": "group_retention",
        "schedule_kept_ns": "schedule_retention",
        "letters_max": "dead_letters",
    }
    assert {name: name for name in quotas} | renamed == CONFIGURED
    chosen: dict[str, Any] = {name: 100 + at for at, name in enumerate(CONFIGURED.values())}
    words = plan_of(Config(capacity=1000, **chosen)).words
    assert {CONFIGURED[word]: value for word, value in words.items()} == chosen
