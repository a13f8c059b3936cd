"""systemd/Dockerfile without Docker: its lines are run in root file systems that debootstrap makes, and so is an image.

Docker's daemon cannot run in a container or a small virtual machine. Namespaces, mounts, users and limits can be had
there, too. Not played: Docker's network (an image has the host's), its layers and its seccomp profile.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from support.real.patience import until
from support.real.trees import ROOT

DOCKERFILE = ROOT / "systemd" / "Dockerfile"
BASE = "debian:trixie-slim"
IGNORED = DOCKERFILE.with_name("Dockerfile.dockerignore")
Lines = list[tuple[str, str]]


def copied() -> list[str]:
    """The files and folders of the tree that `COPY .` finds."""
    return re.findall(r"^!(.+)$", IGNORED.read_text(), re.MULTILINE)


def stages() -> dict[str, Lines]:
    """The lines of each stage, as (word, rest), by the name of the stage. A stage begins with its FROM."""
    found: dict[str, Lines] = {}
    for line in DOCKERFILE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found[rest.split()[2]] = []
        list(found.values())[-1].append((word, rest))
    return found


class Image(NamedTuple):
    """A root file system, and how a container of it is run."""

    root: Path
    environment: Mapping[str, str]
    user: str
    workdir: str
    command: list[str]
    health: list[str]


class Builder:
    """Builds the stages of the Dockerfile, each once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Image] = {}

    def image(self, stage: str) -> Image:
        """Build a stage, and those that it is made from."""
        if stage not in self._made:
            self._made[stage] = self._build(stage)
        return self._made[stage]

    def _build(self, stage: str) -> Image:
        (_, of), *lines = stages()[stage]
        before = of.split()[0]
        root = self._directory / stage
        image = Image(root, {}, "root", "/", [], []) if before == BASE else self.image(before)._replace(root=root)
        shutil.copytree(self._base() if before == BASE else self._made[before].root, root, symlinks=True)
        environment, user, workdir, command, health = dict(image.environment), *image[2:]
        for word, rest in lines:
            match word:
                case "RUN":
                    play(root, environment, ["sh", "-c", rest])
                case "COPY":
                    self._copy(root, rest.split())
                case "ENV":
                    name, _, value = rest.partition("=")
                    environment[name] = value
                case "USER":
                    user = rest
                case "WORKDIR":
                    workdir = rest
                case "CMD":
                    command = json.loads(rest)
                case "HEALTHCHECK":
                    health = json.loads(rest.partition(" CMD ")[2])
                case "VOLUME" | "EXPOSE":
                    pass
                case _:
                    raise AssertionError(f"{word}: {DOCKERFILE} has a line that this module does not know")
        return Image(root, environment, user, workdir, command, health)

    def _copy(self, root: Path, words: list[str]) -> None:
        source, target = words[-2:]
        if words[0].startswith("--from="):
            shutil.copytree(self.image(words[0].partition("=")[2]).root / source[1:], root / target[1:], symlinks=True)
        elif source == ".":
            (root / target[1:]).mkdir()
            for name in copied():
                path = ROOT / name
                if path.is_dir():
                    shutil.copytree(path, root / target[1:] / name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(path, root / target[1:])
        else:
            shutil.copytree(ROOT / source, root / target[1:], ignore=shutil.ignore_patterns("__pycache__"))

    def _base(self) -> Path:
        """Debian's smallest system, from the mirror that this machine's apt uses."""
        made = self._directory / "base"
        if not made.exists():
            sites = subprocess.run(
                ["apt-get", "indextargets", "--format", "$(SITE)"], capture_output=True, text=True, check=True
            ).stdout.split()
            suite = BASE.removeprefix("debian:").removesuffix("-slim")
            mirror = next((site for site in sites if "security" not in site), "")
            subprocess.run(["debootstrap", "--variant=minbase", suite, str(made), mirror], check=True, timeout=900)
        return made


def play(root: Path, environment: Mapping[str, str], command: list[str]) -> None:
    """Run a command of the build, as root in the file system. It has the host's network, and pip's settings."""
    for name in ("/etc/resolv.conf", "/etc/pip.conf", "/etc/hosts"):
        if Path(name).exists():
            shutil.copy(name, root / name[1:])
    own = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    given = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
    ran = subprocess.run(
        ["chroot", str(root), *command],
        env={**given, **own, **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert not ran.returncode, f"RUN {shlex.join(command)}\n{ran.stdout[-2_000:]}\n{ran.stderr[-4_000:]}"


class Container:
    """A process in an image, with namespaces of its own: mounts, pids, shared memory, host name."""

    def __init__(
        self,
        image: Image,
        command: list[str],
        *,
        environment: Mapping[str, str],
        volume: Path | None = None,
        is_volume_read_only: bool = False,
        files: int = 1_024,
    ) -> None:
        """`volume` is mounted at /run/timerd."""
        self._image = image
        self._environment = {**image.environment, **environment}
        at = shlex.quote(str(image.root))
        script = ["set -e", "mount --make-rprivate /", f"mount --bind {at} {at}"]
        if volume is not None:
            script.append(f"mount --bind {shlex.quote(str(volume))} {at}/run/timerd")
            if is_volume_read_only:
                script.append(f"mount -o remount,bind,ro {at}/run/timerd")
        script += [f"mount -o remount,bind,ro {at}", f"mount -t proc proc {at}/proc"]
        script += [f"mount -t tmpfs -o size=64m,mode=1777 tmpfs {at}/dev/shm", f"mount -t tmpfs tmpfs {at}/tmp"]
        script += [f"ulimit -n {files}", "exec " + shlex.join(self._inside(command))]
        own = ["--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]
        self._process = subprocess.Popen(
            ["unshare", *own, "sh", "-c", "\n".join(script)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.pid = int(until(lambda: children.read_text().split())[0])  # of the first process, as it is called here

    def _inside(self, command: list[str]) -> list[str]:
        """A command as the image's user, without any right of root."""
        user = self._image.user
        drop = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
        clean = ["env", "-i", *(f"{name}={value}" for name, value in self._environment.items())]
        there = ["sh", "-c", f'cd {self._image.workdir}; exec "$@"', "sh"]
        return ["chroot", str(self._image.root), *drop, *clean, *there, *command]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `docker exec` does."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--ipc", "--uts"]
        return subprocess.run([*enter, *self._inside(list(command))], capture_output=True, text=True, timeout=60)

    def is_healthy(self) -> bool:
        """Whether the image's health check succeeds."""
        return not self.run(*self._image.health).returncode

    def kill(self) -> None:
        """Kill all processes of the container."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.communicate(timeout=30)

    def stop(self) -> str:
        """End the container as `docker stop` does. Returns what it has written to its error output."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        try:
            return self._process.communicate(timeout=30)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def volume_in_memory(path: Path, options: str) -> Iterator[Path]:
    """A tmpfs with the options of the compose file."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
