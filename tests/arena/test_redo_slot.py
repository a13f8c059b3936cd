"""Rule 14: a full redo slot ends the daemon, in every build, before a word is stored after the slot."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import timerd.purgatory.memory
import timerd_shm.generated
from timerd_shm.declare.layout import REDO_MAX

PROGRAM = """
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "transaction.h"

static char arena[1 << 16] __attribute__((aligned(4096)));

static void look(int number) {
    const char *behind = arena + REDO_OFFSET + REDO_MAX * sizeof(RedoEntry);
    for (const char *at = behind; at < arena + sizeof arena; at++)
        if (*at != 'x')
            _exit(9);
    signal(number, SIG_DFL);
    raise(number);
}

int main(int argc, char **argv) {
    int words = atoi(argv[1]);
    memset(arena, 'x', sizeof arena);
    ((ArenaHeader *)(void *)arena)->redo_count = 0;
    signal(SIGABRT, look);
    TdTransaction tx = {arena, 0};
    for (int i = 0; i < words; i++)
        td_put(&tx, arena + 32768 + 8 * i, 7);
    if (((ArenaHeader *)(void *)arena)->redo_count)
        return 8;
    td_commit(&tx);
    for (int i = 0; i < words; i++)
        if (arena[32768 + 8 * i] != 7)
            return 7;
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")
@pytest.mark.parametrize("optimization", ["-O0", "-O2"])
def test_a_full_redo_slot_ends_every_build_before_it_stores_anything_behind_it(
    tmp_path: Path, optimization: str
) -> None:
    source, program = tmp_path / "full.c", tmp_path / "full"
    source.write_text(PROGRAM)
    folders = [Path(path) for module in (timerd.purgatory.memory, timerd_shm.generated) for path in module.__path__]
    includes = [f"-I{folder}" for folder in folders]
    subprocess.run(["cc", "-std=gnu11", "-Wall", optimization, *includes, str(source), "-o", str(program)], check=True)
    assert subprocess.run([program, str(REDO_MAX)]).returncode == 0
    full = subprocess.run([program, str(REDO_MAX + 1)], capture_output=True, text=True)
    assert full.returncode == -signal.SIGABRT
    assert (
        full.stderr.startswith("timerd: a transaction needs more words than the redo slot has") and "\n" in full.stderr
    )
