"""docs/explanation/neighbours.md names every quota, and the bounds of connections as the code has them."""

from __future__ import annotations

import re

from support.real.trees import ROOT
from timerd.conductor.transport import CONNECTIONS_BESIDE
from timerd.config.config import FRAME_MEMORY, KNOBS, Config, dashed
from timerd.config.knobs import Formula
from timerd.host.budget import Budget
from timerd.host.descriptors import CONNECTIONS_PER_CLIENT

PAGE = (ROOT / "docs/explanation/neighbours.md").read_text()


def test_the_table_of_quotas_has_a_row_for_each_knob() -> None:
    rows = set(re.findall(r"^\| `--(quota-[a-z]+)` \|", PAGE, re.MULTILINE))
    assert rows == {dashed(name) for name in KNOBS if name.startswith("quota_")}


def test_the_rows_without_a_knob_match_the_code() -> None:
    quota = KNOBS["quota_clients"].formula
    assert isinstance(quota, Formula)
    most = CONNECTIONS_PER_CLIENT * quota.of(Config()) + CONNECTIONS_BESIDE
    assert f"| none: twice `--quota-clients`, plus {CONNECTIONS_BESIDE} |" in PAGE
    assert f"the default `--clients` of {Config().clients}: {most}." in PAGE
    budget = Budget(FRAME_MEMORY)
    assert f"| `--frame-memory` | {budget.most >> 20} MiB; {budget.process_max >> 20} MiB for a process |" in PAGE
