"""The pages of an arena: reserved before they are used, and huge where the file system gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from timerd.arena import pages

HUGE = "99 25 {major}:{minor} / /mnt rw,relatime shared:5 - tmpfs tmpfs rw,size=1024k,huge={huge}\n"
PLAIN = "99 25 {major}:{minor} / /mnt rw,relatime - {kind} {source} rw,size=1024k\n"

# This program runs in a mount namespace of its own, where a mount needs no privilege.
ON_HUGE_PAGES = """
import os, sys
from pathlib import Path
from timerd.arena.open import open_or_create
from timerd.config.config import Config
from timerd_shm.host.search import make_instance

paths = make_instance("huge", sys.argv[1])
config = Config(capacity=4096, arena_file=sys.argv[2])
for _ in range(2):
    arena = open_or_create(config, paths, wall_ns=1)
    print(arena.origin, arena.map_pages(), arena.plan.size, os.stat(arena.location.path).st_blocks * 512)
    arena.close()
"""


def mounts(monkeypatch: pytest.MonkeyPatch, directory: Path, row: str) -> int:
    """A descriptor of a file in `directory`, whose mount is in this row."""
    device = os.stat(directory).st_dev
    table = directory / "mountinfo"
    table.write_text(
        "21 1 0:99 / / rw - tmpfs tmpfs rw,huge=always\n"
        + row.format_map({"major": os.major(device), "minor": os.minor(device)})
    )
    monkeypatch.setattr(pages, "MOUNTS", table)
    return os.open(directory / "file", os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize(
    ("row", "gives"),
    [
        (HUGE.replace("{huge}", "advise"), True),
        (HUGE.replace("{huge}", "always"), True),
        (HUGE.replace("{huge}", "within_size"), True),
        (HUGE.replace("{huge}", "never"), False),
        (PLAIN.replace("{kind}", "tmpfs").replace("{source}", "tmpfs"), False),
        (PLAIN.replace("{kind}", "ext4").replace("{source}", "/dev/huge=always"), False),
        ("", False),
    ],
)
def test_the_mount_of_the_file_shows_whether_there_are_huge_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, row: str, gives: bool
) -> None:
    descriptor = mounts(monkeypatch, tmp_path, row)
    try:
        assert pages.has_huge_pages(descriptor) is gives
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "other",
    [
        b"50 25 0:77 / /media/Caf\xe9 rw - vfat /dev/sdb1 rw\n",  # the kernel writes names as they are
        b"50 25 0:77 / /mnt/a\\040b rw - fuse.x  rw\n",
    ],
)
def test_mounts_of_any_name_and_without_a_source_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: bytes
) -> None:
    nameless = "99 25 {major}:{minor} / /mnt rw - tmpfs  rw,huge=advise\n"
    descriptor = mounts(monkeypatch, tmp_path, nameless)
    try:
        pages.MOUNTS.write_bytes(other + pages.MOUNTS.read_bytes())
        assert pages.has_huge_pages(descriptor)
    finally:
        os.close(descriptor)


def test_mappings_without_a_huge_page_figure_count_as_small_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "MAPPINGS", tmp_path / "smaps")
    mapping = f"7f00-7f01 rw-s 00000000 00:19 7 {tmp_path / 'arena'}\nSize: 4 kB\n"
    pages.MAPPINGS.write_text(mapping + "VmFlags: rd wr\n" + mapping + "ShmemPmdMapped:     2048 kB\nVmFlags: rd wr\n")
    assert pages.huge_bytes(tmp_path / "arena") == 2048 << 10


def test_a_machine_that_shows_no_mounts_has_small_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pages, "MOUNTS", tmp_path / "nowhere")
    with open(tmp_path / "file", "w+b") as file:
        assert not pages.has_huge_pages(file.fileno())


@pytest.mark.parametrize("huge", ["advise", "never"])
def test_all_of_a_file_is_reserved_whatever_its_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, huge: str
) -> None:
    descriptor = mounts(monkeypatch, tmp_path, HUGE.replace("{huge}", huge))
    try:
        pages.reserve(descriptor, 5_000_000)
        status = os.fstat(descriptor)
        assert (status.st_size, status.st_blocks * 512 >= 5_000_000) == (5_000_000, True)
    finally:
        os.close(descriptor)


def test_an_arena_uses_huge_pages_where_the_kernel_has_them_also_after_a_restart(
    runtime_dir: Path, tmp_path: Path
) -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this kernel gives nobody huge pages")
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = 'mount -t tmpfs -o huge=advise,size=64m tmpfs "$1" || exit 77; exec "$2" -c "$3" "$4" "$1/arena"'
    ran = subprocess.run(
        [*mount, script, "sh", str(tmp_path), sys.executable, ON_HUGE_PAGES, str(runtime_dir)],
        capture_output=True,
        text=True,
    )
    if ran.returncode == 77 or "unshare" in ran.stderr:
        pytest.skip(f"no mount of one's own here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
    made, attached = (line.rsplit(" ", 3) for line in ran.stdout.splitlines())
    for origin, huge, size, reserved in (made, attached):
        assert int(reserved) >= int(size), origin
        assert int(huge) > int(size) // 2, f"{origin}: {huge} of {size} bytes"
    assert (made[0], attached[0]) == ("made", "attached")
