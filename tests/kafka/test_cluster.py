"""The processes of a cluster: how they start, end and are killed, and what they leave on the disk.

Also: wrong settings and calls, the file of the topics, ids of producers, and quotas.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from support.fakes.descriptors import many_open
from support.kafka.patience import PATIENCE_S, eventually
from support.kafka.ports import free_ports
from support.kafka.rawkafka import FETCH, RawKafka, batch, fetch_fields, seconds
from timerd_kafka import quotas as quotas_module
from timerd_kafka.__main__ import main
from timerd_kafka.broker.producer_ids import ProducerIds
from timerd_kafka.cluster.catalog import Catalog, Wanted
from timerd_kafka.cluster.settings import PARTITIONS_MAX, Settings, SettingsError
from timerd_kafka.quotas import Quotas
from timerd_kafka.supervisor.data import claim
from timerd_kafka.testing import KafkaCluster, KafkaClusterError
from timerd_kafka.wire.codec import Question

JOIN_GROUP, REBALANCE_S = 11, 1.0


def answers(address: str) -> bool:
    try:
        with RawKafka(address) as client:
            return bool(client.metadata("x").brokers)
    except (OSError, EOFError):
        return False


def test_records_and_ids_outlive_killed_brokers_and_the_whole_cluster(tmp_path: Path) -> None:
    with KafkaCluster(data=tmp_path) as cluster:
        topic = cluster.topic("orders", replicas=3)
        with RawKafka(cluster.bootstrap) as raw:
            leader, number = raw.leaders(topic)[0], raw.metadata(topic).topics[0].partitions[0].leader_id
        with RawKafka(leader) as client:
            first = batch([b"a"], producer=7, epoch=0, sequence=0)
            assert client.produce(topic, {0: first})[0].base_offset == 0
            cluster.kill(number)
        eventually(lambda: answers(leader))
        with RawKafka(leader) as client:
            assert client.produce(topic, {0: first})[0].base_offset == 0, (
                "sent again to the next process, and kept once"
            )
            assert client.produce(topic, {0: batch([b"b"])})[0].base_offset == 1
    with (
        KafkaCluster(data=tmp_path) as cluster,
        RawKafka(cluster.bootstrap) as raw,
        RawKafka(raw.leaders("orders")[0]) as client,
    ):
        assert client.fetch("orders", {0: 0}, max_wait=2)[0].high_watermark == 2
        assert client.produce("orders", {0: first})[0].base_offset == 0


@pytest.mark.long
def test_a_killed_timer_daemon_is_started_again_and_a_request_that_waits_goes_on() -> None:
    with KafkaCluster() as cluster, RawKafka(cluster.bootstrap) as raw:
        topic = cluster.topic(replicas=3)
        cluster.stop_follower(topic)
        daemon = cluster.pids()["daemon"]
        with RawKafka(raw.leaders(topic)[0]) as client, ThreadPoolExecutor(1) as pool:
            waits = pool.submit(client.produce, topic, {0: batch([b"a"])}, timeout=PATIENCE_S - 5)
            eventually(lambda: cluster.purgatories()["produce"]["pending"] == 1)
            cluster.kill_daemon()
            eventually(lambda: cluster.pids().get("daemon") not in (None, daemon))
            cluster.start_follower(topic)
            assert waits.result()[0].error_code == ErrorCode.none


@pytest.mark.long
def test_a_directory_has_one_cluster_at_a_time_and_keeps_its_number_of_workers(tmp_path: Path) -> None:
    with KafkaCluster(data=tmp_path), pytest.raises(KafkaClusterError, match="another cluster runs on it"):
        KafkaCluster(data=tmp_path).start()
    with pytest.raises(KafkaClusterError, match="made with 3 workers"):
        KafkaCluster(["--workers", "2", "--replicas", "1"], data=tmp_path).start()


@pytest.mark.long
def test_a_port_has_one_cluster() -> None:
    port = free_ports(2) + 1
    with KafkaCluster(["--workers", "1", "--replicas", "1", "--port", str(port)]):
        with pytest.raises(
            KafkaClusterError, match=rf"port={port} \(of the bootstrap address\): Address already in use"
        ):
            KafkaCluster(["--port", str(port)]).start()
        with pytest.raises(KafkaClusterError, match=rf"port={port} \(of broker 0\): Address already in use"):
            KafkaCluster(["--port", str(port - 1)]).start()


@pytest.mark.long
def test_brokers_keep_their_ports_for_life(tmp_path: Path) -> None:
    """Before, all ports but the bootstrap port changed with a restart: clients that knew a broker never came back."""

    def addresses(cluster: KafkaCluster) -> list[str]:
        with RawKafka(cluster.bootstrap) as raw:
            brokers = raw.metadata("x").brokers
        return [cluster.bootstrap, *(f"{one.host}:{one.port}" for one in sorted(brokers, key=lambda one: one.node_id))]

    with KafkaCluster(data=tmp_path) as cluster:
        first = addresses(cluster)
    with KafkaCluster(data=tmp_path) as cluster:
        assert addresses(cluster) == first
    port = free_ports(4)
    with KafkaCluster(["--port", str(port)], data=tmp_path) as cluster:
        assert addresses(cluster) == [f"127.0.0.1:{number}" for number in range(port, port + 4)]


@pytest.mark.long
def test_a_single_broker_has_one_port_for_everything() -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster, RawKafka(cluster.bootstrap) as raw:
        (broker,) = raw.metadata("x").brokers
        assert f"{broker.host}:{broker.port}" == cluster.bootstrap


@pytest.mark.long
def test_clients_get_the_advertised_host_and_brokers_use_their_own() -> None:
    flags = ["--bind", "0.0.0.0", "--advertised-host", "localhost"]
    with KafkaCluster(flags) as cluster:
        host, _, port = cluster.bootstrap.rpartition(":")
        assert host == "localhost"
        topic = cluster.topic(replicas=3)
        with RawKafka(f"127.0.0.2:{port}") as raw:
            assert {one.host for one in raw.metadata(topic).brokers} == {"localhost"}
            with RawKafka(raw.leaders(topic)[0]) as leader:
                assert leader.produce(topic, {0: batch([b"a"])})[0].error_code == ErrorCode.none, "all replicas have it"


def test_calls_that_can_do_nothing_are_refused_with_the_reason(cluster: KafkaCluster) -> None:
    topic = cluster.topic(replicas=2)
    leader = cluster.leader(topic)
    for given in ({"partition": 9}, {"broker": leader}, {"broker": 99}):
        with pytest.raises(KafkaClusterError, match=f"no follower of topic='{topic}'.*{leader}: {topic}-0 .leads"):
            cluster.stop_follower(topic, **given)
    with pytest.raises(KafkaClusterError, match="replicas of the topic, by broker: "):
        cluster.stop_follower("no-such-topic")
    with pytest.raises(KafkaClusterError, match="there is no process '99' now; there are 0, 1, 2, 3, daemon"):
        cluster.kill(99)
    with pytest.raises(KafkaClusterError, match=r"kill: .*22"):
        cluster.kill(0, signal=999)
    with pytest.raises(KafkaClusterError, match="it runs already"):
        cluster.start()
    with pytest.raises(KafkaClusterError, match="there is no partition 5"):
        cluster.leader(topic, 5)


def test_threads_of_a_test_each_get_their_own_answer(cluster: KafkaCluster) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(call) for _ in range(25) for call in (cluster.pids, cluster.state)]
        answers = [one.result() for one in asked]
    assert all("daemon" in answer for answer in answers[::2])
    assert all("partitions" in answer["0"] for answer in answers[1::2])


@pytest.mark.long
def test_errors_say_which_arguments_to_give() -> None:
    with pytest.raises(KafkaClusterError, match="give a list"):
        KafkaCluster("--workers 4")
    with pytest.raises(KafkaClusterError, match="start"):
        KafkaCluster().topic("x")
    with pytest.raises(KafkaClusterError, match="workers=0: 1 to 64"):
        KafkaCluster(["--workers", "0"]).start()


@pytest.mark.long
def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("a year of work")
    with pytest.raises(KafkaClusterError, match=r"it has other files \(thesis.txt\)"):
        KafkaCluster(data=tmp_path).start()


def test_a_directory_that_was_damaged_is_refused_and_kept_as_it_is(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", workers=2)
    os.close(claim(settings))
    files = {path.name: path for path in settings.data.iterdir()}
    for name, damage, says in (
        ("topics.json", None, "all records would be removed"),
        ("topics.json", "{", r"topics\.json is damaged"),
        ("cluster.json", "{", r"cluster\.json is damaged"),
        ("cluster.json", "[1]", r"cluster\.json is damaged"),
        ("cluster.json", '{"workers": 3, "format": 1}', "made with 3 workers"),
    ):
        before = files[name].read_text()
        files[name].unlink()
        if damage is not None:
            files[name].write_text(damage)
        with pytest.raises(SettingsError, match=says):
            claim(settings)
        assert damage is None or files[name].read_text() == damage
        files[name].write_text(before)
    os.close(claim(settings))


def test_a_directory_that_cannot_be_written_is_named() -> None:
    with pytest.raises(SettingsError, match=r"data=/proc/nothing: .*; give a directory that may be written"):
        claim(Settings(data=Path("/proc/nothing")))


@pytest.mark.long
@pytest.mark.parametrize("name", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_cluster_ends_quietly_and_removes_its_directory(name: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "timerd_kafka", "--port", "0", "--workers", "2", "--capacity", "4096"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert "2 brokers at" in process.stdout.readline()
    with contextlib.suppress(ProcessLookupError):
        while process.poll() is None:  # send the signal again and again, as an impatient user does
            os.killpg(process.pid, name)
            time.sleep(0.001)
    assert process.communicate(timeout=PATIENCE_S)[1] == "" and process.returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_cluster_that_ends_right_after_its_daemon_leaves_no_arena() -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster:
        shared = [path for path in Path("/dev/shm").iterdir() if f"-{cluster.instance}-" in path.name]
        daemon = cluster.pids()["daemon"]
        cluster.kill_daemon()
        eventually(lambda: cluster.pids().get("daemon") not in (None, daemon))
        # The second daemon has just been started. So the supervisor waits half a second before it starts another one,
        # and the cluster ends meanwhile, without a daemon.
        cluster.kill_daemon()
    assert shared and not [path for path in shared if path.exists()]


@pytest.mark.long
def test_a_cluster_ends_with_its_test_and_leaves_no_process() -> None:
    cluster = KafkaCluster().start()
    pids = cluster.pids().values()
    assert cluster._process is not None
    cluster._process.kill()  # so that the supervisor cannot end its processes
    eventually(lambda: not any(runs(pid) for pid in list(pids)[:3]))
    cluster.close()
    assert not any(runs(pid) for pid in pids), "a broker or the timer daemon is left"
    assert not [path for path in Path("/dev/shm").iterdir() if f"-{cluster.instance}-" in path.name]
    with KafkaCluster() as cluster:
        pids = cluster.pids().values()
    assert not any(runs(pid) for pid in pids)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"


@pytest.mark.long
def test_a_process_with_many_connections_has_a_cluster_too() -> None:
    with many_open(), KafkaCluster(["--workers", "1"]) as cluster:
        assert cluster.topic(partitions=1) in cluster.state()["0"]["partitions"].popitem()[0]


def test_a_cluster_prints_where_it_listens_when_it_is_ready(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "timerd_kafka",
            "--port",
            "0",
            "--workers",
            "2",
            "--data",
            tmp_path,
            "--capacity",
            "4096",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said.startswith("2 brokers at 127.0.0.1:") and str(tmp_path) in said
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    process.stdout.close()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["--workers", "0"], "workers=0: 1 to 64"),
        (["--workers", "2", "--replicas", "3"], "replicas=3 on 2 workers: start more, or ask for fewer"),
        (["--partitions", "0"], "partitions=0: 1 to 4000"),
        (["--port", "1", "--bind", "256.1.1.1"], "bind=256.1.1.1"),
        (["--bind", "0.0.0.0"], "bind=0.0.0.0 advertised_host='': clients get the advertised host"),
        (["--bind", "0.0.0.0", "--advertised-host", "::"], "clients get the advertised host"),
        (["--port", "65533"], "port=65533: the brokers have the 4 ports after it: 65535 at most"),
        (["--port", "70000"], "port=70000: 1 to 65535, or 0 for any"),
        (["--capacity", "0"], "'0': 16 to 16777216"),
        (["--initial-rebalance-delay", "nan"], "initial_rebalance_delay=nan: 0 to 3600 s"),
        (["--instance", "nothere"], "nothere"),
        (["--data", "/proc/x"], "data=/proc/x: "),
        (["--produce-quota", "0"], "produce_quota=0"),
        (["--fetch-quota", "1e400"], "fetch_quota=inf: above 0 bytes a second"),
        (["--advertised-host", "localhost:9092"], "leave out the port, which is --port"),
        (["--produce-quota", "fast"], "'fast': bytes a second, such as 1000000, 1MB or 512kB"),
    ],
)
def test_wrong_arguments_are_named_with_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str], error: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["timerd_kafka", "--data", str(tmp_path / "data"), "--port", "0", *given])
    try:
        status: object = main()
    except SystemExit as ended:  # of argparse
        status = ended.code
    assert status == 2 and error in capsys.readouterr().err


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"workers": 65}, "workers=65: 1 to 64; leave it out for 4"),
        ({"replicas": 0}, "replicas=0: 1 at least, 4 (the workers) at most; leave it out for 3"),
        ({"partitions": 4_001}, "partitions=4001: 1 to 4000; leave it out for 1"),
        ({"port": -1}, "port=-1: 1 to 65535, or 0 for any"),
        ({"request_max": 0}, "request_max=0: 1024 to 104857600 bytes; leave it out for 104857600"),
        ({"request_max": 1 << 31}, "request_max=2147483648: 1024 to 104857600 bytes"),
        ({"bind": ""}, "bind='': give an address of this machine"),
        ({"advertised_host": "localhost:9092"}, "advertised_host='localhost:9092': the name or the address of one"),
        ({"advertised_host": "a b"}, "leave out the port, which is --port"),
        ({"advertised_host": "a" * 254}, "of 253 characters at most"),
        *(
            ({name: quota}, f"{name}={quota}: above 0 bytes a second, 1e+15 at most; leave it out for no quota")
            for name in ("produce_quota", "fetch_quota")
            for quota in (-1.0, 0.0, NAN, INF)
        ),
        ({"quota_window": 0.0}, "quota_window=0: above 0 s, 3600 s at most; leave it out for 1 s"),
        ({"quota_window": INF}, "quota_window=inf: above 0 s"),
        ({"initial_rebalance_delay": -1.0}, "initial_rebalance_delay=-1: 0 to 3600 s; leave it out for 0 s"),
        ({"session_timeout_min": 0.0}, "session_timeout_min=0: above 0 s, 86400 s at most; leave it out for 0.1 s"),
        ({"session_timeout_min": NAN}, "session_timeout_min=nan: above 0 s"),
        (
            {"session_timeout_min": 6.0, "session_timeout_max": 5.0},
            "session_timeout_max=5: 6 s (session_timeout_min) to 86400 s; leave it out for 1800 s",
        ),
        ({"session_timeout_max": INF}, "session_timeout_max=inf: 0.1 s (session_timeout_min) to 86400 s"),
    ],
)
def test_a_setting_out_of_its_bounds_is_named_with_its_value_and_the_remedy(given: dict[str, Any], error: str) -> None:
    Settings(data=Path()).check()
    with pytest.raises(SettingsError, match=re.escape(error)):
        Settings(data=Path(), **given).check()


@pytest.mark.parametrize("host", ["localhost", "kafka-1.example", "10.0.0.7", "::1", "fe80::1%eth0", "2001:db8::7"])
def test_clients_may_get_the_name_or_the_address_of_any_host(host: str) -> None:
    Settings(data=Path(), bind="::", advertised_host=host).check()


@pytest.mark.long
def test_the_only_broker_waits_for_no_other(tmp_path: Path) -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster, RawKafka(cluster.bootstrap) as raw:
        assert not raw.metadata(cluster.topic()).topics[0].error_code, "if it waited for another, topic() would fail"


# topics and quotas ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_brokers_that_change_the_topics_at_once_lose_no_change(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from timerd_kafka.cluster.catalog import Busy, Catalog\n"
        "catalog, made = Catalog(Path(sys.argv[1])), []\n"
        "while len(made) < 40:\n"
        "    try:\n"
        "        made.append(not catalog.create({f't{len(made)}': (1, 1, {})}))\n"
        "    except Busy:\n"
        "        pass\n"
        "print(sum(made))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    made = [int(process.communicate()[0]) for process in started]
    catalog = Catalog(tmp_path)
    assert catalog.refresh() and (catalog.version, len(catalog.by_name), sum(made)) == (40, 40, 40)
    assert len(catalog.by_id) == 40


def test_a_topic_that_is_created_again_has_another_id(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    assert catalog.create({"orders": (3, 1, {"retention.ms": "5"})}) == {}
    assert catalog.create({"orders": (1, 1, {}), "other": (1, 1, {})}) == {"orders": ErrorCode.topic_already_exists}
    catalog.refresh()
    first = catalog.by_name["orders"]
    assert (first.partitions, first.configs, set(catalog.by_name)) == (3, {"retention.ms": "5"}, {"orders", "other"})
    catalog.delete(lambda topic: topic.id == first.id)
    catalog.create({"orders": (3, 1, {})})
    assert catalog.refresh() and not catalog.refresh()
    assert catalog.by_name["orders"].id != first.id


def test_all_topics_of_a_request_count_against_the_bound_of_partitions(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    wanted: dict[str, Wanted] = {f"t{number}": (PARTITIONS_MAX // 3, 1, {}) for number in range(5)}
    assert catalog.create(wanted) == dict.fromkeys(["t3", "t4"], ErrorCode.invalid_partitions)


def test_an_id_of_a_producer_is_not_given_from_a_block_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ProducerIds(tmp_path / "producer_ids", 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                ids.next()
    assert [ids.next(), ids.next()] == [1, 3]
    assert ProducerIds(tmp_path / "producer_ids", 1, 2).next() == 2_001, "another process begins with another block"


def test_a_quota_counts_what_a_client_id_uses_at_all_workers(tmp_path: Path) -> None:
    one, other = (Quotas(tmp_path, 1_000.0, 1.0, worker, 2) for worker in range(2))
    assert one.record("a", 600, now=0.0) == 0.0
    assert other.record("b", 900, now=0.0) == 0.0, "another client id has a quota of its own"
    assert other.record("a", 600, now=0.0) == 0.0
    assert one.record("a", 600, now=0.0) == pytest.approx(0.8), "1,800 bytes are used, and 1,000 may be used at once"
    assert other.record("a", 100, now=1.0) == 0.0
    assert Quotas(tmp_path / "none", None, 1.0, 0, 2).record("a", 10**9, now=0.0) == 0.0
    assert not (tmp_path / "none").exists()


def test_quotas_of_many_client_ids_leave_a_bounded_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas_module, "CLIENTS_MAX", 3)
    one, other = (Quotas(tmp_path, 1_000.0, 1.0, worker, 2) for worker in range(2))
    assert other.record("0", 600, now=0.0) == 0.0
    for number in range(10):
        one.record(str(number), 1, now=0.0)
    assert len(list(tmp_path.iterdir())) == 3
    assert other.record("0", 1_000, now=0.0) == pytest.approx(0.6, abs=0.01), "it still counts its own 600"


def test_a_client_id_that_one_worker_has_forgotten_is_counted_together_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a worker that had gone on with a removed file no longer counted what the client id used elsewhere."""
    monkeypatch.setattr(quotas_module, "CLIENTS_MAX", 2)
    one, other, third = (Quotas(tmp_path, 1_000.0, 1.0, worker, 3) for worker in range(3))
    for quotas in (one, other, third):
        assert quotas.record("a", 100, now=0.0) == 0.0
    for name in ("b", "c"):
        one.record(name, 1, now=0.0)  # so "a" is forgotten here
    assert one.record("a", 200, now=0.0) == 0.0
    assert other.record("a", 700, now=0.0) == pytest.approx(0.1), "its own 100, and then 100, 200 and 700"
    for name in ("b", "c"):
        third.record(name, 1, now=0.0)  # here "a" is forgotten, too, whose present file has been made since
    assert one.record("a", 1, now=1.0) == 0.0
    assert other.record("a", 901, now=1.0) == pytest.approx(0.002)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_throttle_time_is_an_hour_at_most_so_that_an_answer_has_room_for_it(tmp_path: Path) -> None:
    assert Quotas(tmp_path, 1.0, 1.0, 0, 1).record("a", 3 * 10**9, now=0.0) == 3_600.0


@pytest.mark.long
def test_a_throttle_time_begins_with_its_answer_and_mutes_only_the_connection_of_the_answer(tmp_path: Path) -> None:
    with KafkaCluster(["--fetch-quota", "20kB", "--workers", "2", "--replicas", "2"], data=tmp_path) as cluster:
        topic = cluster.topic(replicas=2)
        with RawKafka(cluster.bootstrap) as raw:
            address = raw.leaders(topic)[0]
        with RawKafka(address, "greedy") as greedy, RawKafka(address, "other") as other:
            for number in range(4):  # 40 kB; a follower copies them, which does not count as a client's use
                sent = greedy.produce(topic, {0: batch([b"%d" % number * 10_000])}, acks=-1)[0]
                assert sent.error_code == ErrorCode.none
            throttles = list[float]()

            def is_other_muted() -> bool:
                """Whether another client waits while the greedy one is muted. On a busy machine it may seem so."""
                asked = time.monotonic()  # the throttle time begins when the answer is sent: between `asked` and `came`
                answer = greedy.ask(FETCH, 12, **fetch_fields(topic, {0: 0}, 0.0))
                came = time.monotonic()
                throttles.append(answer.throttle_time.total_seconds())
                assert len(answer.responses[0].partitions[0].records) > 40_000
                other.metadata(topic)
                took = time.monotonic() - came
                greedy.metadata(topic)
                assert time.monotonic() - asked >= throttles[-1] - 0.02
                return took >= throttles[-1]

            assert not all(is_other_muted() for _ in range(10)), "another client is muted, too"
            assert 0.9 <= throttles[0] <= 1.1, "40 kB where 20 kB may be used at once"


@pytest.mark.long
def test_a_muted_connection_goes_on_although_the_timer_daemon_is_stopped(tmp_path: Path) -> None:
    with KafkaCluster(["--produce-quota", "10kB"], data=tmp_path) as cluster:
        topic = cluster.topic(replicas=1)
        with RawKafka(cluster.bootstrap) as raw:
            address = raw.leaders(topic)[0]
        with RawKafka(address) as greedy:
            for _ in range(3):  # each is answered when the throttle time of the request before it is over
                greedy.produce(topic, {0: batch([b"x" * 9_000])}, acks=1)
            cluster.kill_daemon(signal.SIGSTOP)
            try:
                assert greedy.produce(topic, {0: batch([b"a"])}, acks=1)[0].error_code == ErrorCode.none
            finally:
                cluster.kill_daemon(signal.SIGCONT)


@pytest.mark.long
def test_a_join_while_the_timer_daemon_is_stopped_gets_an_error_to_try_again(tmp_path: Path) -> None:
    with (
        KafkaCluster(["--workers", "1", "--replicas", "1"], data=tmp_path) as cluster,
        RawKafka(cluster.bootstrap) as first,
        RawKafka(cluster.bootstrap) as second,
    ):
        there = join(first)
        assert there.error_code == ErrorCode.none and there.leader == there.member_id
        cluster.kill_daemon(signal.SIGSTOP)
        try:
            refused = join(second)  # it waits for the first member, which does not join again
            assert refused.error_code == ErrorCode.coordinator_load_in_progress
        finally:
            cluster.kill_daemon(signal.SIGCONT)
        again = join(second)
        assert again.error_code == ErrorCode.none and again.leader == again.member_id, "the first member is gone"


def join(raw: RawKafka) -> Any:
    """Join a group as a new member. In version 3 of JoinGroup such a member needs no id."""
    module = Question(JOIN_GROUP, 3).module
    return raw.ask(
        JOIN_GROUP,
        3,
        group_id="workers",
        session_timeout=seconds(10.0),
        rebalance_timeout=seconds(REBALANCE_S),
        member_id="",
        protocol_type="consumer",
        protocols=(module.JoinGroupRequestProtocol(name="range", metadata=b"topics"),),
    )
