"""The cost model: the fit finds the terms from which its figures were made, and no term below zero."""

from __future__ import annotations

import random

import pytest

from bench.suites.cost import FITTED, PREDICTED, Spent, Terms, fit


@pytest.fixture
def spent() -> dict[object, Spent]:
    """For each run the frames and wake-ups of an operation, roughly as measured. The CPU time is still 0."""
    dice = random.Random(1)
    return {
        load: Spent(0.0, dice.uniform(3e3, 12e3) / load.rate, dice.uniform(4e3, 17e3) / load.rate)
        for load in (*FITTED, *PREDICTED)
    }


def test_the_fit_finds_the_terms_that_made_the_figures(spent: dict[object, Spent]) -> None:
    made = Terms(wakeup_us=20, frame_us=6, operation_us=0.8, key_us=0.09, call_us=0.9, second_ms=260)
    runs = [(load, spent[load]._replace(cpu_us=made.predict(load, spent[load]))) for load in FITTED]
    found = fit(runs)
    assert found == pytest.approx(made, rel=0.02)
    for load in PREDICTED:
        assert found.predict(load, spent[load]) == pytest.approx(made.predict(load, spent[load]), rel=0.001)


def test_no_term_falls_below_zero(spent: dict[object, Spent]) -> None:
    made = Terms(wakeup_us=20, frame_us=0, operation_us=0.8, key_us=-0.2, call_us=0.9, second_ms=260)
    runs = [(load, spent[load]._replace(cpu_us=made.predict(load, spent[load]))) for load in FITTED]
    found = fit(runs)
    assert found.key_us == 0 and min(found) >= 0
