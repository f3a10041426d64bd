"""`accuracy` and `tune` as they are called: on one small simulated lake, which `accuracy --keep`
leaves.
"""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tachograph.annexes.lab.accuracy import truth_of, with_keys
from tachograph.annexes.lab.commands.classify import classified
from tachograph.annexes.lab.tune.configuration import check_target, to_toml
from tachograph.catalog import config
from tachograph.catalog.errors import UsageError
from tachograph.cli import main
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries

pytestmark = pytest.mark.slow  # a simulated cluster is analyzed, which takes long

JOBS = 160


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `accuracy` left, and what it printed, in printed.json."""
    folder = tmp_path_factory.mktemp("accuracy")
    patch = pytest.MonkeyPatch()
    with patch.context() as inside, (folder / "printed.json").open("w", encoding="utf-8") as out:
        inside.setattr("sys.stdout", out)
        command = f"lab accuracy --jobs {JOBS} --seed 5 --json --keep"
        assert main([*command.split(), str(folder / "kept")]) == 0
    return folder


@pytest.fixture
def accuracy(kept: Path) -> Any:
    """What it printed, read anew: a test may change its own."""
    return json.loads((kept / "printed.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def truth(kept: Path) -> pl.DataFrame:
    lake = Lake.open(str(kept / "kept" / "lake"))
    return with_keys(
        pl.read_parquet(kept / "kept" / "cluster" / "truth" / "classes.parquet"),
        read_summaries(lake),
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def labels(accuracy: Any, truth: pl.DataFrame, tmp_path: Path) -> Path:
    """The truth as a file of labels, as a person would write it."""
    path, names = tmp_path / "labels.csv", truth.select("job_key", "display_id")
    with path.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["job_id", "class", "label"])
        for each in accuracy["classes"]:
            of_class = truth_of(truth, each["class"]).drop_nulls().join(names, on="job_key")
            for job_id, holds in of_class.select("display_id", "truth").iter_rows():
                writer.writerow([job_id, each["class"], "yes" if holds else "no"])
    return path


def test_accuracies_are_those_of_the_classes_of_stored_minutes(
    kept: Path, accuracy: Any, truth: pl.DataFrame
) -> None:
    lake = Lake.open(str(kept / "kept" / "lake"))
    site = config.load(str(kept / "kept" / "cluster" / "tachograph.toml"), {})
    verdicts = classified(lake, read_summaries(lake), site, lambda *_: None)
    verdict_of = {
        (row["job_key"], row["code"]): row["verdict"] for row in verdicts.iter_rows(named=True)
    }
    assert {each["class"] for each in accuracy["classes"]} == {
        *("job_hang", "cold_start", "stall", "idle_nodes", "idle_gpus", "stable"),
        *("job_hang_host", "cold_start_host", "stall_host", "idle_nodes_host"),
    }
    # Judged on demand only.
    stored = [each for each in accuracy["classes"] if each["class"] != "idle_gpus"]
    for each in stored:
        code = each["class"]
        column = code if code in truth.columns else code.removesuffix("_host")
        pairs = [
            (row[column], verdict_of[row["job_key"], code])
            for row in truth.iter_rows(named=True)
            if row["known"] and (row["job_key"], code) in verdict_of and row[column] is not None
        ]
        assert each["jobs"] == len(pairs)
        assert each["positives"] == sum(holds for holds, _ in pairs)
        assert each["true_positives"] == pairs.count((True, "yes"))
        assert each["false_positives"] == pairs.count((False, "yes"))
        assert each["false_negatives"] == pairs.count((True, "no"))
        assert each["unknown_positives"] == pairs.count((True, "unknown"))
        right = pairs.count((True, "yes")) + pairs.count((False, "no"))
        decided = sum(verdict != "unknown" for _, verdict in pairs)
        assert each["accuracy"] == right / decided
        assert each["accuracy"] > 0.95, code
    assert accuracy["judged"] + accuracy["ambiguous"] == truth.height
    assert JOBS * 0.95 < truth.height <= JOBS  # some may still run when the recording ends
    assert accuracy["classes"][0]["false_positives"] == 0
    assert accuracy["classes"][0]["published"] == {
        "accuracy": 0.955,
        "jobs": 333,
        "false_positives": 2,
    }


def test_scores_of_labels_are_those_that_accuracy_measured(
    kept: Path, accuracy: Any, labels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same jobs, settings and labels, by the other command."""
    lake = kept / "kept" / "lake"
    measured = {each.pop("class"): each for each in accuracy["classes"]}
    for each in measured.values():
        del each["too_near"], each["published"]
    code, out, err = run(capsys, "lab", "tune", labels, "--lake", lake, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    scores = {name: scores["configured"] for name, scores in found["classes"].items()}
    assert scores == measured
    assert (found["labels"], found["not_used"]) == (str(labels), [])
    assert found["labelled_jobs"] == measured["job_hang"]["jobs"]


def test_proposals_lie_between_rest_and_work(
    kept: Path, labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are written as they are printed, and their scores are those of the written
    configuration.
    """
    file, lake = tmp_path / "proposed.toml", kept / "kept" / "lake"
    with_labels = ("lab", "tune", labels, "--lake", lake)
    code, out, _ = run(capsys, *with_labels, "--propose", "-o", file, "--json")
    assert code == 0
    found = json.loads(out)
    read = config.load(str(file), {}).classes
    levels = [each for each in found["proposals"] if each["key"] == "level"]
    assert {each["name"] for each in levels} == {
        *("power", "sm_active", "tensor_active", "dram_active", "pcie", "nvlink"),
    }
    for each in levels:
        assert each["rest"] < each["value"] < each["work"]
        assert read.level[each["name"]] == each["value"]
        assert min(each["rest_minutes"], each["work_minutes"]) >= 1000
    assert (
        tomllib.loads(file.read_text(encoding="utf-8"))["classes"]["theta"]
        == found["settings"]["theta"]
    )
    code, out, _ = run(capsys, *with_labels, "--config", file, "--json")
    configured = {name: scores["configured"] for name, scores in json.loads(out)["classes"].items()}
    assert {name: scores["proposed"] for name, scores in found["classes"].items()} == configured
    assert any(scores["proposed"] != scores["configured"] for scores in found["classes"].values())
    assert found["classes"]["job_hang"]["proposed"]["accuracy"] > 0.9


def test_a_configuration_that_tune_did_not_write_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "tachograph.toml"
    site.write_text("[site]\n", encoding="utf-8")
    for target, message in (
        (site, "tune did not write it"),
        (tmp_path, "Is a directory"),
        (tmp_path / "a" / "b", "folder"),
    ):
        code, _, err = run(
            capsys, "lab", "tune", "--propose", "--lake", tmp_path / "none", "-o", target
        )
        assert (code, message in err) == (2, True), err
    assert site.read_text(encoding="utf-8") == "[site]\n"
    site.write_text(to_toml(config.ClassOptions()), encoding="utf-8")
    with pytest.raises(UsageError):
        check_target(site)
    site.write_text(
        to_toml(config.ClassOptions(), ["Proposed by `tachograph lab tune --propose` from x"]),
        encoding="utf-8",
    )
    check_target(site)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("job_id,class,label\n1,job_hang,yes\n", 4, "no labelled job has stored minutes"),
        ("job_id,class,label\n", 4, "holds no labels"),
    ],
)
def test_labels_that_teach_nothing_are_errors(
    kept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    code: int,
    message: str,
) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(content, encoding="utf-8")
    found, out, err = run(capsys, "lab", "tune", file, "--lake", kept / "kept" / "lake")
    assert (found, out) == (code, "")
    assert message in err


def test_options_that_do_not_fit_are_errors(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = kept / "kept" / "lake"
    assert run(capsys, "lab", "tune", "--lake", lake)[0] == 2
    written = ("-o", tmp_path / "a.toml")
    code, _, err = run(capsys, "lab", "tune", "labels.csv", "--lake", lake, *written)
    assert (code, "--output needs --propose" in err) == (2, True)
    assert run(capsys, "lab", "accuracy", "--jobs", "3")[0] == 2
    code, _, err = run(capsys, "lab", "accuracy", "--jobs", "40", "--seed", "-1")
    assert (code, "--seed: '-1' is not a number" in err) == (2, True)
    code, _, err = run(capsys, "lab", "accuracy", "--jobs", "40", "--keep", kept)
    assert code == 2
    assert "not an empty folder" in err
