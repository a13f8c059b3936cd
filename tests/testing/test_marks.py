"""The marks of tests: `files` raises the soft limit of open files, or skips."""

from __future__ import annotations

import resource

import pytest

from support.fakes.descriptors import at_least, limited


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_test_that_needs_more_files_gets_them_and_the_next_test_does_not() -> None:
    with limited(512):
        with at_least(700):
            assert soft_limit() == 700
        assert soft_limit() == 512
        with at_least(100):
            assert soft_limit() == 512


def test_where_the_hard_limit_is_lower_a_test_is_skipped_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, 1_024))
    said = r"needs 4,096 open files, and the hard limit is 1,024"
    with pytest.raises(pytest.skip.Exception, match=said), at_least(4_096):
        pytest.fail("the test was not skipped")
