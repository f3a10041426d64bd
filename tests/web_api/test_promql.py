"""The part of PromQL that is answered: what is read, and how the rest is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tachograph.catalog.errors import UsageError
from tachograph.export.minute_series import MINUTE_METRICS
from tachograph.export.openmetrics import OF_JOBS, SUMS
from tachograph.export.promql import (
    Aggregation,
    Arithmetic,
    LabelMatcher,
    OverTime,
    SeriesSelector,
    parse_promql,
    parse_selector,
)

M = SeriesSelector((LabelMatcher("__name__", "=", "m"),))


@pytest.mark.parametrize(
    ("written", "meaning"),
    [
        ("1.5e1", 15.0),
        ("m", M),
        ("m{}", M),
        ("(m)", M),
        (" m # all of it\n", M),
        ('{__name__="m"}', M),
        ('m{a="b",c!~"d.*",}', SeriesSelector((*M.matchers, LabelMatcher("a", "=", "b"),
                                               LabelMatcher("c", "!~", "d.*")))),
        ('m{sum="a", by=\'b\', without=`\\d`}',
         SeriesSelector((*M.matchers, LabelMatcher("sum", "=", "a"), LabelMatcher("by", "=", "b"),
                         LabelMatcher("without", "=", "\\d")))),
        (r'm{a="\\.\"\x41\u00e9\n"}', SeriesSelector((*M.matchers, LabelMatcher("a", "=", '\\."Aé\n')))),
        ("sum(m)", Aggregation("sum", M)),
        ("count by (a, b) (m)", Aggregation("count", M, ("a", "b"))),
        ("max(m) without (a)", Aggregation("max", M, ("a",), without=True)),
        ("avg by () (m)", Aggregation("avg", M)),
        ("max_over_time(m[1h30m])", OverTime("max", M, 5_400_000)),
        ("1 + 2 * m", Arithmetic("+", 1.0, Arithmetic("*", 2.0, M))),
        ("-m", Arithmetic("*", -1.0, M)),
        ("sum_total", SeriesSelector((LabelMatcher("__name__", "=", "sum_total"),))),
    ],
)  # fmt: skip
def test_what_is_read(written: str, meaning: object) -> None:
    assert parse_promql(written) == meaning


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "1:1: unexpected end"),
        ("rate(m[5m])", "1:5: unexpected '"),
        ("m[5m]", "1:2: unexpected '"),
        ("m offset 5m", "1:3: unexpected 'offset"),
        ("m > 1", "1:3: unexpected '>"),
        ("topk(3, m)", "1:5: unexpected '"),
        ("sum by (a m)", "1:11: unexpected 'm"),
        ("sum(m", "1:6: unexpected end"),
        ("m{a=b}", "1:5: unexpected 'b"),
        (r'm{a="\."}', "unknown escape sequence"),
        ("m" * 5_000, "5,000 characters"),
        ("(" * 100 + "m" + ")" * 100, "201 words and marks"),
    ],
)
def test_what_is_refused(written: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_promql(written)
    assert message in refused.value.what
    assert refused.value.do


@given(st.text(alphabet=" \n(){}[],=!~\"`'\\+-*/0159.emsumbyavg_over_timeπ", max_size=60))
@example("(" * 148 + "m")
@example("-" * 149 + "m")
@example("\\")
def test_any_text_is_read_or_refused(written: str) -> None:
    with suppress(UsageError):
        parse_promql(written)


def test_a_selector_is_nothing_else() -> None:
    assert parse_selector("m") == M
    with pytest.raises(UsageError, match="no selector"):
        parse_selector("sum(m)")


def test_names_are_those_of_no_exported_metric() -> None:
    assert not set(MINUTE_METRICS) & {*OF_JOBS, *SUMS}
