"""What the rules of Nsight Compute say, as the details page writes it: rows without a metric, columns at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ncu_csv import COPY, LAUNCHES, RULES, Dialect, details, quoted, raw, read

from tachograph.nsight.launches import RULES_MAX, RuleResult, rule_text

FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size")
COLUMNS = (*FIXED, "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
LAUNCH = ("4711", "gemm", "127.0.0.1", "gemm_kernel", "1", "7", "(384, 1, 1)", "(9, 32, 1)", "0", "10.0")
LATENCY = (
    "This workload exhibits low compute throughput and memory bandwidth utilization relative to the peak performance "
    "of this device. Achieved compute throughput and/or memory bandwidth below 60.0% of peak typically indicate "
    "latency issues."
)
IMBALANCE = "One or more SMs have a much lower number of active cycles than the average number of active cycles."


def metric(section: str, name: str, unit: str, value: str, *, number: int = 0, tail: str = ",") -> str:
    """A row of a metric: 15 cells, and a comma where the columns of rules are."""
    return quoted([str(number), *LAUNCH, section, name, unit, value]) + tail


def rule(*cells: str, section: str = "SpeedOfLight", number: int = 0) -> str:
    """A row of a rule, up to 20 cells."""
    return quoted([str(number), *LAUNCH, section, "", "", "", *cells])


def page(*rows: str, rules: Sequence[str] = RULES) -> str:
    return "\n".join(["==PROF== Connected to process 4711 (/opt/gemm)", quoted([*COLUMNS, *rules]), *rows, ""])


DURATION = metric("GPU Speed Of Light Throughput", "Duration", "ns", "406240")


def test_rows_of_rules_between_rows_of_metrics(tmp_path: Path) -> None:
    text = page(
        DURATION,
        rule("SOLBottleneck", "OPT", LATENCY, "", ""),
        metric("Occupancy", "Theoretical Occupancy", "%", "18.75"),
        rule("TheoreticalOccupancy", "OPT", "Low.", "local", "81.25", section="Occupancy"),
        rule("WorkloadImbalance", "WRN", IMBALANCE, "global", "5.818", section="WorkloadDistribution"),
        rule("SOLFPRoofline", "INF", "The ratio is 2:1.", "", "", section="SpeedOfLight_RooflineChart"),
        metric("GPU Speed Of Light Throughput", "Duration", "ns", "1000", number=1),
    )
    found = read(tmp_path, text)
    first, second = found.launches
    assert first.rules == (
        RuleResult("SOLBottleneck", "SpeedOfLight", "OPT", LATENCY),
        RuleResult("TheoreticalOccupancy", "Occupancy", "OPT", "Low.", 81.25, "local"),
        RuleResult("WorkloadImbalance", "WorkloadDistribution", "WRN", IMBALANCE, 5.818, "global"),
        RuleResult("SOLFPRoofline", "SpeedOfLight_RooflineChart", "INF", "The ratio is 2:1."),
    )
    assert second.rules == ()
    assert first.metrics["gpu__time_duration.sum"] == 406240
    assert first.metrics["sm__maximum_warps_per_active_cycle_pct"] == 18.75
    assert (found.rejects, found.problems) == ((), ())


@pytest.mark.parametrize("tails", ["absent", "comma", "empty"])
@pytest.mark.parametrize("locale", ["C", "de", "fr"])
def test_however_rows_of_metrics_end(tmp_path: Path, tails: str, locale: str) -> None:
    found = read(tmp_path, details(LAUNCHES, Dialect(locale=locale, tails=tails)))  # type: ignore[arg-type]
    said = RuleResult(
        "SOLBottleneck", "SpeedOfLight", "OPT", 'Use "fast" math. It is, in short, "faster".', 50, "global"
    )
    assert [launch.rules for launch in found.launches] == [(said,)] * len(LAUNCHES)
    assert len({id(launch.rules[0]) for launch in found.launches}) == 1  # the same words are kept once


def test_pages_without_rules(tmp_path: Path) -> None:
    assert [launch.rules for launch in read(tmp_path, details([COPY])).launches] == [()]
    assert [launch.rules for launch in read(tmp_path, raw([COPY])).launches] == [()]


def test_columns_of_rules_without_speedups(tmp_path: Path) -> None:
    text = page(DURATION, rule("SOLBottleneck", "WRN", "Slow."), rules=RULES[:3])
    assert read(tmp_path, text).launches[0].rules == (RuleResult("SOLBottleneck", "SpeedOfLight", "WRN", "Slow."),)


@pytest.mark.parametrize(
    ("cells", "speedup"),
    [
        (("global", "5,818"), (5.818, "global")),
        (("Global ", " 50"), (50.0, "global")),
        (("", "12.5"), (12.5, None)),
        (("sideways", "12.5"), (12.5, None)),
        (("local", "n/a"), (None, None)),
        (("local", "-3"), (None, None)),
        (("local", "1e999"), (None, None)),
        (("local", "nan"), (None, None)),
        (("local",), (None, None)),
    ],
)
def test_estimates(tmp_path: Path, cells: tuple[str, ...], speedup: tuple[float | None, str | None]) -> None:
    (said,) = read(tmp_path, page(DURATION, rule("CPIStall", "OPT", "Waits.", *cells))).launches[0].rules
    assert (said.speedup_percent, said.speedup_type) == speedup


def test_a_row_that_ends_after_the_name_of_the_rule(tmp_path: Path) -> None:
    (said,) = read(tmp_path, page(DURATION, rule("CPIStall"))).launches[0].rules
    assert said == RuleResult("CPIStall", "SpeedOfLight", None, "")


def test_a_type_that_is_not_known_is_none(tmp_path: Path) -> None:
    (said,) = read(tmp_path, page(DURATION, rule("CPIStall", "\x1b[31mOPT", "Waits."))).launches[0].rules
    assert said.type is None


def test_hostile_text(tmp_path: Path) -> None:
    long = "x" * 500_000
    text = page(
        DURATION, rule(long, "OPT", long, section=long), rule("A\udcff", "OPT", "a\udcff\n\tb  c", "global", "1")
    )
    first, second = read(tmp_path, text.encode("utf-8", "surrogateescape")).launches[0].rules
    assert max(map(len, (first.rule, first.section, first.text))) <= 1000
    assert (second.rule, second.text) == ("A?", "a? b c")
    second.text.encode()


def test_a_launch_keeps_a_bounded_number_of_results(tmp_path: Path) -> None:
    rows = [rule("CPIStall", "OPT", f"Waits {number}.") for number in range(RULES_MAX + 50)]
    (launch,) = read(tmp_path, page(DURATION, *rows, metric("Occupancy", "Achieved Occupancy", "%", "15.53"))).launches
    assert [said.text for said in launch.rules] == [f"Waits {number}." for number in range(RULES_MAX)]
    assert launch.metrics["sm__warps_active.avg.pct_of_peak_sustained_active"] == 15.53


def test_rules_of_a_launch_that_was_cut_are_lost_with_it(tmp_path: Path) -> None:
    whole = page(DURATION, rule("CPIStall", "OPT", "Waits."), rule("CPIStall", "OPT", "Waits longer."))
    assert read(tmp_path, whole[:-8]).launches == ()


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Look at @section:SchedulerStats:Scheduler Statistics@ first.", "Look at Scheduler Statistics first."),
        ("See the @url:Guide:https://docs.nvidia.com/a:b@.", "See the Guide (https://docs.nvidia.com/a:b)."),
        ("Line @source:a.cu:12:the loop@, @sass:0x10:LDG@", "Line the loop, LDG"),
        ("mail@host and @foo:bar@ and @section:", "mail@host and @foo:bar@ and @section:"),
        ("@" * 3000, "@" * 1000),
    ],
)
def test_links_of_the_text(text: str, plain: str) -> None:
    assert rule_text(text) == plain
