"""The figures in pages, and the pictures: each figure comes from the results, and each picture is readable."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.attack.witnesses import WITNESSES
from bench.lib import figures, svg
from bench.lib.figures import MARKED, NotMeasuredError, WrongNameError, figure, filled, pages, value_of
from bench.lib.pictures import LIMITS_MS, PICTURES, draw_attacks, say_attacks
from bench.lib.report import RESULTS, documents_of
from support.colours import is_readable
from support.real.trees import ROOT

ROWS = [
    {"way": "timerd", "rate": 100, "p50_us": 206.4, "held": True},
    {"way": "timerd", "rate": 1_000, "p50_us": 98.0, "held": True},
    {"way": "redis", "rate": 100, "p50_us": 195.0, "held": False, "why": None},
]
DOCUMENTS: dict[str, Any] = {"quiet": {"tables": {"cost": ROWS}}}
DRAWN = sorted((ROOT / "bench/plots").glob("*.svg"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("quiet/cost/timerd/100/p50_us", "206"),
        ("quiet/cost/timerd/rate=1000/p50_us", "98.0"),
        ("quiet/cost/timerd/1,000/p50_us:ms", "0.098"),
        ("quiet/cost/max p50_us", "206"),
        ("quiet/cost/min p50_us:ms", "0.098"),
        ("quiet/cost/held=yes/count", "2"),
    ],
)
def test_a_name_leads_to_its_figure(name: str, text: str) -> None:
    assert figure(DOCUMENTS, name) == text


@pytest.mark.parametrize(
    "name",
    [
        "quiet/cost/timerd/p50_us",
        "quiet/p50_us",
        "quiet/cost/redis/p50_us:s",
        "quiet/cost/sum p50_us",
        "derived/beauty",
    ],
)
def test_a_name_that_no_results_can_satisfy_is_refused(name: str) -> None:
    with pytest.raises(WrongNameError, match=re.escape(repr(name))):
        value_of(DOCUMENTS, name)


@pytest.mark.parametrize("name", ["idle/idle/pending", "quiet/cost/celery/p50_us", "quiet/cost/redis/100/why"])
def test_a_figure_that_was_not_measured_leaves_the_page_as_it_is(name: str) -> None:
    with pytest.raises(NotMeasuredError):
        value_of(DOCUMENTS, name)
    page = f"It takes <!--={name}-->7<!--/--> us.\n"
    assert filled(page, DOCUMENTS, "page.md") == page


def test_a_page_gets_its_figures_and_keeps_its_text() -> None:
    page = "| a | <!--=quiet/cost/redis/p50_us-->?<!--/--> us | <!--=quiet/cost/timerd/100/p50_us-->1<!--/--> |\n"
    done = filled(page, DOCUMENTS, "page.md")
    assert done == page.replace("?", "195").replace(">1<", ">206<") and filled(done, DOCUMENTS, "page.md") == done


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("<!--=quiet/cost/redis/p50_us-->195<!--/--> us", "a line begins with a figure"),
        ("* <!--=quiet/cost/redis/p50_us-->195<!--/--> us", "a line begins with a figure"),
        ("takes <!--=quiet/cost/redis/p50_us-->195 us", "lacks its begin or its end"),
        ("takes 195<!--/--> us", "lacks its begin or its end"),
        ("takes <!--=quiet/cost/timerd/p50_us-->1<!--/-->", "means 2 rows"),
    ],
)
def test_a_marker_that_would_not_work_is_refused(page: str, says: str) -> None:
    with pytest.raises(WrongNameError, match=says):
        filled(page, DOCUMENTS, "page.md")


def test_each_figure_of_the_committed_pages_was_measured() -> None:
    documents = documents_of(RESULTS)
    names = {name for page in pages() for name, _ in MARKED.findall(page.read_text())}
    assert len(names) > 80
    for name in sorted(names):
        figure(documents, name)


def test_the_transports_cross_where_zeromq_costs_less_for_the_first_time() -> None:
    rows = [
        {"transport": transport, "api": "per-op", "keys": 1, "rate": rate, "cpu_us": cpu_us}
        for rate, zeromq, unix in ((100, 9.0, 5.0), (1_000, 4.0, 3.0), (10_000, 1.0, 2.0))
        for transport, cpu_us in (("zeromq", zeromq), ("unix", unix))
    ]
    documents: dict[str, Any] = {"cost": {"tables": {"runs": rows[:2], "predictions": rows[2:]}}}
    assert figure(documents, "derived/last rate of unix") == "1,000"
    assert figure(documents, "derived/first rate of zeromq") == "10,000"
    with pytest.raises(NotMeasuredError):
        value_of({}, "derived/last rate of unix")


# pictures ------------------------------------------------------------------------------------------------------------


def test_there_are_six_pictures_and_all_can_be_drawn_from_the_committed_results() -> None:
    documents = documents_of(RESULTS)
    assert len(PICTURES) == 6
    for picture in PICTURES:
        assert picture.draw(documents).text() == picture.draw(documents).text()
        assert picture.says(documents)
        with pytest.raises(NotMeasuredError):
            picture.says({})


def test_the_limits_in_the_picture_are_those_of_the_gate() -> None:
    assert {name: kind.p99_ms_max for name, kind in WITNESSES.items()} == {name: LIMITS_MS[name] for name in WITNESSES}


def test_attacks_are_drawn_for_each_witness_that_the_gate_had() -> None:
    row = {"holds": True, "turn_cpu_max_ms": 3.0, "grown_mb": 1.0}
    three = {f"{when}{name}_p99_ms": 2.0 for name in WITNESSES for when in ("", "peace_")}
    one = {"p99_ms": 4.0, "peace_p99_ms": 1.0}
    for figures_of, says in ((three, "a call 2.00 ms"), (one, "a round trip 4.00 ms (without one 1.00)")):
        rows = [row | figures_of | {"attack": name} for name in ("ids", "fan")]
        documents: dict[str, Any] = {"gate": {"tables": {"gate": rows}}}
        drawn = draw_attacks(documents).text()
        assert drawn.count("attacks in order; last: ids") == len(figures_of) // 2
        assert "2 attacks" in say_attacks(documents) and says in say_attacks(documents)


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_a_picture_is_readable_on_light_and_dark_pages_and_nothing_leaves_it(path: Any) -> None:
    text = path.read_text()
    colours = set(re.findall(r'"(#\w+)"', text))
    assert colours <= {svg.GREY, *svg.PALETTE}
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for node in root.iter("{http://www.w3.org/2000/svg}text"):
        x, y, words = float(node.attrib["x"]), float(node.attrib["y"]), node.text or ""
        wide = svg.width_of(words, float(node.attrib.get("font-size", svg.SIZE)))
        begin = {"start": x, "middle": x - wide / 2, "end": x - wide}[node.attrib.get("text-anchor", "start")]
        assert begin >= -4 and begin + wide <= width + 8 and 0 < y < height, words


def test_each_colour_has_enough_contrast_on_light_and_dark_pages() -> None:
    assert all(map(is_readable, (svg.GREY, *svg.PALETTE)))


def test_an_axis_has_ticks_within_its_range() -> None:
    for axis, values in (
        (svg.Axis("x", log=True), (0.2, 7.0)),
        (svg.Axis("x", log=True), (10.0, 2e6)),
        (svg.Axis("x"), (0.0, 1.2)),
        (svg.Axis("x"), (5.0,)),
        (svg.Axis("x", log=True), ()),
    ):
        scale = svg.Scale(axis, values)
        assert 2 <= len(scale.ticks()) <= 12
        assert all(0 <= scale.at(each) <= 1 for each in (*scale.ticks(), *values))
    assert [svg.amount(value) for value in (0.5, 20, 5_000, 1.5e6)] == ["0.5", "20", "5k", "1.5M"]


def test_the_module_explains_the_marker_that_it_reads() -> None:
    assert figures.__doc__ is not None and MARKED.search(figures.__doc__)
