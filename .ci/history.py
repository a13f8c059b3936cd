"""Check that git can follow every moved file to its past: python .ci/history.py [BEFORE [AFTER]]

BEFORE is the last commit before modules moved into rooms. AFTER is a commit in which all have moved. For each source
file that has another path in AFTER, `git log --follow` must reach the history of BEFORE. Files for which it does
not are printed, and the exit status is 1. It is also 1 if no file has moved.
"""

from __future__ import annotations

import subprocess
import sys

SOURCES = (".py", ".pyi", ".pyx", ".pxd", ".h", ".md")


def git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.splitlines()


def moved(before: str, after: str) -> list[str]:
    """Paths of AFTER whose files had another path in BEFORE. Files that were made after BEFORE are left out."""
    origins: dict[str, str] = {}
    for line in git("log", "--reverse", "--diff-filter=R", "-M", "--name-status", "--format=", f"{before}..{after}"):
        _, old, new = line.split("\t")
        origins[new] = origins.get(old, old)
    was, there = (set(git("ls-tree", "-r", "--name-only", commit)) for commit in (before, after))
    return sorted(
        path for path, origin in origins.items() if path.endswith(SOURCES) and path in there and origin in was
    )


def main(before: str, after: str) -> int:
    past = set(git("rev-list", before))
    paths = moved(before, after)
    lost = [path for path in paths if not past.intersection(git("log", "--follow", "--format=%H", after, "--", path))]
    for path in lost:
        sys.stdout.write(f"{path}: git log --follow does not reach {before}\n")
    sys.stdout.write(f"{len(paths)} files have moved since {before}; {len(lost)} of them have lost their past\n")
    return 1 if lost or not paths else 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] + ["5b23236", "HEAD"][len(sys.argv) - 1 :])))
