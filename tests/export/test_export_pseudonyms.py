"""Exports for studies: no name of a user, the same pseudonym for the same user, the same
numbers.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from exported_lake import END, START, UGLY, content_of, export, run

from madelake import fill, held, job, summarized
from tachograph.catalog.pseudonyms import KINDS, PseudonymKey
from tachograph.export.pseudonyms import with_pseudonyms
from tachograph.lake.delta import Lake

TABLES = ("job_summaries", "job_gpus", "findings", "job_minutes")


@pytest.fixture(scope="module")
def lake(exported: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake.open(
        str(shutil.copytree(exported.location, tmp_path_factory.mktemp("exported") / "lake"))
    )
    rows = [
        job(
            "7",
            START,
            END,
            cluster="c",
            user="eve",
            account="ada",
            name="ada's copy of eve_run",
            gpus=1,
        )
    ]
    fill(
        lake,
        {"jobs": rows, "allocations": held("7", "n7", (0,), START, END, cluster="c")},
        chunk="7",
    )
    summarized(lake)
    return lake


@pytest.fixture
def key(tmp_path: Path) -> PseudonymKey:
    return PseudonymKey.create(str(tmp_path / "key"))


def exported(lake: Lake, folder: Path, key: PseudonymKey, *options: str) -> dict[str, pl.DataFrame]:
    """Return the tables of an export with pseudonyms."""
    tables = [word for name in TABLES for word in ("--table", name)]
    export(lake, "parquet", "--to", folder, "--pseudonyms", key.file, *tables, *options)
    return {name: pl.read_parquet(folder / f"{name}.parquet") for name in TABLES}


def test_a_user_has_one_pseudonym_and_is_nowhere_by_name(
    lake: Lake, tmp_path: Path, key: PseudonymKey
) -> None:
    frames = exported(lake, tmp_path / "out", key)
    users = frames["job_summaries"].select("job_id", "user").sort("job_id")["user"].to_list()
    assert users == [key.pseudonym("user", name) for name in ("ada", UGLY, "ada", "eve", "eve")]
    for name, frame in frames.items():
        texts = str(
            [
                row
                for column in frame.get_columns()
                if column.dtype == pl.String
                for row in column.unique()
            ]
        )
        assert not re.search(r"\b(ada|eve|bo)\b", texts), name
    row = frames["job_summaries"].filter(job_id="7").row(0, named=True)
    ada, eve = key.pseudonym("user", "ada"), key.pseudonym("user", "eve")
    assert (row["name"], row["account"]) == (f"{ada}'s copy of {eve}_run", ada)


def test_numbers_are_those_of_the_lake(lake: Lake, tmp_path: Path, key: PseudonymKey) -> None:
    with_names = exported(lake, tmp_path / "some", key, "--pseudonyms-of", ",".join(KINDS))
    export(
        lake,
        "parquet",
        "--to",
        tmp_path / "all",
        *[w for name in TABLES for w in ("--table", name)],
    )
    for name, frame in with_names.items():
        plain = pl.read_parquet(tmp_path / "all" / f"{name}.parquet")
        numbers = [
            column
            for column, dtype in plain.schema.items()
            if dtype.is_numeric() or dtype.is_temporal()
        ]
        assert frame.height == plain.height
        assert (
            frame.select(numbers)
            .sort(pl.all())
            .equals(plain.select(numbers).sort(pl.all()), null_equal=True)
        )


def test_jobs_accounts_and_nodes_where_wanted(
    lake: Lake, tmp_path: Path, key: PseudonymKey
) -> None:
    frames = exported(lake, tmp_path / "out", key, "--pseudonyms-of", "job,account,node")
    jobs, gpus = frames["job_summaries"], frames["job_gpus"]
    assert set(jobs["account"]) == {key.pseudonym("account", name) for name in ("a", "b", "ada")}
    assert set(jobs["job_id"]) == {key.pseudonym("job", name) for name in "12347"}
    assert set(gpus["node"]) <= {key.pseudonym("node", f"n{number}") for number in range(9)}
    assert set(gpus["job_key"]) <= set(jobs["job_key"])  # tables still fit together
    assert "n1" not in str(frames["findings"].to_dicts()).replace("\\n1", "").split()


def test_every_part_of_the_content_is_shown_so(lake: Lake, key: PseudonymKey) -> None:
    content = with_pseudonyms(content_of(lake), key, KINDS)
    some = content.summaries.head(2)
    keys = set(some["job_key"])
    for rows in (content.gpus(some), content.findings(some), content.minutes(some)):
        assert set(rows["job_key"]) <= keys
    assert content.findings(some).height > 0
    assert set(content.answers()["job_key"]) <= set(content.summaries["job_key"])
    assert all(node.startswith("node-") for node in content.devices()["node"].to_list())
    assert content.lake_id != content_of(lake).lake_id
    assert content.lake_id != with_pseudonyms(content_of(lake), key, KINDS[:1]).lake_id


@pytest.mark.parametrize("target", ["csv", "jsonl", "openmetrics", "clustercockpit"])
def test_every_target_of_files_takes_them(
    lake: Lake, tmp_path: Path, key: PseudonymKey, target: str
) -> None:
    place = tmp_path / ("out.prom" if target == "openmetrics" else "out")
    by = ("--by", "user", "--jobs", "9") if target == "openmetrics" else ()
    export(lake, target, "--to", place, "--pseudonyms", key.file, *by)
    files = [path for path in (place, *place.rglob("*")) if path.is_file()]
    content = "".join(path.read_text() for path in files)
    assert key.pseudonym("user", "eve") in content
    assert '"eve' not in content
    assert ",eve," not in content


def test_wrong_keys_and_kinds_are_refused(lake: Lake, tmp_path: Path, key: PseudonymKey) -> None:
    place = ("csv", "--to", tmp_path / "out")
    assert run(lake, *place, "--pseudonyms", tmp_path / "none").returncode == 3
    assert run(lake, *place, "--pseudonyms", key.file, "--pseudonyms-of", "users").returncode == 2
    assert run(lake, *place, "--pseudonyms-of", "job").returncode == 2
    assert not (tmp_path / "out").exists()
