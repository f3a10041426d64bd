"""`tachograph lab classify` on an analyzed lake of two jobs of half an hour."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from made_jobs import RESTING, WORKING, phases

from jobframes import START
from madelake import held, job, make_lake, summarized
from tachograph.cli import main


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Job 1 works on both of its GPUs, job 2 on one of two."""
    end = START + timedelta(minutes=30)
    samples = [
        {"t": START + timedelta(minutes=place, seconds=second), "node": node, "gpu": gpu, **each}
        for node, idle in (("n1", None), ("n2", 1))
        for gpu in (0, 1)
        for place, each in enumerate(phases((30, RESTING if gpu == idle else WORKING)))
        if each is not None
        for second in (0, 30)
    ]
    folder = tmp_path_factory.mktemp("classify") / "lake"
    made = make_lake(
        folder,
        gpu_samples=samples,
        jobs=[job("1", START, end, gpus=2, user="ada"), job("2", START, end, gpus=2, user="bob")],
        allocations=[*held("1", "n1", (0, 1), START, end), *held("2", "n2", (0, 1), START, end)],
    )
    summarized(made)
    return folder


def classify(
    lake: Path, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    code = main(["lab", "classify", "--lake", str(lake), "--quiet", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_row_per_job_and_class_and_the_counts(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = classify(lake, capsys, "--all", "--class", "job_hang", "--class", "idle_gpus")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert [line[:3] for line in lines if line[1:2] == ["idle_gpus"]] == [
        ["1", "idle_gpus", "no"],
        ["2", "idle_gpus", "yes"],
    ]
    hangs = [line[0] for line in lines if line[1:3] == ["job_hang", "no"]]
    assert sorted(hangs) == ["1", "2"]
    assert "the job ran 30 min; a hang is 1 h or more." in out
    assert ["job_hang", "0", "2", "0"] in lines


def test_what_is_not_so_is_counted_and_listed_of_named_jobs_only(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = classify(lake, capsys, "--class", "job_hang", "--class", "idle_gpus")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert [line[:3] for line in lines if line[:1] in (["1"], ["2"])] == [["2", "idle_gpus", "yes"]]
    assert ["job_hang", "0", "2", "0"] in lines
    _, named, _ = classify(lake, capsys, "1", "--class", "job_hang")
    assert ["1", "job_hang", "no"] in [line.split()[:3] for line in named.splitlines()]


def test_chosen_jobs_as_json(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = classify(lake, capsys, "1", "2", "--user", "ada", "--json")
    assert code == 0
    printed = json.loads(out)
    assert {row["display_id"] for row in printed["verdicts"]} == {"1"}
    assert {row["code"] for row in printed["verdicts"]} == {
        "job_hang",
        "cold_start",
        "stall",
        "idle_gpus",
        "stable",
    }
    hang = next(row for row in printed["verdicts"] if row["code"] == "job_hang")
    assert {check["name"] for check in hang["checks"]} >= {"power", "sm_active"}
    assert {"code": "job_hang", "yes": 0, "no": 1, "unknown": 0} in printed["counts"]


def test_the_present_configuration_counts(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "site.toml"
    config.write_text('[classes]\ncharacteristics = { job_hang = ["power"] }\n', encoding="utf-8")
    _, out, _ = classify(
        lake, capsys, "1", "--class", "job_hang", "--json", "--config", str(config)
    )
    (hang,) = json.loads(out)["verdicts"]
    assert "power" in {check["name"] for check in hang["checks"]}
    assert "sm_active" not in {check["name"] for check in hang["checks"]}


def test_what_does_not_exist_is_refused(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = classify(lake, capsys, "--class", "job_hung")
    assert code != 0
    assert "job_hang" in err
    code, _, err = classify(lake, capsys, "77")
    assert code != 0
    assert "77" in err
