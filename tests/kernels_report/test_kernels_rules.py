"""Rules of Nsight Compute in the report on kernels: text, JSON and page show the same, from both kinds of files."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from made_report import MadeLaunch, MadeMessage, MadeRule, write
from tachograph.catalog.config import Configuration
from tachograph.nsight.reports import read_reports
from tachograph.report.kernels_html import kernels_html
from tachograph.report.kernels_json import kernels_csv, kernels_json
from tachograph.report.kernels_sentences import AGREEMENTS, agreement_sentence, rule_claim, rule_speedup
from tachograph.report.kernels_text import kernels_lines
from tachograph.report.lines import to_text
from tachograph.sharing.kernel_facts import KernelsReport, KernelsRequest
from tachograph.sharing.kernel_report import build_kernels_report
from tachograph.sharing.nsight_rules import compared_rules, rule_agreement

LATENCY = "Achieved compute throughput and/or memory bandwidth below 60.0% of peak typically indicate latency issues."
TAIL = "This kernel launch results in 1 full waves and a partial wave of 136 thread blocks. See @section:A:Launches@."
CSV_TAIL = "This kernel launch results in 1 full waves and a partial wave of 136 thread blocks. See Launches."
FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size")
COLUMNS = (*FIXED, "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name",
           "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")  # fmt: skip
SPEED, STATISTICS, OCCUPANCY = "GPU Speed Of Light Throughput", "Launch Statistics", "Occupancy"
METRICS = (
    (SPEED, "Duration", "ns", "406240", "gpu__time_duration.sum"),
    (SPEED, "DRAM Throughput", "%", "0.74", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
    (STATISTICS, "Waves Per SM", "", "1.89", "launch__waves_per_multiprocessor"),
    (STATISTICS, "Grid Size", "", "288", "launch__grid_size"),
    (STATISTICS, "Block Size", "", "384", "launch__block_size"),
    (STATISTICS, "Registers Per Thread", "register/thread", "168", "launch__registers_per_thread"),
    (OCCUPANCY, "Theoretical Occupancy", "%", "18.75", "sm__maximum_warps_per_active_cycle_pct"),
    (OCCUPANCY, "Achieved Occupancy", "%", "15.53", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    ("Compute Workload Analysis", "Issued Ipc Active", "inst/cycle", "0.8", "sm__inst_issued.avg.per_cycle_active"),
)  # fmt: skip
SAMPLE = "A sample, not recorded: a GEMM made up of round numbers, with what rules say of it."
Rule = tuple[str, str, str, str, str, str]
RULES: tuple[Rule, ...] = (
    ("SpeedOfLight", "SOLBottleneck", "OPT", LATENCY, "", ""),
    ("LaunchStats", "LaunchConfiguration", "OPT", CSV_TAIL, "global", "50"),
    ("Occupancy", "TheoreticalOccupancy", "OPT", "Warps are below the hardware maximum of 16.", "local", "81.25"),
    ("SourceCounters", "MyOwnRule", "WRN", "It <b>writes</b> \x1b[31mred\x1b[0m.", "", ""),
)


def details(*rules: Rule, kernel: str = "gemm_kernel") -> str:
    """A details page with one launch; rows of metrics end in a comma, as ncu writes them."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n")
    launch = ("0", "4711", "gemm", "127.0.0.1", kernel, "1", "7", "(384, 1, 1)", "(9, 32, 1)", "0", "10.0")
    writer.writerow(COLUMNS)
    for section, name, unit, value, _ in METRICS:
        writer.writerow((*launch, section, name, unit, value))
        buffer.seek(buffer.tell() - 1)
        buffer.write(",\n")
    for section, *cells in rules:
        writer.writerow((*launch, section, "", "", "", *cells))
    return buffer.getvalue()


def report(path: Path, *, explain: str | None = None) -> KernelsReport:
    return build_kernels_report(read_reports([path]), KernelsRequest(explain=explain), configuration=Configuration())


def in_csv(folder: Path, *rules: Rule) -> Path:
    path = folder / "made.csv"
    path.write_text(details(*rules), encoding="utf-8")
    return path


def in_ncu_rep(folder: Path) -> Path:
    kinds, types = {"OPT": 4, "WRN": 2}, {"local": 1, "global": 2}
    rules = tuple(
        MadeRule(name, section, (MadeMessage(TAIL if text == CSV_TAIL else text, kinds[kind],
                                             (types[of], float(percent)) if of else None),))
        for section, name, kind, text, of, percent in RULES
    )  # fmt: skip
    metrics = {metric: float(value) for *_, value, metric in METRICS}
    made = MadeLaunch(name="gemm_kernel", metrics=metrics, grid=(9, 32, 1), block=(384, 1, 1), rules=rules)
    return write(folder / "made.ncu-rep", [made])


def text_of(found: KernelsReport, width: int = 110) -> str:
    return to_text(kernels_lines(found, width=width))


EXPECTED = [
    ("SOLBottleneck", "latency", None, None, "latency", "agrees"),
    ("LaunchConfiguration", "tail effect", 50.0, "global", "places left empty 5.5 %", "differs"),
    ("TheoreticalOccupancy", "low possible occupancy", 81.25, "local", "occupancy possible 19 %", "agrees"),
    ("MyOwnRule", None, None, None, None, "not_comparable"),
]


def rules_in(values: dict[str, Any]) -> list[tuple[object, ...]]:
    (kernel,) = values["gpus"][0]["kernels"]
    keys = ("rule", "claim", "speedup_percent", "speedup_type", "ours", "agreement")
    return [tuple(rule[key] for key in keys) for rule in kernel["nsight_rules"]]


def test_json_of_both_kinds_of_files(tmp_path: Path) -> None:
    values = kernels_json(report(in_csv(tmp_path, *RULES)))
    assert rules_in(values) == EXPECTED
    assert values["gpus"][0]["nsight_agreement"] == {
        "agree": 2,
        "comparable": 3,
        "differ": [{"rule": "LaunchConfiguration", "claim": "tail effect", "of": [1]}],
    }
    pytest.importorskip("ncu_report", reason="the library of Nsight Compute is not installed")
    other = kernels_json(report(in_ncu_rep(tmp_path)))
    assert rules_in(other) == EXPECTED
    assert other["gpus"][0]["kernels"][0]["nsight_rules"] == values["gpus"][0]["kernels"][0]["nsight_rules"]


def test_text_and_page_show_the_same(tmp_path: Path) -> None:
    path = in_csv(tmp_path, *RULES)
    found = report(path, explain="1")
    explained, overview, page = (
        text_of(found, 140),
        text_of(report(path), 140),
        kernels_html(found).replace("\xa0", " "),
    )
    assert found.explained is not None
    rules = compared_rules(found.explained)
    agreement = rule_agreement(found.parts[0].kernels)
    assert rules is not None
    assert agreement is not None
    assert agreement_sentence(agreement) in overview.replace("\n", " ")
    assert agreement_sentence(agreement) in html.unescape(page)
    section = explained.split("Nsight Compute's rules\n")[1].split("\n\n")[0].splitlines()
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    for rule, line in zip(rules, section[1:], strict=False):
        assert line.split()[0] == rule.rule
        cells = [rule.rule, rule_claim(rule), rule_speedup(rule), rule.ours or "–", AGREEMENTS[rule.agreement]]
        if rule.claim is not None:
            assert [cell for cell in cells if cell not in line] == []
            assert cells in [[html.unescape(cell) for cell in row] for row in rows]
    assert "2 of 3 comparable results; differ: LaunchConfiguration (tail effect: 1)." in overview


def test_text_of_a_rule_steers_nothing(tmp_path: Path) -> None:
    found = report(in_csv(tmp_path, *RULES), explain="1")
    explained, page = text_of(found), kernels_html(found)
    assert "\x1b" not in explained + page
    assert "\\x1b[31mred" in explained
    assert "<b>writes" not in page
    assert "&lt;b&gt;writes" in page


@pytest.mark.parametrize("width", [60, 80, 100, 130, 200])
def test_it_fits_the_width(tmp_path: Path, width: int) -> None:
    long = (("S", "R" * 300, "WRN", "long " * 300, "local", "12.5"), *RULES)
    path = in_csv(tmp_path, *long)
    sections = [
        text_of(report(path, explain=explain), width).split("Nsight Compute's rules")[-1] for explain in (None, "1")
    ]
    for section in sections:
        assert max(map(len, section.split("\n\n")[0].splitlines())) <= width
    assert "RRR" in sections[1]


def test_a_report_without_rules_shows_nothing(tmp_path: Path) -> None:
    found = report(in_csv(tmp_path), explain="1")
    values = kernels_json(found)
    assert values["gpus"][0]["nsight_agreement"] is None
    assert values["gpus"][0]["kernels"][0]["nsight_rules"] is None
    for shown in (text_of(found), text_of(report(tmp_path / "made.csv")), kernels_html(found)):
        assert "Nsight Compute's rule" not in html.unescape(shown)


def test_rules_of_which_none_can_be_compared(tmp_path: Path) -> None:
    path = in_csv(tmp_path, RULES[-1])
    assert "Nsight Compute's rules: none of their results can be compared." in text_of(report(path))
    assert kernels_json(report(path))["gpus"][0]["nsight_agreement"] == {"agree": 0, "comparable": 0, "differ": []}


def test_information_alone_leaves_an_empty_list(tmp_path: Path) -> None:
    path = in_csv(tmp_path, ("S", "R", "INF", "All is well.", "", ""))
    assert kernels_json(report(path))["gpus"][0]["kernels"][0]["nsight_rules"] == []
    assert "Nsight Compute's rules\n" not in text_of(report(path, explain="1"))


def test_the_table_has_no_rules(tmp_path: Path) -> None:
    assert kernels_csv(report(in_csv(tmp_path, *RULES))) == kernels_csv(report(in_csv(tmp_path)))


def test_the_sample_of_the_documentation() -> None:
    sample = Path(__file__).resolve().parents[2] / "docs" / "samples" / "rules.csv"
    assert sample.read_text(encoding="utf-8") == f"{SAMPLE}\n{details(*RULES[:3])}"


def test_the_command(tmp_path: Path) -> None:
    in_csv(tmp_path, *RULES)
    command = [sys.executable, "-m", "tachograph", "kernels", "made.csv"]
    ran = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert rules_in(json.loads(ran.stdout)) == EXPECTED
    ran = subprocess.run([*command, "--explain", "gemm"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Nsight Compute's rules\n" in ran.stdout
