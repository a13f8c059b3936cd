"""A process of its own with a query over the files of a directory, for tests that kill it: python -m ... DIRECTORY."""

from __future__ import annotations

import sys
from pathlib import Path


def main(directory: Path) -> None:
    from spark.purgatory.queries import Query
    from timerd_spark import local_session

    session = local_session(2, spark__sql__shuffle__partitions=2, spark__driver__memory="1g")
    session.sparkContext.setLogLevel("OFF")
    Query(session, directory, by="group").run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
