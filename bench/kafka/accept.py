"""The acceptance of the Kafka broker: what it promises, checked with three unmodified clients and with raw bytes.

    python bench/kafka/accept.py [--short] [--only NAME,...] [--json FILE]

    records    records of kafka-python, aiokafka and confluent-kafka, each as producer and as consumer
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import helpers  # noqa: F401

# isort: split
import check_fetch
import check_produce
import check_records
import world
from common import Parser, Suite, amount, chosen, listed, run_suite

CHECKS: dict[str, Callable[[Suite], None]] = {
    "records": check_records.play,
    "no_wait": check_produce.play_no_wait,
    "stopped": check_produce.play_stopped,
    "fetch": check_fetch.play,
}


def play(suite: Suite) -> None:
    """Run the checks one after the other. One that breaks fails, and the others run."""
    suite.tables["checks"] = []
    try:
        for name in suite.args.only or CHECKS:
            suite.args.current = name
            before, begun = dict(suite.checks), suite.seconds
            suite.say(name)
            try:
                CHECKS[name](suite)
            except Exception as error:
                traceback.print_exc()
                suite.check(f"{name}_ran", False, f"{type(error).__name__}: {error}".splitlines()[0])
            # A claim that several checks make fails in the first one that breaks it.
            mine = {claim: found for claim, found in suite.checks.items() if before.get(claim) is not found}
            broken = [claim for claim, found in mine.items() if not found["held"]]
            suite.add(
                "checks",
                check=name,
                verdict="FAIL" if broken else "PASS",
                seconds=suite.seconds - begun,
                broken=", ".join(broken) or None,
            )
    finally:
        world.end_shared()


def main() -> int:
    parser = Parser("accept", __doc__)
    parser.add_argument("--only", type=listed(chosen(list(CHECKS))), metavar="NAME", help="these checks, with commas")
    parser.size("--records", amount(300, 10_000_000, "records"), "100k", "3k", "records of each producer")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
