"""The acceptance of the Kafka broker: checks its promises with unmodified clients and with raw bytes.

    python tests/kafka/acceptance/accept.py [--short] [--clients NAME,...] [--only NAME,...]... [--json FILE]

The clients are kafka-python, aiokafka and confluent-kafka, and, if `make clients-kafka` has installed them, kcat,
kafkajs and the Java client. Each plays in every check that it can play, in processes of its own. The broker has four
workers.

    records    each client produces, and each consumes: every record once, in order, and the same bytes at all replicas
    no_wait    requests that need no wait register nothing: acks 0 and 1, one replica, all partitions in error
    stopped    a stopped follower: its partition times out in time, and the request's other partitions do not time out
    fetch      fetches wait for max.wait, for records that come at another worker, and for bytes of many partitions
    groups     members that are killed, leave, or rejoin slowly; offsets that outlive a worker
    joins      many members that leave while they join; static members that come back with other topics
    answers    offsets by time, records with the largest time, versions that are too old: in two codecs of each client
    ports      clients go on after a restart of the cluster with its directory and port; one forwarded port is enough
    quota      throttle times, muted connections, and the rates of one connection and of two connections to two workers
    counts     the clients and the cluster count the same records and waits
    full       more waits than the timer daemon holds
    daemon     the timer daemon is stopped, and killed
    damaged    damaged frames, while another client (the bystander) sends requests
    storm      the timer daemon and random workers are killed, again and again

The figures depend on this machine, and on whatever else it does: the JSON document has the machine's load. The exit
status is 1 if a check fails.
"""

from __future__ import annotations

import sys
import traceback
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import bench.lib.helpers  # noqa: F401

# isort: split
import check_answers
import check_counts
import check_damaged
import check_fetch
import check_groups
import check_joins
import check_lost
import check_ports
import check_produce
import check_quota
import check_records
import check_storm
import install
import world
from bench.lib.common import Parser, Refused, Suite, amount, chosen, listed, real, run_suite
from clients.roster import CLIENTS, codecs_of, is_there

REMEDY = "`make clients-kafka` installs them by name"
CHECKS: dict[str, Callable[[Suite], None]] = {
    "records": check_records.play,
    "no_wait": check_produce.play_no_wait,
    "stopped": check_produce.play_stopped,
    "fetch": check_fetch.play,
    "groups": check_groups.play,
    "joins": check_joins.play,
    "answers": check_answers.play,
    "ports": check_ports.play,
    "quota": check_quota.play,
    "counts": check_counts.play,
    "full": check_lost.play_full,
    "daemon": check_lost.play_daemon,
    "damaged": check_damaged.play,
    "storm": check_storm.play,
}


def play(suite: Suite) -> None:
    """Run the lists of --only (lanes) at once, each list in order. A broken check does not end the others."""
    suite.tables["checks"] = []
    choose(suite)
    lanes = suite.args.only or [list(CHECKS)]
    if len(lanes) == 1:  # in this thread, so that Ctrl-C ends it
        play_lane(suite, lanes[0])
        return
    with ThreadPoolExecutor(len(lanes)) as pool:
        for lane in [pool.submit(play_lane, suite, names) for names in lanes]:
            lane.result()


def choose(suite: Suite) -> None:
    """Choose the clients of the run. Raises Refused if one that is asked for is not installed."""
    absent = [name for name in CLIENTS if not is_there(name)]
    if wrong := [name for name in suite.args.clients or () if name in absent]:
        raise Refused(f"--clients {','.join(wrong)}: not installed; {REMEDY}")
    suite.args.clients = suite.args.clients or [name for name in CLIENTS if name not in absent]
    for name in suite.args.clients:
        suite.add("clients", client=name, version=install.version(name), codecs=" ".join(codecs_of(name)))
    if absent:
        suite.say(f"left out, because they are not installed: {', '.join(absent)}; {REMEDY}")


def play_lane(suite: Suite, names: list[str]) -> None:
    """Run the checks of a lane. They share a cluster, unless a check needs flags.

    Several checks may make the same claim. It fails if one of them breaks it.
    """
    own = copy(suite)
    own.args = Namespace(**vars(suite.args))
    try:
        for name in names:
            own.args.current, own.checks, begun = name, {}, suite.seconds
            suite.say(name)
            try:
                CHECKS[name](own)
            except Exception as error:
                traceback.print_exc()
                own.check(f"{name}_ran", False, f"{type(error).__name__}: {error}".splitlines()[0])
            for claim, found in own.checks.items():
                suite.check(claim, **found)
            broken = [claim for claim, found in own.checks.items() if not found["held"]]
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
    parser = Parser("kafka", __doc__)
    parser.add_argument(
        "--only",
        type=listed(chosen(list(CHECKS))),
        action="append",
        metavar="NAME",
        help="names of checks, with commas; if given several times, the lists run at once",
    )
    parser.add_argument(
        "--clients",
        type=listed(chosen(list(CLIENTS))),
        metavar="NAME",
        help=f"names of clients, with commas: {', '.join(CLIENTS)}; without the flag all that are installed",
    )
    parser.size("--records", amount(300, 10_000_000, "records"), "100k", "1k", "records of each producer")
    parser.size("--mutations", amount(100, 1_000_000_000, "frames"), "1M", "5k", "damaged frames")
    parser.size("--seconds", real(1, 86_400, "seconds"), "600", "5", "length of the storm")
    parser.size("--between", real(0.5, 600, "seconds"), "5", "1.2", "seconds between two kills of the storm")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
