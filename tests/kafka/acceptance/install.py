"""Installs the clients that the tests' environment does not have, by name: python install.py [NAME,...]

    kafka-python  packages with which it can use lz4
    kcat          the Debian package kcat; only root can install it
    kafkajs       the npm packages kafkajs and kafkajs-snappy; needs node and npm
    java          the Java client: it is in the PyPI package atoti-server-kafka. Needs a JDK, and the Debian package
                  libslf4j-java, which only root can install
    faust, quix   faust-streaming and quixstreams from PyPI, each in an environment of its own

All but Debian's packages are in build/kafka-clients. The exit status is 1 if one of the named cannot be installed; the
output then has the reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable
from importlib.metadata import version as version_of
from pathlib import Path

from clients.roster import CLASSES, HERE, JARS, KEPT, NODE, PYTHON

KAFKAJS = ("kafkajs@2.2.4", "kafkajs-snappy@1.1.0")
JAVA, JAR = "atoti-server-kafka", "plugin.jar"  # the jar has the Java client, and the codec lz4
SLF4J = Path("/usr/share/java/slf4j-api.jar")  # the Java client needs it
FRAMEWORKS = {"faust": "faust-streaming", "quix": "quixstreams"}
SHOWN = 600  # characters of a failed program's output


class NotInstalled(Exception):
    """A client cannot be installed. The text has the reason."""


def run(*words: str | Path, **environment: str) -> None:
    """Run a program. Raises NotInstalled if it fails."""
    try:
        ran = subprocess.run([*map(str, words)], capture_output=True, text=True, env={**os.environ, **environment})
    except FileNotFoundError:
        raise NotInstalled(f"there is no {words[0]}") from None
    if ran.returncode:
        raise NotInstalled(f"{words[0]} has failed: {(ran.stderr or ran.stdout).strip()[-SHOWN:]}")


def pip(python: str | Path, *words: str | Path) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "--quiet", *words)


def install_kafka_python() -> None:
    if not (PYTHON / "lz4").exists():
        pip(sys.executable, "install", "--target", PYTHON, "lz4")


def apt_get(package: str) -> None:
    """Install a package of Debian."""
    if os.geteuid() or not shutil.which("apt-get"):
        raise NotInstalled(f"only root can install it, with apt-get install {package}")
    words = ("apt-get", "install", "-y", "--no-install-recommends", package)
    try:
        run(*words, DEBIAN_FRONTEND="noninteractive")
    except NotInstalled:  # perhaps the lists of packages are old
        run("apt-get", "update")
        run(*words, DEBIAN_FRONTEND="noninteractive")


def install_kcat() -> None:
    if not shutil.which("kcat"):
        apt_get("kcat")


def install_kafkajs() -> None:
    if not all((NODE / name.partition("@")[0] / "package.json").exists() for name in KAFKAJS):
        KEPT.mkdir(parents=True, exist_ok=True)
        run("npm", "install", "--prefix", KEPT, "--no-audit", "--no-fund", "--ignore-scripts", *KAFKAJS)


def install_java() -> None:
    if not shutil.which("javac"):
        raise NotInstalled("there is no javac")
    JARS.mkdir(parents=True, exist_ok=True)
    if not SLF4J.exists():
        apt_get("libslf4j-java")
    shutil.copy(SLF4J, JARS)
    if not (JARS / JAR).exists():
        with tempfile.TemporaryDirectory() as scratch:
            pip(sys.executable, "download", "--no-deps", "--dest", scratch, JAVA)
            (wheel,) = Path(scratch).iterdir()
            with zipfile.ZipFile(wheel) as opened:
                (name,) = (one for one in opened.namelist() if one.endswith(f"/{JAR}"))
                shutil.move(opened.extract(name, scratch), JARS / JAR)
    source = HERE / "other" / "JavaPeer.java"
    made = CLASSES / "JavaPeer.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        run("javac", "-cp", f"{JARS}/*", "-d", CLASSES, source)


def install_framework(name: str) -> Callable[[], None]:
    """The function that makes the environment of a framework."""

    def install() -> None:
        python = KEPT / name / "bin" / "python"
        if not (KEPT / name / "installed").exists():
            venv.create(KEPT / name, with_pip=True, clear=True)
            pip(python, "install", FRAMEWORKS[name])
            (KEPT / name / "installed").touch()

    return install


INSTALL: dict[str, Callable[[], None]] = {
    "kafka-python": install_kafka_python,
    "kcat": install_kcat,
    "kafkajs": install_kafkajs,
    "java": install_java,
    **{name: install_framework(name) for name in FRAMEWORKS},
}


def version(client: str) -> str:
    """The version of an installed client."""
    match client:
        case "kcat":
            said = subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout
            return ", ".join(re.findall(r"(?:Version|librdkafka) (\d[\d.]*)", said))
        case "kafkajs":
            found: str = json.loads((NODE / "kafkajs" / "package.json").read_text())["version"]
            return found
        case "java":
            with zipfile.ZipFile(JARS / JAR) as opened:
                text = opened.read("kafka/kafka-version.properties").decode()
            return "".join(re.findall(r"^version=(.*)$", text, re.MULTILINE))
        case _:
            return version_of(client)


def main(names: list[str]) -> int:
    """Install the named, or all. Returns the exit status."""
    KEPT.mkdir(parents=True, exist_ok=True)
    failed = False
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several tests may want the same client at once
        for name in names or list(INSTALL):
            try:
                INSTALL[name]()
            except NotInstalled as error:
                failed = True
                print(f"{name} is not installed: {error}")
            else:
                print(f"{name} is installed")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main([name for word in sys.argv[1:] for name in word.split(",")]))
