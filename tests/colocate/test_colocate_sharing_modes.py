"""Every answer that `tachograph share colocate` can give, with what it says: a pair of made-up
kinds for each.
"""

from __future__ import annotations

from typing import Any

import pytest
from colocate_jobs import job, lake_of

from tachograph.annexes.share.advice import SHARING_MODES
from tachograph.annexes.share.colocation import ColocateReport, build_colocate_report
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.sharing_text import colocate_lines
from tachograph.catalog.config import InterferenceOptions, Thresholds
from tachograph.report.lines import to_text

# busy while an SM works, all the time, on few SMs: so narrow that a part of the GPU costs little
# even if they are wide
NARROW = {
    "gr_engine_active_mean": 0.95,
    "sm_active_mean": 0.06,
    "sm_occupancy_mean": 0.01,
    "tensor_active_mean": 0.0,
}
PAIRS: dict[str, dict[str, Any]] = {
    # little of everything, and busy for a small part of the time
    "mps": {
        "gr_engine_active_mean": 0.2,
        "sm_active_mean": 0.1,
        "fp32_active_mean": 0.02,
        "dram_active_mean": 0.02,
    },
    # the FP64 pipe of the SMs they are on: 0.036 / 0.06 each
    "mps_share": NARROW
    | {"fp64_active_mean": 0.036, "dram_active_mean": 0.05, "fp32_active_mean": 0.0},
    # 0.38 / 0.95 of the peak each, of which 80 % can be achieved
    "mig": NARROW | {"dram_active_mean": 0.38, "fp32_active_mean": 0.006},
    # the tensor cores while busy, which is rare
    "time_slicing": {
        "gr_engine_active_mean": 0.09,
        "sm_active_mean": 0.081,
        "sm_occupancy_mean": 0.02,
    }
    | {"tensor_active_mean": 0.06, "dram_active_mean": 0.005, "fp32_active_mean": 0.0},
    # the same, all the time
    "no": {"gr_engine_active_mean": 0.9, "sm_active_mean": 0.81, "sm_occupancy_mean": 0.2}
    | {"tensor_active_mean": 0.6, "dram_active_mean": 0.4, "fp32_active_mean": 0.0},
}
SAID = {
    "mps": "MPS: total demand:",
    "mps_share": "MPS with parts of the SMs, 50 % each, in proportion to what they need, so that no "
    "SM is shared: "
    "expected 1.00x each if their kernels leave the other SMs idle, 1.06x each if they are as "
    "wide as the GPU.",
    "mig": "MIG keeps memory bandwidth apart: 3g.40gb and 3g.40gb are the smallest slices that "
    "hold them; expected "
    "1.00x each if their kernels leave the other SMs idle, 1.08x each if they are as wide as "
    "the GPU.",
    "time_slicing": "Time-slicing: share of their busy time in which another works, too: 9 % each; "
    "expected 1.09x each.",
    "no": "No sharing mode is expected to keep all of them below 1.10x.",
}
# what is said of the ways that were passed over
PASSED = {
    "mps": (),
    "mps_share": ("MPS alone: demand above the limit: FP64 pipe 120 %, limit 90 %",),
    "mig": ("MPS alone: demand above the limit: memory bandwidth 100 %, limit 70 %",),
    "time_slicing": ("MPS alone: demand above the limit:", "MPS with parts of the SMs, 50 % each"),
    "no": (
        "MPS alone: demand above the limit:",
        "Time-slicing: share of their busy time in which another works, too: 90 % each",
    ),
}


def report(mode: str, **given: Any) -> ColocateReport:
    summaries, verdicts = lake_of(*(job(n, **PAIRS[mode]) for n in (1, 2)))
    settings = InterferenceOptions()
    return build_colocate_report(
        summaries,
        verdicts,
        settings=settings,
        thresholds=Thresholds(),
        calibration=Calibration(achievable_share=0.8),
        **given,
    )


def printed(found: ColocateReport) -> str:
    return " ".join(to_text(colocate_lines(found, width=110)).split())


@pytest.mark.parametrize("mode", PAIRS)
def test_every_answer_comes_out_and_shows_why(mode: str) -> None:
    assert set(PAIRS) == set(SAID) == set(PASSED) == set(SHARING_MODES)
    found = report(mode, pair=("ann/train", "ann/train"))
    (pair,) = found.chosen
    text = printed(found)
    assert pair.advice.mode == mode, text
    assert not pair.advice.safe
    assert SAID[mode] in text
    assert all(sentence in text for sentence in PASSED[mode])
    assert "Issue slots were not measured: pipes need at least" in text
    assert "To decide, profile the kernels of both: `ncu --set full -o report PROGRAM`" in text


@pytest.mark.parametrize("mode", PAIRS)
def test_the_table_proposes_all_but_do_not(mode: str) -> None:
    found = report(mode)
    text = printed(found)
    if mode == "no":
        assert not found.proposals
        assert "1 pair estimated, none of them good enough; limited by: tensor cores 1." in text
        return
    (pair,) = found.proposals
    shown = {
        "mps": "MPS",
        "mps_share": "MPS 50 % / 50 %",
        "mig": "MIG 3g.40gb / 3g.40gb",
        "time_slicing": "time-slicing",
    }
    assert (
        f"itself 1 x A100 SXM 80GB {shown[mode]} {pair.advice.slowdowns[0]:.2f}x "
        f"{pair.advice.conservative[0]:.2f}x"
    ) in text
    assert "No pair is safe until its kernels are profiled" in text
