"""`python -m timerd_kafka fault`: set faults in a cluster that runs, see them, and clear them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timerd_kafka.supervisor.door import ask

ANSWER_S = 10.0
NAME = "fault"  # if this is the first argument, this program runs instead of a cluster
DESCRIPTION = """\
Set faults in a cluster that runs: errors, late answers and cut answers.

  python -m timerd_kafka fault --data kafka-data \\
    fail Produce NOT_LEADER_OR_FOLLOWER --topic orders --after 2
  python -m timerd_kafka fault --data kafka-data delay Fetch 2 --times all
  python -m timerd_kafka fault --data kafka-data cut Produce
  python -m timerd_kafka fault --data kafka-data list
  python -m timerd_kafka fault --data kafka-data clear
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="timerd_kafka fault", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--data", type=Path, required=True, help="directory of the cluster, which its start has printed")
    does = made.add_subparsers(dest="do", required=True, metavar="WHAT")
    selected = argparse.ArgumentParser(add_help=False)
    selected.add_argument("api", metavar="API", help="Kafka's name of the requests, such as Produce")
    fail = does.add_parser("fail", help="answer with an error", parents=[selected])
    fail.add_argument("error", metavar="ERROR", help="Kafka's name of it, such as NOT_LEADER_OR_FOLLOWER")
    delay = does.add_parser("delay", help="answer later", parents=[selected])
    delay.add_argument("seconds", type=float, metavar="SECONDS")
    cut = does.add_parser("cut", help="close the connection after half of an answer", parents=[selected])
    for one in (fail, delay, cut):
        one.add_argument("--topic")
        one.add_argument("--partition", type=int)
        one.add_argument("--group")
        one.add_argument("--client-id")
        one.add_argument("--broker", type=int)
        one.add_argument("--after", type=int, default=0, help="requests to skip first (default: 0)")
        one.add_argument("--times", type=times, default=1, help="requests to meet, or 'all' (default: 1)")
    does.add_parser("list", help="print the faults, and how many requests met each")
    does.add_parser("clear", help="remove all faults")
    return made


def times(text: str) -> int | None:
    """The number of requests of --times; None for all."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 on, or 'all'")
    return int(text)


def command_of(given: argparse.Namespace) -> dict[str, Any]:
    """The command to the cluster."""
    if given.do in ("list", "clear"):
        return {"do": {"list": "faults", "clear": "clear_faults"}[given.do]}
    names = {name: value for name, value in vars(given).items() if name not in ("data", "do")}
    return {"do": "set_fault", "fault": given.do, **names}


def line_of(counted: dict[str, Any]) -> str:
    """A fault for people: what is not None, and the counts."""
    rule = counted["rule"]
    what = [str(rule[name]) for name in ("fault", "api", "error", "seconds") if rule[name] is not None]
    names = ("topic", "partition", "group", "client_id", "broker", "after")
    what += [f"{name}={rule[name]}" for name in names if rule[name] is not None and (name != "after" or rule[name])]
    times = "all" if rule["times"] is None else rule["times"]
    return f"{rule['number']}: {' '.join(what)} times={times} met={counted['met']} applied={counted['applied']}"


def main(arguments: Sequence[str]) -> int:
    """Do one command. Returns 2 for wrong arguments, or if no cluster runs."""
    given = parser().parse_args(arguments)
    try:
        answer = ask(given.data, command_of(given), ANSWER_S)
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        sys.stderr.write(f"timerd_kafka: no cluster answers in --data {given.data} ({why})\n")
        return 2
    if "error" in answer:
        sys.stderr.write(f"timerd_kafka: {answer['error']}\n")
        return 2
    for counted in answer.get("faults", ()):
        sys.stdout.write(line_of(counted) + "\n")
    return 0
