"""docs/grafana: the dashboard and the alerts name metrics that exist, and Prometheus says when each alert fires."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.real.shell import Run
from support.real.trees import ROOT
from support.rig.harness import Rig

ALERTS, DASHBOARD = ROOT / "docs/grafana/alerts.yml", ROOT / "docs/grafana/timerd.json"
PAGE = ROOT / "docs/howto/monitoring.md"
NAME = re.compile(r"\btimerd_[a-z_]+")
# The series of each test of Prometheus: a value each minute for two hours. `a+bxn` begins with a and adds b n times.
FIRING: dict[str, dict[str, str]] = {
    "TimerdDown": {'timerd_up{instance="a"}': "0x120"},
    "TimerdRestarted": {'timerd_starts_total{instance="a"}': "1x110 2x10"},
    "TimerdLimitNearlyFull": {
        'timerd_capacity_used{instance="a", of="ops"}': "95x120",
        'timerd_capacity_limit{instance="a", of="ops"}': "100x120",
    },
    "TimerdLimitFullSoon": {
        'timerd_capacity_used{instance="a", of="ops"}': "0+6x120",
        'timerd_capacity_limit{instance="a", of="ops"}': "850x120",
    },
    "TimerdExpiriesLate": {
        'timerd_expiry_lateness_seconds_bucket{instance="a", purgatory="default", le="0.01"}': "0+1x120",
        'timerd_expiry_lateness_seconds_bucket{instance="a", purgatory="default", le="1"}': "0+9x120",
        'timerd_expiry_lateness_seconds_bucket{instance="a", purgatory="default", le="+Inf"}': "0+9x120",
    },
    "TimerdDeadLetters": {'timerd_dead_letters_total{instance="a"}': "0x110 4x10"},
    "TimerdJournalGap": {'timerd_journal_rows_dropped_total{instance="a"}': "0x110 9x10"},
    "TimerdClientsDied": {'timerd_clients_died_total{instance="a"}': "0x110 40x10"},
}
QUIET: dict[str, str] = {
    'timerd_up{instance="a"}': "1x120",
    'timerd_starts_total{instance="a"}': "3x120",
    'timerd_capacity_used{instance="a", of="ops"}': "40x120",
    'timerd_capacity_used{instance="a", of="ring_events"}': "100x120",
    'timerd_capacity_limit{instance="a", of="ops"}': "100x120",
    'timerd_capacity_limit{instance="a", of="ring_events"}': "100x120",
    'timerd_expiry_lateness_seconds_bucket{instance="a", purgatory="default", le="0.01"}': "0+9x120",
    'timerd_expiry_lateness_seconds_bucket{instance="a", purgatory="default", le="+Inf"}': "0+9x120",
    'timerd_dead_letters_total{instance="a"}': "7x120",
    'timerd_journal_rows_dropped_total{instance="a"}': "7x120",
    'timerd_journal_thread_dead{instance="a"}': "0x120",
    'timerd_clients_died_total{instance="a"}': "0+1x3 4x116",
}


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", ALERTS.read_text())


def test_the_dashboard_and_the_alerts_name_metrics_that_exist(dead: Rig, run: Run) -> None:
    there = {line.split()[2] for line in run("stats", "--prometheus")[1].splitlines() if line.startswith("# TYPE")}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += re.findall(r"expr:(.*?)\n +(?:for|labels):", ALERTS.read_text(), re.DOTALL)
    assert len(expressions) > 20
    for expression in expressions:
        named = {name.removesuffix("_bucket") for name in NAME.findall(expression)}
        assert named and named <= there, f"{expression}: {named - there}"
    places = [panel["gridPos"] for panel in panels]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)), "two panels lie on each other"


def test_the_page_says_what_to_do_at_each_alert() -> None:
    assert re.findall(r"^\| `(Timerd\w+)` \|", PAGE.read_text(), re.MULTILINE) == alerts() == list(FIRING)


def of_prometheus(series: dict[str, str], fires: list[str]) -> dict[str, Any]:
    """A test of Prometheus' own kind: which alerts fire after two hours."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count by (alertname) (ALERTS{{alertstate="firing", alertname="{name}"}})',
                "eval_time": "119m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name in fires else [],
            }
            for name in alerts()
        ],
    }


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed: apt-get install prometheus")
def test_each_alert_fires_in_prometheus_when_it_has_to_and_not_else(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(ALERTS.read_text())
    tests = [of_prometheus(series, [name]) for name, series in FIRING.items()] + [of_prometheus(QUIET, [])]
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": tests}))
    checked = subprocess.run(["promtool", "check", "rules", "alerts.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = subprocess.run(["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
