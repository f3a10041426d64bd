"""How to enable what is missing: for every counter and source, true of the exporter's files."""

from __future__ import annotations

import re

import pytest

from tachograph.annexes.watch.live.snapshot import SourceInfo
from tachograph.annexes.watch.live.unsupported import (
    CounterFix,
    absent_counters,
    counter_fix,
    has_profiling,
    how_to_enable,
    unsupported_counters,
    unsupported_lines,
    unsupported_summary,
)
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS_BY_NAME
from tachograph.judge.workload.classes import DECIDING
from tachograph.sources.exporter_mapping import ExporterMapping
from tachograph.sources.exporters import exporter_mappings

PROFILED = {
    name for name, row in COUNTERS_BY_NAME.items() if (row.dcgm_name or "").startswith("PROF_")
}
SOURCES = (
    "nvml",
    "dcgm-exporter",
    "prometheus",
    "dmon",
    "recording",
    "simulated",
    *(m.name for m in exporter_mappings()),
)
# counters that the default file of dcgm-exporter requests none of
NOT_BY_DEFAULT = frozenset(
    {
        *(
            "sm_active",
            "sm_occupancy",
            "fp16_active",
            "fp32_active",
            "fp64_active",
            "throttle_reasons",
        ),
        *("tensor_hmma_active", "tensor_imma_active", "tensor_dfma_active"),
        *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
    }
)


@pytest.mark.parametrize("source", SOURCES)
def test_every_counter_has_its_words(source: str) -> None:
    for counter in COUNTER_NAMES:
        for mig in (False, True):
            message = how_to_enable(counter, source, mig=mig)
            assert bool(message) == (counter_fix(counter, source, mig=mig) is not CounterFix.NONE)
            assert "{" not in message


def test_profiling_that_is_asked_for_and_gives_nothing_is_another_thing() -> None:
    assert "SYS_ADMIN" in how_to_enable("dram_active", "dcgm-exporter")
    assert "SYS_ADMIN" in how_to_enable("sm_active", "dmon")
    assert counter_fix("sm_active", "dcgm-exporter") is CounterFix.CSV


def test_of_slices_nothing_can_be_done_about_whole_gpus() -> None:
    assert how_to_enable("gpu_util", "dcgm-exporter", mig=True) == ""
    assert counter_fix("sm_active", "nvml", mig=True) is CounterFix.HOPPER


def test_counters_with_the_same_remedy_share_a_line() -> None:
    about = SourceInfo(
        "dcgm-exporter",
        "",
        unsupported=unsupported_counters(set(COUNTER_NAMES) - PROFILED, "dcgm-exporter"),
    )
    reported = unsupported_lines(about)
    assert len(reported) == 2
    assert reported[0].startswith("unsupported: sm_active, sm_occupancy, fp16_active, ")
    assert (
        "; add DCGM_FI_PROF_SM_ACTIVE, DCGM_FI_PROF_SM_OCCUPANCY, DCGM_FI_PROF_PIPE_FP16"
        in reported[0]
    )
    assert reported[1].startswith("unsupported: gr_engine_active, tensor_active, dram_active, ")
    assert "; DCGM profiling reports nothing" in reported[1]


@pytest.mark.parametrize("source", ["dcgm-exporter", "prometheus", "dmon"])
def test_profiling_that_tells_one_counter_is_not_said_to_give_nothing(source: str) -> None:
    about = SourceInfo(
        source,
        "",
        unsupported=unsupported_counters(set(COUNTER_NAMES) - PROFILED | {"dram_active"}, source),
    )
    assert has_profiling(about)
    assert not any("reports nothing" in line for line in unsupported_lines(about))
    (line,) = unsupported_lines(about)
    assert "tensor_active" in line
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in line
    assert ("does not count" in line) == (source == "dmon")


def test_what_a_source_says_itself_is_told_as_it_says_it() -> None:
    about = SourceInfo(
        "nvml",
        "",
        unsupported={"sm_active": "needs driver 535", "xid": "", "fp64_active": "needs driver 535"},
    )
    assert unsupported_lines(about) == [
        "unsupported: sm_active, fp64_active; needs driver 535",
        "unsupported: xid",
    ]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "left_out", [frozenset(COUNTER_NAMES), PROFILED, NOT_BY_DEFAULT, {"xid"}, {"tensor_active"}]
)
def test_the_summary_is_short(source: str, left_out: frozenset[str]) -> None:
    about = SourceInfo(
        source, "", unsupported=unsupported_counters(set(COUNTER_NAMES) - left_out, source)
    )
    assert sum(map(len, unsupported_summary(about))) < 600
    assert all(len(line) < 400 for line in unsupported_summary(about))


OTHERS = [mapping for mapping in exporter_mappings() if mapping.name != "dcgm-exporter"]


@pytest.mark.parametrize("mapping", OTHERS, ids=lambda mapping: mapping.name)
def test_other_exporters_get_no_advice_for_dcgm(mapping: ExporterMapping) -> None:
    missing = unsupported_counters([], "dcgm-exporter", exporters=[mapping.name])
    about = SourceInfo("dcgm-exporter", "", unsupported=missing, exporters=(mapping.name,))
    said = " ".join([*unsupported_lines(about), *unsupported_summary(about), *missing.values()])
    assert not re.search("DCGM|dcgm-exporter|NVML|Hopper|CSV", said)
    unnamed = set(COUNTER_NAMES) - readable_of(mapping) - set(DECIDING)
    assert not unnamed & set(re.split(r"[^a-z0-9_]+", said))
    readable = readable_of(mapping)
    assert {name for name, how in missing.items() if how} == readable
    assert all(mapping.name in missing[name] for name in readable)
    assert absent_counters(about) == set(COUNTER_NAMES) - readable
    fields = [
        name
        for line in unsupported_lines(about)
        if " report " in line
        for name in line.split(" report ")[1].split(", ")
    ]
    assert len(fields) == len(set(fields))


def readable_of(mapping: ExporterMapping) -> set[str]:
    return {given[0] for given in mapping.metrics.values()} & set(COUNTER_NAMES)


@pytest.mark.parametrize("source", ["dcgm-exporter", "prometheus"])
def test_profiling_comes_before_the_lines_that_need_it(source: str) -> None:
    about = SourceInfo(
        source, "", unsupported=unsupported_counters(set(COUNTER_NAMES) - PROFILED, source)
    )
    first, second = unsupported_summary(about)
    assert (
        "for workload classes: DCGM profiling reports nothing; it needs its lines in the CSV "
        "file, a data-"
    ) in first
    assert second.startswith(
        "and add DCGM_FI_PROF_SM_ACTIVE, DCGM_FI_PROF_PIPE_FP64_ACTIVE, "
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE, DCGM_FI_PROF_PIPE_FP16_ACTIVE to the CSV file"
    )


def test_dcgm_has_a_metric_for_every_counter_of_a_gpu() -> None:
    for source in ("nvml", "dcgm-exporter", "dmon", "recording"):
        assert (
            absent_counters(SourceInfo(source, "", unsupported=unsupported_counters([], source)))
            == frozenset()
        )


def test_a_field_that_is_there_is_not_to_be_added() -> None:
    missing = unsupported_counters(["gpu_util"], "dcgm-exporter", named=["gpu_util", "sm_active"])
    assert missing["sm_active"] == "no usable value in its metric"
    about = SourceInfo("dcgm-exporter", "", unsupported=missing)
    assert not any("DCGM_FI_PROF_SM_ACTIVE" in line for line in unsupported_lines(about))
