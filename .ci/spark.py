"""Make an environment with Spark on top of another environment: python .ci/spark.py .venv-spark .venv [4.2]

All packages that Spark does not need come from the other environment. So timerd is built once. Spark's requirements are
read from pyproject.toml. They are installed before the other environment is on the path: otherwise pip would leave out
the packages that the other environment happens to have. If no version of Spark is given, the newest is installed.
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
    """The requirements of an extra, with the requirements of each extra of timerd that it names."""
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
    environment, other = (Path(argument).resolve() for argument in sys.argv[1:3])
    wanted = requirements(EXTRA) + [f"pyspark=={version}.*" for version in sys.argv[3:]]
    python = environment / "bin/python"
    if not (environment / "bin/pip").exists():
        venv.create(environment, with_pip=True)
    layer = packages_of(environment) / "timerd-layer.pth"
    layer.unlink(missing_ok=True)
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *wanted], check=True)
    # Line 2: Spark looks for data sources in the folders of the path, and an editable install puts no folder there.
    # Line 3: Spark puts an archive of pyspark's sources before the package. Each of its many processes would compile
    # these sources anew.
    layer.write_text(
        f"import site; site.addsitedir({str(packages_of(other))!r})\n"
        f"{ROOT / 'client'}\n"
        "import sys; sys.path[:] = [path for path in sys.path if not path.endswith(('/pyspark.zip', '-src.zip'))]\n"
    )
    archive = [python, ROOT / ".ci/classes.py", environment / "classes.jsa"]
    archived = subprocess.run(archive, stderr=subprocess.PIPE, text=True, errors="replace")
    if archived.returncode:
        why = archived.stderr.strip().rpartition("\n")[2] or f"classes.py ended with status {archived.returncode}"
        sys.stderr.write(f"no archive of Spark's classes, so its tests start later: {why}\n")


main()
