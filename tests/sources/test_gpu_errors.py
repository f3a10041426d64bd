"""Error counters of exporters and XIDs of the kernel log, from files to findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from in_process import run_well
from madelake import fill, held, job, summarized
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.job_report import read_job
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import GPU_SAMPLES, REJECTS
from tachograph.lake.delta import Lake
from tachograph.sources.kernel_log import xid_samples
from tachograph.sources.recognition import source_of
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
USERS = ("ann", "bob", "eve")
PCI = ("00000000:3B:00.0", "00000000:5E:00.0")
Level = Callable[[int], float]


def page_rows(page: str) -> tuple[dict[str, Any], set[str]]:
    """Return the one sample of a page without nulls, and the reasons of its rejects."""
    rows = SeriesRows(SeriesMemory(SeriesVocabulary()))
    rows.add_page(page.encode(), t=NOON, node="n1")
    parts = rows.parts()
    (sample,) = next(part.frame for part in parts if part.table == "gpu_samples").to_dicts()
    reasons = {reject.reason for part in parts for reject in part.rejects}
    return {name: value for name, value in sample.items() if value is not None}, reasons


@pytest.mark.parametrize("count", ["_COUNT", ""])
def test_parts_and_fallbacks_of_dcgm(count: str) -> None:
    name = 'DCGM_FI_DEV_{}{{gpu="0",UUID="GPU-a"}} {}\n'
    links = zip(("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY"), (1, 20, 300, 4000), strict=True)
    page = "".join(name.format(f"NVLINK_{kind}_ERROR{count}_TOTAL", value) for kind, value in links)
    # The volatile count goes first; a GPU that retires pages remaps no rows.
    values = {"ECC_SBE_VOL_TOTAL": 5, "ECC_SBE_AGG_TOTAL": 9, "ECC_DBE_AGG_TOTAL": 2,
              "RETIRED_SBE": 3, "RETIRED_DBE": 1}  # fmt: skip
    page += "".join(name.format(metric, value) for metric, value in values.items())
    sample, reasons = page_rows(page)
    assert {key: sample[key] for key in sample if key not in ("t", "node", "gpu")} == {
        "nvlink_errors": 4321, "ecc_sbe": 5, "ecc_dbe": 2,
        "remapped_rows_correctable": 3, "remapped_rows_uncorrectable": 1,
    }  # fmt: skip
    assert not reasons


@pytest.mark.parametrize(
    ("series", "xid"),
    [
        ((("", 0),), 0),
        ((("79", 2),), 79),
        ((("79", 0), ("31", 4)), 31),
        ((("94", 1), ("31", 4)), 94),
        ((("seventy", 1), ("31", 1)), 31),
        ((("1" * 400, 1), ("31", 1)), 31),
    ],
)
def test_xids_of_a_window_are_their_codes(series: tuple[tuple[str, int], ...], xid: int) -> None:
    line = 'DCGM_EXP_XID_ERRORS_COUNT{{gpu="0",UUID="GPU-a",window_size_in_ms="300000"{}}} {}\n'
    labels = [(f',xid="{code}"' if code else "", value) for code, value in series]
    sample, reasons = page_rows("".join(line.format(*each) for each in labels))
    assert sample["xid"] == xid
    assert reasons <= {"not_finite"}
    assert ("not_finite" in reasons) == any(code and len(code) > 6 for code, _ in series)


@pytest.mark.parametrize(
    ("shares", "bits"),
    [
        ({"ppt": 0, "processor_hot": 0}, 0),
        ({"ppt": 12.5, "processor_hot": 0}, 0x04),
        ({"socket_thermal": 3, "hbm_thermal": 40}, 0x20),  # one reason of two sensors
        ({"ppt": 1, "vr_thermal": 1, "socket_thermal": 1, "processor_hot": 100}, 0x6C),
    ],
)
@pytest.mark.parametrize("spelled", ["gpu_{}", "amd_gpu_{}"])
def test_amd_counts_and_reasons(shares: dict[str, float], bits: int, spelled: str) -> None:
    metric = f'{spelled}{{{{gpu_id="0",hostname="n1"}}}} {{}}\n'
    page = "".join(
        metric.format(f"violation_{reason}_residency_percentage", share)
        for reason, share in shares.items()
    )
    counts = {"ecc_correct_total": 8, "ecc_uncorrect_total": 1, "ecc_correct_xgmi_wafl": 2,
              "ecc_uncorrect_xgmi_wafl": 5}  # fmt: skip
    page += "".join(metric.format(name, count) for name, count in counts.items())
    sample, _ = page_rows(page)
    assert sample["throttle_reasons"] == bits
    assert (sample["ecc_sbe"], sample["ecc_dbe"], sample["nvlink_errors"]) == (8, 1, 7)


def test_ras_counts_of_omnistat_are_added_up() -> None:
    blocks = ("umc", "sdma", "gfx", "mmhub", "pcie_bif", "hdp", "xgmi_wafl")
    page = "".join(
        f'rocm_ras_{block}_{kind}_count{{card="0"}} {10**place}\n'
        for place, block in enumerate(blocks)
        for kind in ("correctable", "uncorrectable")
    )
    sample, _ = page_rows(page)
    assert (sample["ecc_sbe"], sample["ecc_dbe"]) == (111111, 111111)
    assert sample["nvlink_errors"] == 2000000


def recorded(metrics: dict[str, Level], minutes: int = 180) -> str:
    """Return a page with a value of GPU 0 a minute, stamped; GPU 1 stays at the first ones."""
    lines = []
    for gpu, pci in enumerate(PCI):
        labels = f'gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="{pci}",Hostname="n1"'
        for metric, level in {"GPU_UTIL": lambda _: 90, **metrics}.items():
            for minute in range(minutes):
                stamp = round((NOON + timedelta(minutes=minute)).timestamp() * 1000)
                value = level(0 if gpu else minute)
                lines.append(f"DCGM_FI_DEV_{metric}{{{labels}}} {value} {stamp}")
    return "\n".join(lines) + "\n"


def lake_of_three(folder: Path, page: str) -> Lake:
    """Return a lake in which three users held the GPUs of n1 one after the other, an hour each."""
    (folder / "page.prom").write_text(page)
    run_well(folder, "ingest page.prom")
    lake = Lake.open(str(folder / "lake"))
    begins = [(user, NOON + place * HOUR) for place, user in enumerate(USERS)]
    jobs = [job(user, begin, begin + HOUR, user=user, gpus=2) for user, begin in begins]
    allocations = [
        row for user, begin in begins for row in held(user, "n1", (0, 1), begin, begin + HOUR)
    ]
    fill(lake, {"jobs": jobs, "allocations": allocations})
    return lake


def verdicts(lake: Lake, user: str) -> dict[str, str]:
    """Return {code: sentence} of the findings that hold for the job of a user."""
    report = read_job(lake, user, now=NOON, configuration=Configuration())
    return {one.code: one.sentence for one in report.verdicts if one.verdict == "yes"}


def test_errors_are_those_of_the_job_in_which_they_occurred(tmp_path: Path) -> None:
    second = range(60, 120)
    lake = lake_of_three(tmp_path, recorded({
        "ECC_SBE_VOL_TOTAL": lambda minute: 7 + 3 * (minute >= 90),
        "ECC_DBE_VOL_TOTAL": lambda minute: 1 + (minute >= 150),
        "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": lambda minute: 10,
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL": lambda minute: 5 + (minute >= 100),
        "XID_ERRORS": lambda minute: 74 * (minute in second and minute >= 100),
    }))  # fmt: skip
    _, jobs = summarized(lake)
    new = {name: [jobs[user][f"{name}_max"] for user in USERS]
           for name in ("ecc_sbe", "ecc_dbe", "nvlink_errors")}  # fmt: skip
    assert new == {"ecc_sbe": [0, 3, 0], "ecc_dbe": [0, 0, 1], "nvlink_errors": [0, 1, 0]}
    ann, bob, eve = (verdicts(lake, user) for user in USERS)
    errors = {"ecc_corrected", "nvlink_errors", "gpu_memory_fault", "xid_error"}
    assert not errors & ann.keys()
    assert errors & bob.keys() == {"ecc_corrected", "nvlink_errors", "xid_error"}
    assert bob["ecc_corrected"] == "3 corrected ECC errors during the job on GPU 0."
    assert bob["nvlink_errors"] == "1 NVLink or XGMI error during the job on GPU 0."
    assert errors & eve.keys() == {"gpu_memory_fault"}
    assert eve["gpu_memory_fault"] == "GPU 0: 1 uncorrectable ECC error during the job."
    assert [jobs[user]["health"] for user in USERS][1:] == ["WARN", "CRIT"]
    report = read_job(lake, "bob", now=NOON, configuration=Configuration())
    assert report.company.handovers == (
        "n1 GPU 0 had errors; it was held by job ann (ann) before, job eve (eve) after.",
    )
    assert report.company.handovers[0] in report.caveats
    # A user sees that the jobs of others were there, and nothing else of them.
    view = ServedLake(lake, Configuration()).view(Viewer("bob", Role.USER))
    other = "a job of another user"
    assert view.job("bob").report.company.handovers == (
        f"n1 GPU 0 had errors; it was held by {other} before, {other} after.",
    )
    (error,) = view.opened.node("n1").report.errors.to_dicts()
    assert (error["job"], error["user_before"], error["user_after"]) == ("bob", None, None)


@given(
    levels=st.tuples(*[st.integers(0, 2**40)] * 3),
    steps=st.lists(st.integers(0, 59), max_size=2),
)
@settings(max_examples=5, deadline=None)
def test_counters_that_stay_during_a_job_give_no_finding(
    levels: tuple[int, int, int], steps: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Counters change only while nobody holds the GPU: before the first and after the last job."""
    names = ("ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL")

    def growing_late(level: int) -> Level:
        return lambda minute: level + sum(minute >= 185 + step for step in steps)

    metrics = {name: growing_late(level) for name, level in zip(names, levels, strict=True)}
    page = recorded(metrics, minutes=250)
    lake = lake_of_three(tmp_path_factory.mktemp("constant"), page)
    _, jobs = summarized(lake)
    for user in USERS:
        assert jobs[user]["health"] != "CRIT"
        assert (
            not {"ecc_corrected", "nvlink_errors", "gpu_memory_fault"} & verdicts(lake, user).keys()
        )


def entry(message: Any, at: datetime, **changed: Any) -> dict[str, Any]:
    """Return an entry of the journal, as `journalctl -o json` writes it."""
    stamp = str(round(at.timestamp() * 1e6))
    entries = {"__REALTIME_TIMESTAMP": stamp, "_HOSTNAME": "n1.example.org",
               "_TRANSPORT": "kernel", "MESSAGE": message, "PRIORITY": "3"}  # fmt: skip
    return {name: value for name, value in (entries | changed).items() if value is not None}


def xid_line(code: int, name: str = "python3", pci: str = "0000:3b:00") -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, pid=4711, name={name}, Ch 00000008"


FORGED = "NVRM: Xid (PCI:0000:5e:00): 79, pid=1, name=x"


def test_lines_of_the_kernel_log_are_events_of_their_gpu(tmp_path: Path) -> None:
    lake = lake_of_three(tmp_path, recorded({}))
    at = [NOON + timedelta(minutes=minute, microseconds=17) for minute in (10, 70, 71, 71, 130)]
    lines = [
        entry(xid_line(13, name=FORGED), at[0]),
        entry(xid_line(31, name="\u202e\u0000';DROP TABLE"), at[1]),
        entry(xid_line(31, pci="00000000:3B:00.0"), at[2]),  # again: another event
        entry([*xid_line(94, name="").encode(), 0xFF], at[3] + timedelta(seconds=1)),
        entry(FORGED, at[4], _TRANSPORT="syslog"),  # any user can write this one
        entry(f"python3[1]: {FORGED}", at[4]),
        entry("NVRM: Xid (PCI:0000:5e:00): 7999999", at[4]),
        entry("usb 1-1: new device", at[4]),
        entry(xid_line(48, pci="0000:af:00"), at[4]),
        entry(xid_line(48), at[4], _HOSTNAME=None),
        entry(xid_line(48), at[4], __REALTIME_TIMESTAMP="1e9"),
    ]
    path = tmp_path / "kernel.json"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert source_of(path) == "kernel-log"
    run_well(tmp_path, "ingest kernel.json")
    _, jobs = summarized(lake)
    assert [jobs[user]["xid_events"] for user in USERS] == [1, 3, None]
    assert [jobs[user]["xid_event_max"] for user in USERS] == [13, 94, None]
    assert "XID event on GPU 0" in verdicts(lake, "ann")["xid_error"]
    rejects = lake.latest(REJECTS).filter(origin="kernel.json")
    rows = lake.scan(GPU_SAMPLES).collect().drop_nulls("xid")
    assert set(rows.get_column("gpu")) == {0}
    assert rows.filter(xid=0).height == rows.filter(rows["xid"] > 0).height == 4
    assert {row["reason"]: row["removed"] for row in rejects.to_dicts()} == {
        "unknown_address": 1, "no_node": 1, "unreadable_time": 1,
    }  # fmt: skip


def test_a_kernel_log_without_known_addresses_says_what_to_ingest(tmp_path: Path) -> None:
    Lake.create(str(tmp_path / "lake"))
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(entry(xid_line(79), NOON)))
    for _ in range(2):  # it is not taken for read
        done = run_well(tmp_path, "ingest kernel.json", code=4)
        assert "n1: no GPU with PCI address 0000:3b:00 in the lake" in done.stderr
        assert "first ingest telemetry with PCI addresses" in done.stderr
    (tmp_path / "page.prom").write_text(recorded({}, minutes=3))
    run_well(tmp_path, "ingest page.prom")
    run_well(tmp_path, "ingest kernel.json")
    lake = Lake.open(str(tmp_path / "lake"))
    assert lake.scan(GPU_SAMPLES).collect().drop_nulls("xid")["xid"].to_list() == [0, 79]


def _texts() -> Iterator[st.SearchStrategy[object]]:
    yield st.text()
    yield st.lists(st.integers(-1, 300))
    yield st.none()
    yield st.sampled_from([xid_line(79), FORGED]).flatmap(
        lambda line: st.text(max_size=9).map(lambda text: text + line)
    )


@given(message=st.one_of(*_texts()), host=st.one_of(st.none(), st.text()))
@settings(deadline=None)
def test_any_message_is_read_or_no_line(message: object, host: str | None) -> None:
    part, lines = xid_samples([entry(message, NOON, _HOSTNAME=host), 3, None])
    begins = isinstance(message, str) and message.startswith("NVRM: Xid (PCI:")
    assert lines == begins or not isinstance(message, str)
    assert part.frame.height == 2 * (part.rows_used or 0)
