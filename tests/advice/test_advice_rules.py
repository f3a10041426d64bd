"""What the checks that see one job at a time report: sentences, numbers, and which finding
covers which.
"""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from jobframes import START, frame, gpus, minutes, summary
from one_job import findings_of, verdicts_of
from tachograph.catalog.codes import CODES
from tachograph.catalog.config import Thresholds
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES
from tachograph.judge.activity import runs
from tachograph.judge.check import FAMILIES, Check, families_around
from tachograph.judge.checks import CHECKS, check_of
from tachograph.judge.families import settled, verdicts
from tachograph.judge.finding import (
    EVIDENCE,
    FINDING_SCHEMA,
    SEVERITIES,
    Finding,
    findings_frame,
    read_findings,
)
from tachograph.judge.judge import judge_summaries
from tachograph.pipeline.timelines import timelines_of

LIMITS = Thresholds()
NO_MINUTES = minutes()
NO_GPUS = gpus()
PlantedRows = tuple[JobSummaryRow, pl.DataFrame, pl.DataFrame]


def used(*means: float, nodes: tuple[str, ...] = ()) -> pl.DataFrame:
    rows = gpus(*({"gpu_util_mean": mean, "gpu_util_max": min(1.0, mean * 2)} for mean in means))
    return rows.with_columns(node=pl.Series(nodes)) if nodes else rows


def planted(
    gpu_rows: pl.DataFrame = NO_GPUS, minute_rows: pl.DataFrame = NO_MINUTES, **columns: Any
) -> PlantedRows:
    return summary(**columns), gpu_rows, minute_rows


def spinning() -> pl.DataFrame:
    work, wait = 30, 40
    return minutes(
        *[[1.0] * (work + wait)] * 2,
        tensor_active=[0.3] * work + [0.0] * wait,
        dram_active=[0.2] * work + [0.001] * wait,
        power_w=[400.0] * work + [70.0] * wait,
    )


BURSTS = ([0.9] * 5 + [0.0] * 5) * 4 + [0.9] * 5
STOPS = ([0.9] * 5 + [0.0] * 4) * 3 + [0.9] * 5 + [0.0] * 30 + [0.9] * 5
XIDS = gpus({"xid_events": 0}, {"xid_events": 2})
JOBS: dict[str, PlantedRows] = {
    "nothing measured": planted(),
    "good": planted(
        used(0.9, 0.9, 0.88, 0.92), minutes(*[[0.9] * 120] * 4),
        gpu_util_mean=0.9, gpu_util_max=1.0, gpus_seen=4, samples=2880, coverage=1.0, spatial_imbalance=0.02,
        temporal_imbalance=0.1, zero_util_fraction=0.0, hbm_peak_fraction=0.6, time_precision_s=0.0, xid_events=0,
        throttle_reasons_mean=0.0, throttle_reasons_max=0.0, bound="compute", fp64_active_mean=0.5,
        dram_active_mean=0.2, compute_fraction=0.9, memory_fraction=0.1, fp32_active_mean=0.0, fp16_active_mean=0.0,
        row_remap_failure_max=0.0, remapped_rows_uncorrectable_max=0.0,
    ),
    "idle": planted(
        used(0, 0, 0, 0), minutes(*[[0.0] * 120] * 4),
        gpu_util_mean=0.0, gpu_util_max=0.0, gpus_seen=4, samples=10, hbm_request="80g", hbm_peak_fraction=0.02,
    ),
    "idle, loaded": planted(gpu_util_mean=0.0, gpu_util_max=0.0, gpus_seen=4, hbm_used_mib_max=3000.0),
    "a little activity so far": planted(gpu_util_mean=0.004, gpu_util_max=0.3, gpus_seen=4, state="RUNNING"),
    "idle slice": planted(gr_engine_active_mean=0.0, gr_engine_active_max=0.0, gpus=1),
    "one GPU of many": planted(used(0, 0, 0.8, 0), gpu_util_mean=0.2, gpus_seen=4, samples=10, spatial_imbalance=0.75),
    "one GPU on two nodes": planted(
        used(0, 0, 0.8, 0, nodes=("n1", "n1", "n2", "n2")), gpu_util_mean=0.2, gpus_seen=4, spatial_imbalance=0.75),
    "two never used": planted(used(0.4, 0, 0.2, 0), gpu_util_mean=0.15, gpus_seen=4, spatial_imbalance=0.6),
    "one never used": planted(used(0.4, 0.3, 0.2, 0), gpu_util_mean=0.15, gpus_seen=4, spatial_imbalance=0.6),
    "two on one node": planted(
        used(0.4, 0.4, 0, 0, nodes=("n1", "n1", "n2", "n2")), gpu_util_mean=0.2, gpus_seen=4, spatial_imbalance=0.75),
    "hung": planted(NO_GPUS, minutes(*[[0.9] * 50 + [0.0] * 70] * 2), gpu_util_mean=0.375, gpu_util_max=1.0),
    "late": planted(NO_GPUS, minutes([0.0] * 14 + [0.5] * 86), gpu_util_mean=0.5, elapsed_s=6000.0),
    "stalled, and bursts": planted(NO_GPUS, minutes(STOPS), gpu_util_mean=0.4, temporal_imbalance=0.6),
    "bursts": planted(NO_GPUS, minutes(BURSTS), gpu_util_mean=0.25, temporal_imbalance=0.6),
    "late and hung": planted(NO_GPUS, minutes([0.0] * 30 + [0.9] * 60 + [0.0] * 30), gpu_util_mean=0.5),
    "busy-waiting": planted(NO_GPUS, spinning(), gpu_util_mean=1.0, gpu_util_max=1.0),
    "low use": planted(gpu_util_mean=0.2, zero_util_fraction=0.25, hbm_peak_fraction=0.1),
    "low use, full memory": planted(gpu_util_mean=0.2, hbm_peak_fraction=0.9),
    "low use of a slice": planted(gr_engine_active_mean=0.2, gr_engine_active_max=0.9, gpus=1),
    "uneven": planted(used(0.9, 0.2, 0.3, 0.2), gpu_util_mean=0.4, spatial_imbalance=0.5),
    "uneven, hence low": planted(used(0.62, 0.1, 0.2, 0.08), gpu_util_mean=0.25, spatial_imbalance=0.6),
    "uneven and low": planted(used(0.25, 0.05, 0.05, 0.05), gpu_util_mean=0.1, spatial_imbalance=0.6),
    "memory-bound": planted(
        gpu_util_mean=0.9, tensor_active_mean=0.1, dram_active_mean=0.5, bound="memory", memory_fraction=1.0,
        main_pipe="tensor", main_pipe_at_work=0.1, dram_at_work=0.55, limiter="memory"),
    "no limiter": planted(gpu_util_mean=0.9, main_pipe="tensor", dram_at_work=0.55, limiter="neither"),
    "no tensor use": planted(
        gpu_util_mean=0.9, fp32_active_mean=0.3, fp16_active_mean=0.0, tensor_active_max=0.0),
    "tensor use not known": planted(gpu_util_mean=0.9, fp32_active_mean=0.3, fp16_active_mean=0.0),
    "little of large memory": planted(hbm_request="80g", hbm_peak_fraction=0.1, hbm_used_mib_max=8192.0),
    "little of memory": planted(hbm_request="40g", hbm_peak_fraction=0.1),
    "full memory": planted(hbm_peak_fraction=0.96, hbm_used_mib_max=39322.0, hbm_mib=40960.0),
    "hot": planted(throttle_reasons_mean=0.4, throttle_reasons_max=33.0, gpu_temp_c_max=88.0),
    "slowed down": planted(throttle_reasons_mean=0.4, throttle_reasons_max=136.0),
    "slowed down at the limit": planted(throttle_reasons_mean=0.4, throttle_reasons_max=136.0, power_w_max=690.0,
                                        gpu_model="H100 SXM 80GB"),
    "slowed down below the limit": planted(throttle_reasons_mean=0.4, throttle_reasons_max=136.0, power_w_max=380.0,
                                           gpu_model="H100 SXM 80GB"),
    "at the power limit": planted(throttle_reasons_mean=0.4, throttle_reasons_max=4.0),
    "idle clocks": planted(throttle_reasons_mean=0.4, throttle_reasons_max=1.0),
    "device lost": planted(XIDS, xid_events=2, xid_event_max=79.0),
    "fault of the program": planted(XIDS, xid_events=1, xid_event_max=31.0),
    "XID from before": planted(XIDS, xid_events=0, xid_max=79.0),
    "rows remapped": planted(gpus({"remapped_rows_uncorrectable_max": 1.0}, {"remapped_rows_correctable_max": 2.0})),
    "rows left": planted(gpus({"remapped_rows_uncorrectable_max": 1.0, "row_remap_failure_max": 1.0}),
                         row_remap_failure_max=1.0),
    "samples missing": planted(coverage=0.5, samples=100, gpus_seen=3),
    "no samples": planted(samples=0, gpus_seen=0, coverage=0.0),
    "no samples of a short job": planted(samples=0, gpus_seen=0, coverage=0.0, elapsed_s=60.0),
    "not known whose": planted(
        used(0, 0), attribution="ambiguous", gpu_util_mean=0.0, gpu_util_max=0.0, xid_events=3, samples=5,
        elapsed_s=60.0),
    "short and coarse": planted(elapsed_s=120.0, samples=12, time_precision_s=60.0),
    "short so far": planted(elapsed_s=120.0, state="RUNNING"),
}  # fmt: skip


def test_findings_that_hold(snapshot: SnapshotAssertion) -> None:
    found = {}
    for name, (row, gpu_rows, minute_rows) in JOBS.items():
        holding = [
            finding
            for finding in verdicts_of(row, gpu_rows, minute_rows, LIMITS)
            if finding.verdict == "yes"
        ]
        found[name] = {
            finding.code: (finding.covered_by or finding.sentence, finding.evidence)
            for finding in holding
        }
    assert found == snapshot


def found(
    row: JobSummaryRow, gpu_rows: pl.DataFrame = NO_GPUS, minute_rows: pl.DataFrame = NO_MINUTES
) -> dict[str, Finding]:
    return {finding.code: finding for finding in findings_of(row, gpu_rows, minute_rows, LIMITS)}


def test_advice_is_for_who_can_follow_it() -> None:
    assert "prolog" in (found(*JOBS["not known whose"])["ambiguous_attribution"].advice or "")
    assert "scale to zero" in (found(*JOBS["idle, loaded"])["idle_job"].advice or "")


def test_a_stop_needs_all_gpus_and_minutes_that_were_measured() -> None:
    gap: list[float | None] = [None] * 60
    row = summary(gpu_util_mean=0.5)
    for levels in (
        [[0.9] * 10 + [0.0] * 60, [0.9] * 70],
        [[0.9] * 50 + gap + [0.0] * 10],
        [[0.9] * 50 + gap],
        [[None] * 14 + [0.5] * 86],
    ):
        assert found(row, minute_rows=minutes(*levels)) == {}


def test_busy_waiting_needs_its_counters() -> None:
    row = summary(gpu_util_mean=1.0, gpu_util_max=1.0)
    assert (
        found(row, minute_rows=spinning().with_columns(dram_active=pl.lit(None, dtype=pl.Float32)))
        == {}
    )
    steady = minutes([1.0] * 60, tensor_active=[0.0] * 60, dram_active=[0.0] * 60)
    assert found(row, minute_rows=steady) == {}  # never worked: another matter


def test_every_check_has_one_code_title_and_advice_text() -> None:
    assert [check.code for check in CHECKS] == list(CODES)
    titles = [check.title for check in CHECKS]
    assert len(set(titles)) == len(titles)
    for check in CHECKS:
        assert check.severity in SEVERITIES
        assert check.decide or check.job_class
    used = {check.family for check in CHECKS}
    assert {*FAMILIES, *(wider for of in FAMILIES.values() for wider in of)} <= used
    assert all(
        family not in families_around(wider) for family, of in FAMILIES.items() for wider in of
    )


def test_findings_are_ordered_by_severity() -> None:
    row = summary(gpu_util_mean=0.2, xid_events=1, coverage=0.5, samples=10)
    places = [
        SEVERITIES.index(finding.severity)
        for finding in findings_of(row, NO_GPUS, NO_MINUTES, LIMITS)
    ]
    assert places == sorted(places)
    assert len(places) == 3


def test_frame_of_findings_keeps_everything() -> None:
    row = summary(gpu_util_mean=0.2, xid_events=1, xid_event_max=79.0)
    findings = findings_of(row, NO_GPUS, NO_MINUTES, LIMITS)
    table = findings_frame([(row, findings)])
    assert dict(table.schema) == {
        name: dtype for name, dtype in FINDINGS.schema.items() if name != "seq"
    }
    assert read_findings(table.reverse(), CODES) == findings
    assert json.loads(table["evidence"][0]) == {"xid_events": 1.0, "xid_event_max": 79.0}


def test_find_all_gives_each_job_its_own_rows() -> None:
    one = summary(job_key="a", job_id="1", gpu_util_mean=0.2)
    two = summary(job_key="b", job_id="2", gpu_util_mean=0.9)
    hang = minutes([0.9] * 30 + [0.0] * 60).with_columns(job_key=pl.lit("b"), job_id=pl.lit("2"))
    table = judge_summaries(
        frame(JOB_SUMMARIES, [one, two]), NO_GPUS, timelines_of(hang, idle_util=0.01), LIMITS
    )
    held = table.filter(pl.col("verdict") == "yes")
    assert held.select("job_key", "code").rows() == [("a", "low_utilisation"), ("b", "job_hang")]
    assert (
        table.group_by("job_key").len().get_column("len").to_list()
        == [sum(check.decide is not None for check in CHECKS)] * 2
    )
    assert (
        judge_summaries(
            JOB_SUMMARIES.empty(), NO_GPUS, timelines_of(NO_MINUTES, idle_util=0.01), LIMITS
        ).height
        == 0
    )


_LEVEL = st.none() | st.floats(0, 1)


@given(
    levels=st.lists(_LEVEL, max_size=90),
    means=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    numbers=st.fixed_dictionaries(
        {},
        optional={
            name: _LEVEL for name, dtype in JOB_SUMMARIES.schema.items() if dtype == pl.Float64
        },
    ),
    bound=st.sampled_from([None, "compute", "memory"]),
)
def test_any_job_is_judged_with_known_evidence(
    levels: list[float | None], means: list[float], numbers: dict[str, Any], bound: str | None
) -> None:
    row = summary(elapsed_s=5400.0) | numbers | {"bound": bound, "gpus": len(means)}
    findings = findings_of(row, used(*means), minutes(levels), LIMITS)
    for finding in findings:
        assert set(finding.evidence) <= set(EVIDENCE), finding
        assert "None" not in finding.sentence
        assert "nan" not in finding.sentence
        assert finding.title[-1] != "."
        assert finding.sentence[-1] == "."
        check = next(check for check in CHECKS if check.code == finding.code)
        assert (finding.title, finding.advice, finding.severity) == (
            check.title,
            check.advice,
            check.severity,
        )


def test_nothing_is_denied_where_as_much_was_not_measured_as_it_takes_to_hide_it() -> None:
    row = summary(gpu_util_mean=0.9, gpu_util_max=1.0, samples=360, coverage=0.9, interval_s=30.0)
    levels = [None] * 12 + [0.9] * 58 + [None] * 9 + [0.9] * 32 + [None] * 9
    verdicts = {f.code: f for f in verdicts_of(row, used(0.9, 0.9), minutes(levels), LIMITS)}
    assert verdicts["cold_start"].verdict == "unknown"
    assert verdicts["cold_start"].sentence == "Unknown: 12 min at the beginning were not measured."
    assert verdicts["stall"].verdict == verdicts["job_hang"].verdict == "no"
    assert verdicts["low_utilisation"].verdict == "no"
    assert verdicts["bursty"].verdict == "no"
    assert verdicts["throttled"].needs == ("throttle_reasons",)
    verdicts = {
        f.code: f
        for f in verdicts_of(row | {"coverage": 0.1}, used(0.9, 0.9), minutes(levels), LIMITS)
    }
    assert verdicts["low_utilisation"].verdict == "unknown"


@given(st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_runs_hold_all_numbers_once(numbers: list[int]) -> None:
    again = [first + step for first, length in runs(numbers) for step in range(length)]
    assert again == numbers


def _check(code: str, family: str, **more: Any) -> Check:
    return Check(code, family, "problem", code.upper(), f"Advice of {code}.", **more)


SETTLED = (
    _check("first_hang", "hang", deciders=("of_rule",)),
    _check("second_hang", "hang"),
    _check("fact_of_input", "input"),
    _check("late_input", "input"),
    _check("low", "low use"),
    _check("lower", "low use"),
    _check("kernel", "kernels"),
    _check("recording", "data quality", of_samples=False),
)
AGAIN = _check("first_hang", "hang", deciders=("of_class",))  # another check of the code
SPANS = ((None, None), (0, 20), (0, 19), (20, 40), (10, 50), (None, 60))


def _row(source: random.Random, key: str, code: str) -> dict[str, Any]:
    begin, end = source.choice(SPANS)
    row: dict[str, Any] = {"job_key": key, "job_id": key, "code": code, "needs": []}
    row |= {"verdict": source.choice(["yes", "yes", "no", "unknown"]), "evidence": '{"xid": 1}'}
    row |= {"severity": "fact" if code.startswith("fact") else "problem", "title": code}
    row |= {"kind": "check", "sentence": f"{code} said.", "advice": f"Do {code}."}
    row |= {
        "checks": source.choice(["[]", "[1]"]),
        "confidence": source.choice([None, "high", "low"]),
    }
    row["begin"] = None if begin is None else START + timedelta(minutes=begin)
    return row | {"end": None if end is None else START + timedelta(minutes=end)}


def _covers(above: dict[str, Any], below: dict[str, Any], elapsed_s: float | None) -> bool:
    """As the families of SETTLED are around each other: hang in input in low use."""
    order, codes = ["hang", "input", "low use"], [check.code for check in SETTLED]
    family, wider = (SETTLED[codes.index(row["code"])].family for row in (above, below))
    if below["severity"] == "fact" or (family not in order and family != wider):
        return False
    if family == wider:
        if above["severity"] == "fact" or codes.index(above["code"]) >= codes.index(below["code"]):
            return False
    elif wider not in order or order.index(family) > order.index(wider):
        return False
    if None in (above["begin"], above["end"]):
        return True
    if None in (below["begin"], below["end"]):
        part_s = (above["end"] - above["begin"]).total_seconds()
        return family == wider or elapsed_s is None or 3 * part_s >= elapsed_s
    return bool(above["begin"] < below["end"] and below["begin"] < above["end"])


def test_settled_findings_are_those_of_each_job_alone() -> None:
    """Deciders of one code, verdicts in doubt, intervals that touch, a third of the run."""
    source = random.Random(1)
    codes = [check.code for check in SETTLED]
    names = [*codes, "of_rule", "of_class"]
    gaps: list[dict[str, Any]] = []
    rows, refuted = [], []
    for number in range(60):
        key = f"j{number:02}"
        elapsed_s = source.choice([None, 3600.0, 3601.0])
        gaps.append(
            {
                "job_key": key,
                "elapsed_s": elapsed_s,
                "share": 0.5,
                "begin": 5,
                "end": 9,
                "within": 7,
            }
        )
        rows += [_row(source, key, name) for name in names if source.random() < 0.7]
        refuted += [(key, code) for code in codes if source.random() < 0.1]
    findings = pl.DataFrame(rows, schema=FINDING_SCHEMA)
    doubts = pl.DataFrame(refuted, schema=["job_key", "code"], orient="row")
    of_gaps = pl.DataFrame(gaps)
    found = settled(findings, doubts, (*SETTLED, AGAIN), of_gaps)
    by_job = {
        key[0]: of.to_dicts() for key, of in found.partition_by("job_key", as_dict=True).items()
    }
    decided: dict[tuple[str, str], str] = {}
    for gap in gaps:
        key, wanted = gap["job_key"], {}
        for code in codes:
            of_code = {"first_hang": ("first_hang", "of_rule", "of_class")}.get(code, (code,))
            each = [row for row in rows if row["job_key"] == key and row["code"] in of_code]
            if not each:
                continue
            ranks = [{"yes": 0, "unknown": 1, "no": 2}[row["verdict"]] for row in each]
            if min(ranks) != 1 and code != "recording":
                decided[key, code] = ("yes", "", "no")[min(ranks)]
            sure = {"high": 0, "low": 1, None: 2}
            best = min(
                each,
                key=lambda row: (
                    {"yes": 0, "unknown": 1, "no": 2}[row["verdict"]], sure[row["confidence"]],
                    row["code"] not in codes, row["checks"] == "[]",
                ),
            )  # fmt: skip
            row = best | {"code": code}
            if len(of_code) > 1:
                row |= {"severity": "problem", "title": "FIRST_HANG"}
                row["advice"] = "Advice of first_hang." if row["verdict"] == "yes" else None
            if (key, code) in refuted:
                row |= dict.fromkeys(("confidence", "advice", "begin", "end"))
                row |= {"verdict": "unknown", "evidence": "{}"}
                row["sentence"] = (
                    "Unknown: 50 % of its GPU time was not measured."
                    if gap["elapsed_s"]
                    else "Unknown: 9 min at the end were not measured."
                )
            wanted[code] = row | {"covered_by": None}
        reported: list[dict[str, Any]] = []
        for row in wanted.values():  # the order of SETTLED is that of depth
            above = [other for other in reported if _covers(other, row, gap["elapsed_s"])]
            if row["verdict"] == "yes" and above:
                row["covered_by"] = above[0]["code"]
            elif row["verdict"] == "yes":
                reported.append(row)
        assert {row["code"]: row for row in by_job[key]} == wanted
        assert len(by_job[key]) == len(wanted)
    judged = verdicts(findings, (*SETTLED, AGAIN)).rows()
    assert sorted(judged) == sorted((*key, verdict) for key, verdict in decided.items())
    assert settled(findings, doubts.clear(), SETTLED[1:], of_gaps).height == findings.height


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        ((0, 0, 0, 0.5, 3600), "50 % of its GPU time was"),
        ((0, 15, 14, 0.5, 3600), "15 min at the end were"),
        ((0, 15, 16, 0.5, 3600), "16 min in between were"),
        ((15, 15, 15, 0.5, 3600), "15 min at the beginning were"),
        ((14, 0, 0, 0.5, 3600), "50 % of its GPU time was"),
        ((None, None, None, 0.5, None), "50 % of its GPU time was"),
    ],
)
def test_what_is_missing_is_the_longest_gap_where_it_is_half_of_it(
    gap: tuple[int | None, ...], words: str
) -> None:
    names = ("begin", "end", "within", "share", "elapsed_s")
    findings = pl.DataFrame([_row(random.Random(0), "a", "low")], schema=FINDING_SCHEMA)
    of_gap = pl.DataFrame([{"job_key": "a", **dict(zip(names, gap, strict=True))}])
    found = settled(findings, findings.select("job_key", "code"), SETTLED, of_gap)
    assert found["sentence"].item() == f"Unknown: {words} not measured."


def test_the_check_of_a_code_is_that_of_the_table() -> None:
    codes = {code: check for check in CHECKS for code in check.codes}
    assert {code: check_of(code) for code in codes} == codes
    assert check_of("score_gpu") is check_of("a rule of a site") is None
