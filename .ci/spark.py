"""Makes an environment with Spark in it, that takes everything else from another: python .ci/spark.py .venv-spark .venv

timerd is built once, for both. What Spark needs is read from pyproject.toml, and installed before the other environment
is put on the path: nothing is left out because that one happens to have it.
"""

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRA = "spark-test"


def requirements(extra: str) -> list[str]:
    """What an extra names, and the extras of ours that it names."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = []
    for requirement in extras[extra]:
        ours = re.fullmatch(r"timerd\[(.*)\]", requirement)
        found += requirements(ours[1]) if ours else [requirement]
    return found


def packages_of(environment: Path) -> Path:
    names = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("purelib", "venv", names))


def main() -> None:
    environment, other = (Path(argument).resolve() for argument in sys.argv[1:])
    python = environment / "bin/python"
    if not (environment / "bin/pip").exists():
        venv.create(environment, with_pip=True)
    layer = packages_of(environment) / "timerd-layer.pth"
    layer.unlink(missing_ok=True)
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *requirements(EXTRA)], check=True
    )
    # The second line is for Spark, which looks for data sources in folders: an editable install has none on the path.
    # Spark puts an archive of pyspark's sources before the package: each of its many processes would compile them anew.
    layer.write_text(
        f"import site; site.addsitedir({str(packages_of(other))!r})\n"
        f"{ROOT / 'client'}\n"
        "import sys; sys.path[:] = [path for path in sys.path if not path.endswith(('/pyspark.zip', '-src.zip'))]\n"
    )
    keep = [python, ROOT / ".ci/classes.py", environment / "classes.jsa"]
    kept = subprocess.run(keep, stderr=subprocess.PIPE, text=True, errors="replace")
    if kept.returncode:
        why = kept.stderr.strip().rpartition("\n")[2] or f"it ended with {kept.returncode}"
        sys.stderr.write(f"no archive of Spark's classes, so its tests start later: {why}\n")


main()
