"""How to enable what is missing: for every counter and source, true of the exporter's files."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest
from syrupy.assertion import SnapshotAssertion

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
NOT_BY_DEFAULT = {
    *("sm_active", "sm_occupancy", "fp16_active", "fp32_active", "fp64_active"),
    *("tensor_hmma_active", "tensor_imma_active", "tensor_dfma_active", "throttle_reasons"),
    *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
}


def lacking(source: str, counters: Collection[str]) -> SourceInfo:
    """A source without some counters."""
    supported = set(COUNTER_NAMES) - set(counters)
    return SourceInfo(source, "", unsupported=unsupported_counters(supported, source))


@pytest.mark.parametrize("source", SOURCES)
def test_every_counter_has_its_words(source: str) -> None:
    for counter in COUNTER_NAMES:
        for mig in (False, True):
            message = how_to_enable(counter, source, mig=mig)
            assert bool(message) == (counter_fix(counter, source, mig=mig) is not CounterFix.NONE)
            assert "{" not in message


# what a source may lack: everything, its profiling, all of that but one counter, what the default
# file of dcgm-exporter has not, or one counter
LACKING: dict[str, Collection[str]] = {
    "all": COUNTER_NAMES,
    "profiling": PROFILED,
    "profiling but one": PROFILED - {"dram_active"},
    "not by default": NOT_BY_DEFAULT,
    "xid": {"xid"},
    "tensor": {"tensor_active"},
}


@pytest.mark.parametrize("source", ["nvml", "dcgm-exporter", "prometheus", "dmon"])
@pytest.mark.parametrize("name", LACKING)
def test_what_is_missing_is_printed_with_its_remedy(
    name: str, source: str, snapshot: SnapshotAssertion
) -> None:
    """Counters with the same remedy share a line, and profiling is first."""
    about = lacking(source, LACKING[name])
    lines = [*unsupported_lines(about), "", *unsupported_summary(about)]
    assert "\n".join(lines) == snapshot
    assert has_profiling(about) == bool(PROFILED - set(LACKING[name]))


@pytest.mark.parametrize("source", SOURCES)
def test_the_summary_is_short(source: str) -> None:
    for counters in LACKING.values():
        assert sum(map(len, unsupported_summary(lacking(source, counters)))) < 600


def test_of_slices_nothing_can_be_done_about_whole_gpus() -> None:
    assert how_to_enable("gpu_util", "dcgm-exporter", mig=True) == ""
    assert counter_fix("sm_active", "nvml", mig=True) is CounterFix.HOPPER


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


def test_dcgm_has_a_metric_for_every_counter_of_a_gpu() -> None:
    for source in ("nvml", "dcgm-exporter", "dmon", "recording"):
        assert absent_counters(lacking(source, COUNTER_NAMES)) == frozenset()


def test_a_field_that_is_there_is_not_to_be_added() -> None:
    missing = unsupported_counters(["gpu_util"], "dcgm-exporter", named=["gpu_util", "sm_active"])
    assert missing["sm_active"] == "no usable value in its metric"
    about = SourceInfo("dcgm-exporter", "", unsupported=missing)
    assert not any("DCGM_FI_PROF_SM_ACTIVE" in line for line in unsupported_lines(about))
