"""Pages are read as prometheus-client reads them; what it cannot read is counted, and costs
nothing else.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from own_time import own_seconds
from tachograph.sources.exposition import PageSamples, labels_of, parse_page

Read = tuple[str, dict[str, str], float, float | None]


def ours(page: str) -> list[Read]:
    return [
        (name, dict(labels_of(block)), value, stamp)
        for name, block, value, stamp in parse_page(page.encode())
    ]


def reference(page: str) -> list[Read]:
    """What prometheus-client reads, line by line: a line that it refuses costs that line."""
    read: list[Read] = []
    for line in page.split("\n"):
        try:
            read += [
                (sample.name, dict(sample.labels), float(sample.value), stamp(sample.timestamp))
                for family in text_string_to_metric_families(line)
                for sample in family.samples
            ]
        except (ValueError, IndexError, OverflowError):
            continue
    return read


def stamp(written: object) -> float | None:
    return None if written is None else float(str(written))


def same(left: list[Read], right: list[Read]) -> bool:
    return len(left) == len(right) and all(
        (a[:2], a[3]) == (b[:2], b[3]) and (a[2] == b[2] or (math.isnan(a[2]) and math.isnan(b[2])))
        for a, b in zip(left, right, strict=True)
    )


names = st.sampled_from(
    ["a", "DCGM_FI_DEV_GPU_UTIL", "_x", ":b:c9", "node_load1", "NaN", "a_total"]
)
label_names = st.sampled_from(["gpu", "Hostname", "x", "y9", "modelName"])
label_values = st.text(alphabet='}{"\\,\n =#\t_né名5', max_size=8)
numbers = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.sampled_from(["NaN", "+Inf", "-Inf", "Inf", "1e9", "0", "68.347000", "-0"]),
)
stamps = st.one_of(st.just(""), st.integers(0, 4_000_000_000_000).map(" {}".format))


def quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def good_lines(draw: st.DrawFn) -> str:
    labels = draw(st.dictionaries(label_names, label_values, max_size=5))
    block = ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items())
    either: bool = draw(st.booleans())
    if labels and either:
        block += ","
    braces = f"{{{block}}}" if labels or either else ""
    space = draw(st.sampled_from([" ", " ", " ", "  ", "\t", ""])) if braces else " "
    return f"{draw(names)}{braces}{space}{draw(numbers)}{draw(stamps)}"


comments = st.sampled_from(["", "# HELP a help {} 5", "# TYPE a gauge", "#", "# any thing", "  "])
pages = st.lists(st.one_of(good_lines(), comments), max_size=10).map(
    lambda lines: "".join(f"{n}\n" for n in lines)
)


@given(pages)
def test_a_page_is_read_as_the_reference_reads_it(page: str) -> None:
    assert same(ours(page), reference(page))
    assert parse_page(page.encode()).rejects == ()


fragments = st.sampled_from(
    [
        "a",
        "{",
        "}",
        "} ",
        '"',
        "\\",
        ",",
        "=",
        "x",
        " ",
        "\t",
        "5",
        "NaN",
        '{x="1"} 5',
        '{x="1"',
        '="',
        "#",
        " # ",
        "_",
        "é",
    ]
)
broken_lines = st.lists(fragments, max_size=12).map("".join)


@given(st.lists(st.one_of(good_lines(), broken_lines), max_size=8))
def test_broken_lines_cost_themselves_only(lines: list[str]) -> None:
    page = "".join(f"{line}\n" for line in lines)
    found = parse_page(page.encode())
    assert same(ours(page), reference(page))
    meant = sum(1 for line in page.split("\n") if line.strip() and not line.strip().startswith("#"))
    assert len(found.names) + sum(reject.count for reject in found.rejects) == meant


@given(pages, st.sets(names, max_size=3), st.integers(0, 10**6))
def test_only_the_metrics_wanted_are_read(page: str, wanted: set[str], pick: int) -> None:
    everything = list(parse_page(page.encode()))
    wanted |= {everything[pick % len(everything)][0]} if everything else set()
    kept = [repr(sample) for sample in everything if sample[0] in wanted]
    assert [repr(sample) for sample in parse_page(page.encode(), wanted=wanted)] == kept


@given(good_lines(), good_lines())
def test_a_page_that_was_cut_off_loses_its_last_line(first: str, second: str) -> None:
    found = parse_page(f"{first}\n{second}".encode())
    assert repr(list(found)) == repr(list(parse_page(f"{first}\n".encode())))
    assert [(reject.reason, reject.count) for reject in found.rejects] == [("cut_off_line", 1)]


def reasons(found: PageSamples) -> dict[str, int]:
    return {reject.reason: reject.count for reject in found.rejects}


def test_bytes_that_are_no_text_cost_their_line() -> None:
    found = parse_page(b'a{x="\xff"} 1\nb 2\n\xfe')
    assert (found.names, reasons(found)) == (["b"], {"not_text": 2})


@pytest.mark.parametrize(
    "line",
    [
        'a{x="1} 5',
        'a{x="1"}',
        "a",
        'a{x="1",x="2"} 5',
        "a 1_000",
        "a{x=1} 5",
        "a five",
        "a{} 5 soon",
    ],
)
def test_lines_that_are_no_samples_are_counted(line: str) -> None:
    found = parse_page(f"{line}\nb 2\n".encode())
    assert (found.names, reasons(found)) == (["b"], {"unreadable_line": 1})
    assert found.rejects[0].example == line


def test_what_is_no_page_is_given_up_soon() -> None:
    lines = ['{="' * 30] * 200_000 + ['{"\\' * 10_000_000]
    page = "".join(f"{line}\n" for line in lines).encode()
    assert own_seconds(lambda: parse_page(page), enough=5) < 5
    found = parse_page(page)
    assert (found.names, reasons(found)) == ([], {"unreadable_line": 200_001})


def test_times_of_a_page_are_milliseconds_and_of_openmetrics_seconds() -> None:
    assert parse_page(b"a 1 1700000000500\n").stamps == [1700000000.5]
    assert parse_page(b"a 1 1700000000.5\nb 1 1700000001\n# EOF\n").stamps == [
        1700000000.5,
        1700000001.0,
    ]
    assert parse_page(b"a 1 1700000000\n# EOF").rejects == ()


def test_the_recorded_page_is_read_as_the_reference_reads_it(recorded: Path) -> None:
    page = (recorded / "prometheus_h100" / "dcgm_exporter_metrics_excerpt.prom").read_text()
    assert same(ours(page), reference(page))
    assert len(ours(page)) == 30
    assert parse_page(page.encode()).rejects == ()
