"""How the open files are divided among clients, watches and connections."""

from __future__ import annotations

import subprocess
import sys

import pytest

from timerd.config.config import Config
from timerd.host.descriptors import CONNECTIONS_PER_CLIENT, DESCRIPTORS_BESIDE, NEWCOMERS_MAX, divide


@pytest.mark.files(4_096)
def test_the_limit_of_descriptors_is_raised_as_far_as_allowed() -> None:
    script = """
import resource, sys
from timerd.host.descriptors import divide
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(*divide(500), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""

    def room(soft: int, hard: int) -> list[int]:
        out = subprocess.run([sys.executable, "-c", script, str(soft), str(hard)], check=True, capture_output=True)
        return [int(word) for word in out.stdout.split()]

    beside = CONNECTIONS_PER_CLIENT * 500 + DESCRIPTORS_BESIDE
    wanted = 500 + NEWCOMERS_MAX
    assert room(256, 4_096) == [wanted, 4_096 - wanted - DESCRIPTORS_BESIDE, 4_096, 4_096]
    assert room(256, beside + 100) == [100, CONNECTIONS_PER_CLIENT * 500, beside + 100, beside + 100]
    assert divide(1).watches == 1 + NEWCOMERS_MAX


def test_fewer_files_than_the_clients_need_are_an_error_that_names_both_numbers() -> None:
    script = """
import resource
from timerd.host.descriptors import divide
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
divide(500)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "512 files may be open, and 500 clients need 1064" in ended.stderr


def test_a_daemon_without_flags_starts_where_1024_files_are_the_hard_limit_and_has_room_for_newcomers() -> None:
    """1,024 is the usual limit of an ordinary user, and of many containers."""
    script = f"""
import resource
from timerd.host.descriptors import divide
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
print(*divide({Config().clients}))
"""
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    watches, connections = map(int, out.stdout.split())
    assert watches == Config().clients + NEWCOMERS_MAX and connections > CONNECTIONS_PER_CLIENT * Config().clients
