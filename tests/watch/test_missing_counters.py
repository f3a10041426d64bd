"""How to enable what is missing: for every counter and source, true of the exporter's files, short for screens."""

from __future__ import annotations

import pytest

from tachograph.counters import BY_NAME, NAMES
from tachograph.live.missing import Remedy, blind, brief, csv_lines, how, lines, profiles, remedy
from tachograph.live.source import About

PROFILED = {name for name, row in BY_NAME.items() if (row.dcgm_name or "").startswith("PROF_")}
SOURCES = ("nvml", "dcgm-exporter", "prometheus", "dmon", "recording", "simulated")


@pytest.mark.parametrize("source", SOURCES)
def test_every_counter_has_its_words(source: str) -> None:
    for counter in NAMES:
        for mig in (False, True):
            assert 0 < len(brief(counter, source, mig=mig)) <= 14
            said = how(counter, source, mig=mig)
            assert bool(said) == (remedy(counter, source, mig=mig) is not Remedy.NONE)
            assert "{" not in said


def test_the_line_for_the_exporter_is_the_dcgm_field() -> None:
    for counter in ("sm_active", "fp64_active", "throttle_reasons", "gpu_util"):
        assert f"DCGM_FI_{BY_NAME[counter].dcgm_name} " in how(counter, "dcgm-exporter") + " "


def test_profiling_that_is_asked_for_and_gives_nothing_is_another_thing() -> None:
    assert "SYS_ADMIN" in how("dram_active", "dcgm-exporter")
    assert "SYS_ADMIN" in how("sm_active", "dmon")
    assert remedy("sm_active", "dcgm-exporter") is Remedy.CSV


def test_prometheus_may_have_dropped_it() -> None:
    assert "metric_relabel_configs" in how("sm_active", "prometheus")


def test_of_slices_nothing_can_be_done_about_whole_gpus() -> None:
    assert how("gpu_util", "dcgm-exporter", mig=True) == ""
    assert brief("pcie_rx_bytes_per_s", "nvml", mig=True) == "not of MIG"
    assert remedy("sm_active", "nvml", mig=True) is Remedy.HOPPER


def test_nvml_needs_newer_gpus_for_some_counters_only() -> None:
    assert "Hopper" in how("tensor_active", "nvml")
    assert "dcgm-exporter" in how("tensor_active", "nvml")
    assert how("power_w", "nvml") == ""


def test_lines_of_the_csv_file_have_three_fields() -> None:
    for line in csv_lines(NAMES):
        field, kind, help_text = line.split(", ", 2)
        assert field.startswith("DCGM_FI_")
        assert kind in ("gauge", "counter")
        assert "," not in help_text
    assert csv_lines(["no_such"]) == ()


def test_a_source_is_blind_to_what_it_does_not_tell() -> None:
    missing = blind(set(NAMES) - {"sm_active", "xid"}, "dcgm-exporter")
    assert list(missing) == ["sm_active", "xid"]


def test_counters_with_the_same_remedy_share_a_line() -> None:
    about = About("dcgm-exporter", "", blind=blind(set(NAMES) - PROFILED, "dcgm-exporter"))
    told = lines(about)
    assert len(told) == 2
    assert told[0].startswith("does not tell sm_active, sm_occupancy, fp16_active, ")
    assert ": add DCGM_FI_PROF_SM_ACTIVE, DCGM_FI_PROF_SM_OCCUPANCY, DCGM_FI_PROF_PIPE_FP16" in told[0]
    assert told[1].startswith("does not tell gr_engine_active, tensor_active, dram_active, ")
    assert ": DCGM's profiling gives nothing" in told[1]


@pytest.mark.parametrize("source", ["dcgm-exporter", "prometheus", "dmon"])
def test_profiling_that_tells_one_counter_is_not_said_to_give_nothing(source: str) -> None:
    about = About(source, "", blind=blind(set(NAMES) - PROFILED | {"dram_active"}, source))
    assert profiles(about)
    assert not any("gives nothing" in line for line in lines(about))
    (line,) = lines(about)
    assert "tensor_active" in line
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in line
    assert ("does not count" in line) == (source == "dmon")
    assert brief("tensor_active", source, profiles=True) == ("not counted" if source == "dmon" else "exporter CSV")


def test_what_is_not_known_yet_says_nothing_of_profiling() -> None:
    assert not profiles(About("dmon", ""))


def test_what_a_source_says_itself_is_told_as_it_says_it() -> None:
    about = About("nvml", "", blind={"sm_active": "needs driver 535", "xid": "", "fp64_active": "needs driver 535"})
    assert lines(about) == ["does not tell sm_active, fp64_active: needs driver 535", "does not tell xid"]
