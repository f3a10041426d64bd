from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobframes import frame, gpus, minutes, summary
from one_job import findings_of, verdicts_of
from tachograph.catalog.codes import CODES
from tachograph.catalog.config import Thresholds
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES
from tachograph.judge.activity import runs
from tachograph.judge.check import FAMILIES, families_around
from tachograph.judge.checks import CHECKS
from tachograph.judge.finding import EVIDENCE, SEVERITIES, Finding, findings_frame, read_findings
from tachograph.judge.judge import judge_summaries
from tachograph.pipeline.timelines import timelines_of

LIMITS = Thresholds()
NO_MINUTES = minutes()
NO_GPUS = gpus()


def found(
    row: dict[str, Any], gpu_rows: pl.DataFrame = NO_GPUS, minute_rows: pl.DataFrame = NO_MINUTES
) -> dict[str, Finding]:
    return {finding.code: finding for finding in findings_of(row, gpu_rows, minute_rows, LIMITS)}


def used(*means: float) -> pl.DataFrame:
    return gpus(*({"gpu_util_mean": mean, "gpu_util_max": min(1.0, mean * 2)} for mean in means))


def test_nothing_measured_finds_nothing() -> None:
    assert found(summary()) == {}


def test_good_job_finds_nothing() -> None:
    row = summary(
        gpu_util_mean=0.9, gpu_util_max=1.0, gpus_seen=4, samples=2880, coverage=1.0, spatial_imbalance=0.02,
        temporal_imbalance=0.1, zero_util_fraction=0.0, hbm_peak_fraction=0.6, time_precision_s=0.0, xid_events=0,
        throttle_reasons_mean=0.0, throttle_reasons_max=0.0, bound="compute", fp64_active_mean=0.5,
        dram_active_mean=0.2, compute_fraction=0.9, memory_fraction=0.1, fp32_active_mean=0.0, fp16_active_mean=0.0,
        row_remap_failure_max=0.0, remapped_rows_uncorrectable_max=0.0,
    )  # fmt: skip
    assert found(row, used(0.9, 0.9, 0.88, 0.92), minutes(*[[0.9] * 120] * 4)) == {}


def test_idle_job_supersedes_the_lesser_findings() -> None:
    row = summary(
        gpu_util_mean=0.0, gpu_util_max=0.0, gpus_seen=4, samples=10, hbm_request="80g", hbm_peak_fraction=0.02
    )
    result = found(row, used(0, 0, 0, 0), minutes(*[[0.0] * 120] * 4))
    assert list(result) == ["idle_job"]
    assert result["idle_job"].severity == "problem"
    assert result["idle_job"].evidence["gpu_hours_idle"] == 8.0
    assert "Utilisation of 4 GPUs was 0 % in every sample: 8.0 h" in result["idle_job"].sentence


def test_idle_job_with_a_little_activity_gives_the_numbers() -> None:
    result = found(summary(gpu_util_mean=0.004, gpu_util_max=0.3, gpus_seen=4, state="RUNNING"))
    assert "was 0.4 % on average (at most 30 %) so far" in result["idle_job"].sentence


def test_idle_job_of_a_mig_slice_goes_by_the_engine() -> None:
    result = found(summary(gr_engine_active_mean=0.0, gr_engine_active_max=0.0, gpus=1))
    assert result["idle_job"].sentence.startswith("Graphics engine activity of 1 GPU was 0 %")


def test_one_gpu_of_many() -> None:
    row = summary(gpu_util_mean=0.2, gpus_seen=4, spatial_imbalance=0.75)
    result = found(row, used(0, 0, 0.8, 0))
    assert list(result) == ["one_gpu_of_many"]
    assert "GPU 2 was at 80 % on average, the other 3" in result["one_gpu_of_many"].sentence
    assert result["one_gpu_of_many"].evidence["gpu_hours_idle"] == pytest.approx(6.0)  # 8 h x 3 of 4


def test_some_gpus_never_used() -> None:
    row = summary(gpu_util_mean=0.15, gpus_seen=4, spatial_imbalance=0.6)
    result = found(row, used(0.4, 0, 0.2, 0))
    assert list(result) == ["gpus_never_used"]
    assert result["gpus_never_used"].sentence.startswith("2 of 4 GPUs (")
    assert "(GPU 1, GPU 3) stayed under 1 % on average while 2 GPUs worked" in result["gpus_never_used"].sentence
    assert result["gpus_never_used"].evidence["gpu_hours_idle"] == pytest.approx(4.0)


def test_a_single_gpu_never_used_is_told_of_as_one() -> None:
    found_one = found(summary(gpu_util_mean=0.15, gpus_seen=4, spatial_imbalance=0.6), used(0.4, 0.3, 0.2, 0))
    assert found_one["gpus_never_used"].sentence.startswith("1 of 4 GPUs (")
    assert " 2.0 h of its GPU time were unused." in found_one["gpus_never_used"].sentence


def test_a_gpu_of_a_job_on_two_nodes_is_named_with_its_node() -> None:
    row = summary(gpu_util_mean=0.2, gpus_seen=4, spatial_imbalance=0.75)
    on_two = used(0, 0, 0.8, 0).with_columns(node=pl.Series(["n1", "n1", "n2", "n2"]))
    assert found(row, on_two)["one_gpu_of_many"].sentence.startswith("n2 GPU 2 was at 80 %")
    on_two = used(0.4, 0.4, 0, 0).with_columns(node=pl.Series(["n1", "n1", "n2", "n2"]))
    assert found(row, on_two)["gpus_never_used"].sentence.startswith("2 of 4 GPUs (n2 GPU 2, n2 GPU 3) stayed under")


def test_hung_says_when_and_what_it_cost() -> None:
    levels = [0.9] * 50 + [0.0] * 70
    result = found(summary(gpu_util_mean=0.375, gpu_util_max=1.0), minute_rows=minutes(levels, levels))
    hung = result["hung"]
    assert hung.severity == "hint"
    assert "stopped working 50 min after the start; the job went on for 1 h 10 min" in hung.sentence
    assert hung.evidence["stopped_at_unix_s"] == datetime(2026, 4, 23, 17, 50, tzinfo=UTC).timestamp()
    assert hung.evidence["gpu_hours_idle"] == pytest.approx(4 * 70 / 60)


def test_hung_needs_a_tail_that_was_measured() -> None:
    gap: list[float | None] = [None] * 60
    row = summary(gpu_util_mean=0.5)
    assert "hung" not in found(row, minute_rows=minutes([0.9] * 50 + gap + [0.0] * 10))
    assert "hung" not in found(row, minute_rows=minutes([0.9] * 50 + gap))
    assert "hung" not in found(row, minute_rows=minutes([0.9] * 111 + [0.0] * 9))  # nine minutes only
    assert found(row, minute_rows=minutes([0.9] * 110 + [0.0] * 10))["hung"].severity == "hint"


def test_hung_needs_all_gpus_to_stop() -> None:
    assert "hung" not in found(summary(), minute_rows=minutes([0.9] * 10 + [0.0] * 60, [0.9] * 70))


def test_cold_start() -> None:
    result = found(summary(gpu_util_mean=0.5, elapsed_s=6000.0), minute_rows=minutes([0.0] * 14 + [0.5] * 86))
    assert result["late_start"].sentence == "No GPU worked in the first 14 min, 14 % of the run."
    assert result["late_start"].evidence["gpu_hours_idle"] == pytest.approx(14 * 4 / 60)
    assert "late_start" not in found(summary(), minute_rows=minutes([0.0] * 9 + [0.5] * 86))
    assert "late_start" not in found(summary(), minute_rows=minutes([None] * 14 + [0.5] * 86))


def test_stalled_supersedes_bursty() -> None:
    levels = ([0.9] * 5 + [0.0] * 4) * 3 + [0.9] * 5 + [0.0] * 30 + [0.9] * 5
    result = found(summary(gpu_util_mean=0.4, temporal_imbalance=0.6), minute_rows=minutes(levels))
    assert list(result) == ["stalled"]
    assert result["stalled"].evidence["longest_idle_s"] == 1800
    assert result["stalled"].evidence["stopped_after_s"] == 32 * 60


def test_bursty_counts_the_periods() -> None:
    levels = ([0.9] * 5 + [0.0] * 5) * 4 + [0.9] * 5
    result = found(summary(gpu_util_mean=0.25, temporal_imbalance=0.6), minute_rows=minutes(levels))
    assert list(result) == ["bursty"]  # explains low utilisation better
    assert result["bursty"].evidence["idle_periods"] == 4
    assert result["bursty"].evidence["idle_fraction"] == pytest.approx(20 / 45)
    assert "bursty" not in found(summary(temporal_imbalance=0.4), minute_rows=minutes(levels))
    assert "bursty" not in found(summary(temporal_imbalance=0.6), minute_rows=minutes([0.9, 0.2] * 30))


def test_low_utilisation_mentions_room_in_memory() -> None:
    row = summary(gpu_util_mean=0.2, zero_util_fraction=0.25, hbm_peak_fraction=0.1)
    low = found(row)["low_utilisation"]
    did_nothing = "in 25 % of the samples a GPU did nothing at all"
    assert low.sentence == f"GPU utilisation was 20 % on average; {did_nothing}; the memory peak was 10 %."
    assert low.evidence["gpu_hours_idle"] == 2.0
    full = found(summary(gpu_util_mean=0.2, hbm_peak_fraction=0.9))["low_utilisation"]
    assert "memory" not in full.sentence


@pytest.mark.parametrize(("mean", "expected"), [(0.01, True), (0.2999, True), (0.30, False), (0.0099, False)])
def test_low_utilisation_lies_between_its_limits(mean: float, expected: bool) -> None:
    assert ("low_utilisation" in found(summary(gpu_util_mean=mean))) is expected


def test_low_utilisation_of_a_mig_slice_goes_by_the_engine() -> None:
    low = found(summary(gr_engine_active_mean=0.2, gr_engine_active_max=0.9, gpus=1))["low_utilisation"]
    assert low.sentence == "Graphics engine activity was 20 % on average."
    assert low.evidence["activity_mean"] == 0.2


def test_imbalanced_gpus() -> None:
    result = found(summary(gpu_util_mean=0.4, spatial_imbalance=0.5), used(0.9, 0.2, 0.3, 0.2))
    assert list(result) == ["imbalanced_gpus"]
    assert "is 0.50 (0: all alike); means run from 20 % (GPU 3) to 90 % (GPU 0)" in result["imbalanced_gpus"].sentence


def test_low_use_that_comes_of_imbalance_is_told_once() -> None:
    uneven = summary(gpu_util_mean=0.25, spatial_imbalance=0.6)
    result = found(uneven, used(0.62, 0.1, 0.2, 0.08))
    assert list(result) == ["imbalanced_gpus"]
    assert "did little" not in result["imbalanced_gpus"].sentence
    result = found(uneven | {"gpu_util_mean": 0.1}, used(0.25, 0.05, 0.05, 0.05))
    assert list(result) == ["imbalanced_gpus"]
    assert result["imbalanced_gpus"].sentence.endswith("; even the busiest did little.")


def test_memory_bound_goes_by_the_limiter() -> None:
    row = summary(
        gpu_util_mean=0.9, tensor_active_mean=0.1, dram_active_mean=0.5, bound="memory", memory_fraction=1.0,
        main_pipe="tensor", main_pipe_at_work=0.1, dram_at_work=0.55, limiter="neither",
    )  # fmt: skip
    assert found(row) == {}
    result = found(row | {"limiter": "memory"})
    assert "While the tensor cores worked, memory was moving data 55 % of the time" in result["memory_bound"].sentence


def test_tensor_hint_needs_all_counters_and_no_use() -> None:
    row = summary(gpu_util_mean=0.9, fp32_active_mean=0.3, fp16_active_mean=0.0, tensor_active_max=0.0)
    assert list(found(row)) == ["no_tensor_use"]
    assert found(row | {"tensor_active_max": None}) == {}
    assert found(row | {"fp16_active_mean": None}) == {}
    assert found(row | {"tensor_active_max": 0.2}) == {}


def test_low_memory_needs_a_request_for_much() -> None:
    row = summary(gpu_util_mean=0.9, hbm_request="80g", hbm_peak_fraction=0.1, hbm_used_mib_max=8192.0)
    assert found(row)["low_memory"].sentence == "GPUs with 80 GB were requested; at the peak 10 % (8.0 GiB) was used."
    assert found(row | {"hbm_request": "40g"}) == {}
    assert found(row | {"hbm_request": None}) == {}
    assert found(row | {"hbm_peak_fraction": 0.2}) == {}


def test_memory_nearly_full() -> None:
    row = summary(hbm_peak_fraction=0.96, hbm_used_mib_max=39322.0, hbm_mib=40960.0)
    assert "96 % of the memory of a GPU was in use: 38.4 GiB of 40.0 GiB" in found(row)["memory_nearly_full"].sentence
    assert found(row | {"hbm_peak_fraction": 0.95}) == {}


@pytest.mark.parametrize(
    ("bits", "severity", "reasons"),
    [
        (0x20 | 0x1, "problem", "heat"),
        (0x8 | 0x80, "problem", "a hardware slowdown, the power limit"),
    ],
)
def test_throttled_tells_heat_from_power(bits: int, severity: str, reasons: str) -> None:
    row = summary(throttle_reasons_mean=0.4, throttle_reasons_max=float(bits), gpu_temp_c_max=88.0)
    throttled = found(row)["throttled"]
    assert throttled.severity == severity
    assert f"In 40 % of the samples clocks were lowered; reasons seen: {reasons}." in throttled.sentence
    assert ("88 °C" in throttled.sentence) is (severity == "problem")


def test_throttled_is_silent_about_idle_clocks_and_the_power_limit() -> None:
    assert found(summary(throttle_reasons_mean=0.4, throttle_reasons_max=4.0)) == {}
    assert found(summary(throttle_reasons_mean=0.4, throttle_reasons_max=1.0)) == {}
    assert found(summary(throttle_reasons_mean=0.05, throttle_reasons_max=64.0)) == {}


def test_xid_names_gpu_and_kind() -> None:
    rows = gpus({"xid_events": 0}, {"xid_events": 2})
    hardware = found(summary(xid_events=2, xid_event_max=79.0), rows)["xid_error"]
    assert hardware.sentence == "2 XID events on GPU 1; the largest code is 79 (GPU has fallen off the bus)."
    assert hardware.advice is not None
    assert "support staff" in hardware.advice
    program = found(summary(xid_events=1, xid_event_max=31.0), rows)["xid_error"]
    assert program.advice is not None
    assert "compute-sanitizer" in program.advice
    assert found(summary(xid_events=0, xid_max=79.0), rows) == {}  # sticky from before the job


def test_row_remapping() -> None:
    rows = gpus({"remapped_rows_uncorrectable_max": 1.0}, {"remapped_rows_correctable_max": 2.0})
    assert found(summary(), rows)["remapped_rows"].evidence == {
        "remapped_rows_uncorrectable": 1.0,
        "remapped_rows_correctable": 2.0,
    }
    failed = gpus({"remapped_rows_uncorrectable_max": 1.0, "row_remap_failure_max": 1.0})
    assert list(found(summary(row_remap_failure_max=1.0), failed)) == ["row_remap_failure"]


def _spinning(power: float = 70.0) -> pl.DataFrame:
    work, wait = 30, 40
    util = [1.0] * (work + wait)
    return minutes(
        util,
        util,
        tensor_active=[0.3] * work + [0.0] * wait,
        dram_active=[0.2] * work + [0.001] * wait,
        power_w=[400.0] * work + [power] * wait,
    )


def test_busy_waiting_is_told_from_work() -> None:
    waiting = found(summary(gpu_util_mean=1.0, gpu_util_max=1.0), minute_rows=_spinning())["busy_waiting"]
    assert waiting.severity == "problem"
    assert "From 30 min after the start, for 40 min" in waiting.sentence
    assert "at 70 W per GPU instead of 400 W" in waiting.sentence
    assert waiting.evidence["gpu_hours_idle"] == pytest.approx(4 * 40 / 60)


def test_busy_waiting_needs_its_counters() -> None:
    row = summary(gpu_util_mean=1.0, gpu_util_max=1.0)
    unmeasured = _spinning().with_columns(dram_active=pl.lit(None, dtype=pl.Float32))
    assert found(row, minute_rows=unmeasured) == {}
    steady = minutes([1.0] * 60, tensor_active=[0.0] * 60, dram_active=[0.0] * 60)
    assert found(row, minute_rows=steady) == {}  # never worked: another matter


def test_low_coverage_counts_silent_gpus() -> None:
    row = summary(coverage=0.5, samples=100, gpus_seen=3)
    assert found(row)["low_coverage"].sentence == (
        "50 % of the expected samples are present; 1 of 4 GPUs has none at all. What happened in the gaps is not known."
    )
    assert found(summary(coverage=0.8, samples=100, gpus_seen=4)) == {}


def test_no_samples_supersedes_what_follows_from_it() -> None:
    assert list(found(summary(samples=0, gpus_seen=0, coverage=0.0, elapsed_s=60.0))) == ["short_job"]


def test_ambiguous_job_gets_no_advice_on_numbers_that_may_not_be_its_own() -> None:
    row = summary(attribution="ambiguous", gpu_util_mean=0.0, gpu_util_max=0.0, xid_events=3, samples=5)
    result = found(row, used(0, 0))
    assert list(result) == ["ambiguous_attribution"]
    assert "prolog" in (result["ambiguous_attribution"].advice or "")


def test_short_and_coarse_jobs_are_noted() -> None:
    row = summary(elapsed_s=120.0, samples=12, time_precision_s=60.0)
    result = found(row)
    assert [*result] == ["short_job", "time_precision"]
    assert "ran for 2 min and has 12 samples" in result["short_job"].sentence
    assert found(summary(elapsed_s=120.0, state="RUNNING")) == {}


def test_every_check_has_one_code_title_and_advice_text() -> None:
    assert [check.code for check in CHECKS] == list(CODES)
    titles = [check.title for check in CHECKS]
    assert len(set(titles)) == len(titles)
    for check in CHECKS:
        assert set(check.evidence) <= set(EVIDENCE), check.code
        assert check.severity in SEVERITIES
        assert check.decide or check.job_class
    used = {check.family for check in CHECKS}
    assert {*FAMILIES, *(wider for of in FAMILIES.values() for wider in of)} <= used
    assert all(family not in families_around(wider) for family, of in FAMILIES.items() for wider in of)


def test_findings_are_ordered_by_severity() -> None:
    row = summary(gpu_util_mean=0.2, xid_events=1, coverage=0.5, samples=10)
    places = [SEVERITIES.index(finding.severity) for finding in findings_of(row, NO_GPUS, NO_MINUTES, LIMITS)]
    assert places == sorted(places)
    assert len(places) == 3


def test_frame_of_findings_keeps_everything() -> None:
    row = summary(gpu_util_mean=0.2, xid_events=1, xid_event_max=79.0)
    findings = findings_of(row, NO_GPUS, NO_MINUTES, LIMITS)
    table = findings_frame([(row, findings)])
    assert dict(table.schema) == {name: dtype for name, dtype in FINDINGS.schema.items() if name != "seq"}
    assert read_findings(table.reverse(), CODES) == findings
    assert json.loads(table["evidence"][0]) == {"xid_events": 1.0, "xid_event_max": 79.0}


def test_find_all_gives_each_job_its_own_rows() -> None:
    one = summary(job_key="a", job_id="1", gpu_util_mean=0.2)
    two = summary(job_key="b", job_id="2", gpu_util_mean=0.9)
    hang = minutes([0.9] * 30 + [0.0] * 60).with_columns(job_key=pl.lit("b"), job_id=pl.lit("2"))
    table = judge_summaries(frame(JOB_SUMMARIES, [one, two]), NO_GPUS, timelines_of(hang, idle_util=0.01), LIMITS)
    held = table.filter(pl.col("verdict") == "yes")
    assert held.select("job_key", "code").rows() == [("a", "low_utilisation"), ("b", "hung")]
    assert (
        table.group_by("job_key").len().get_column("len").to_list()
        == [sum(check.decide is not None for check in CHECKS)] * 2
    )
    assert judge_summaries(JOB_SUMMARIES.empty(), NO_GPUS, timelines_of(NO_MINUTES, idle_util=0.01), LIMITS).height == 0


_LEVEL = st.none() | st.floats(0, 1)


@given(
    levels=st.lists(_LEVEL, max_size=90),
    means=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    numbers=st.fixed_dictionaries(
        {}, optional={name: _LEVEL for name, dtype in JOB_SUMMARIES.schema.items() if dtype == pl.Float64}
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
        assert set(finding.evidence) <= set(check.evidence)
        assert (finding.title, finding.advice, finding.severity) == (check.title, check.advice, check.severity)


def test_what_is_less_specific_is_kept_with_the_code_that_covers_it() -> None:
    row = summary(gpu_util_mean=0.2, gpu_util_max=1.0, gpus_seen=4, samples=10, spatial_imbalance=0.75)
    all_of = {finding.code: finding for finding in verdicts_of(row, used(0.8, 0, 0, 0), NO_MINUTES, LIMITS)}
    assert all_of["one_gpu_of_many"].covered_by is None
    for code in ("gpus_never_used", "imbalanced_gpus", "low_utilisation"):
        assert (all_of[code].verdict, all_of[code].covered_by) == ("yes", "one_gpu_of_many")


def test_what_follows_from_another_finding_is_kept_with_its_code() -> None:
    idle = summary(gpu_util_mean=0.0, gpu_util_max=0.0, samples=10, hbm_request="80g", hbm_peak_fraction=0.02)
    all_of = {finding.code: finding for finding in verdicts_of(idle, used(0, 0), NO_MINUTES, LIMITS)}
    assert (all_of["low_memory"].verdict, all_of["low_memory"].covered_by) == ("yes", "idle_job")
    empty = summary(samples=0, gpus_seen=0, coverage=0.0, elapsed_s=60.0)
    all_of = {finding.code: finding for finding in verdicts_of(empty, NO_GPUS, NO_MINUTES, LIMITS)}
    assert (all_of["no_samples"].verdict, all_of["no_samples"].covered_by) == ("yes", "short_job")
    ambiguous = summary(attribution="ambiguous", elapsed_s=60.0)
    assert list(found(ambiguous)) == ["ambiguous_attribution", "short_job"]


def test_a_part_of_the_run_covers_what_is_found_of_the_whole_run_where_it_is_a_third_of_it() -> None:
    row = summary(gpu_util_mean=0.2, gpu_util_max=1.0, samples=10)
    assert list(found(row, NO_GPUS, minutes([0.9] * 30 + [0.0] * 90))) == ["hung"]
    assert list(found(row, NO_GPUS, minutes([0.3] * 80 + [0.0] * 40))) == ["hung"]
    assert list(found(row, NO_GPUS, minutes([0.2] * 100 + [0.0] * 20))) == ["hung", "low_utilisation"]


def test_two_periods_of_one_family_are_both_reported() -> None:
    row = summary(gpu_util_mean=0.5, gpu_util_max=1.0, samples=10)
    assert list(found(row, NO_GPUS, minutes([0.0] * 30 + [0.9] * 60 + [0.0] * 30))) == ["hung", "late_start"]


def test_nothing_is_denied_where_as_much_was_not_measured_as_it_takes_to_hide_it() -> None:
    row = summary(gpu_util_mean=0.9, gpu_util_max=1.0, samples=10, coverage=0.9)
    levels = [None] * 12 + [0.9] * 58 + [None] * 9 + [0.9] * 32 + [None] * 9
    verdicts = {f.code: f for f in verdicts_of(row, used(0.9, 0.9), minutes(levels), LIMITS)}
    assert verdicts["late_start"].verdict == "unknown"
    assert verdicts["late_start"].sentence == "Unknown: 12 min at the begin were not measured."
    assert verdicts["stalled"].verdict == verdicts["hung"].verdict == "no"
    assert verdicts["low_utilisation"].verdict == "no"
    assert verdicts["bursty"].sentence == "Unknown: 10 % of the expected samples are missing."
    assert verdicts["throttled"].needs == ("throttle_reasons",)
    verdicts = {f.code: f for f in verdicts_of(row | {"coverage": 0.4}, used(0.9, 0.9), minutes(levels), LIMITS)}
    assert verdicts["low_utilisation"].verdict == "unknown"


@given(st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_runs_hold_all_numbers_once(numbers: list[int]) -> None:
    again = [first + step for first, length in runs(numbers) for step in range(length)]
    assert again == numbers
