"""Files, commands and polls that number the GPUs of a node differently: one index per UUID in
the lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import permutations, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_as_pages import Series, as_page

from in_memory import with_seq
from madelake import fill, held, job
from tachograph.catalog.chunks import Chunk, GpuNumbering, NumberedGpu
from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, REJECTS
from tachograph.cli import main
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.numbering import NearSamples, NewIndices, new_indices, unsure_times
from tachograph.lake.query import read_latest, read_summaries
from tachograph.pipeline.gpu_numbers import with_own_indices
from tachograph.sources.series import SeriesMemory
from tachograph.sources.series_rows import SeriesRows

T = datetime(2026, 3, 1, 12, tzinfo=UTC)


def dcgm(minute: int) -> list[Series]:
    """GPU-a idles, GPU-b works; DCGM calls them 0 and 1."""
    return [
        ("DCGM_FI_DEV_GPU_UTIL", {"gpu": "0", "UUID": "GPU-a", "Hostname": "n"}, 10 + minute % 2),
        ("DCGM_FI_DEV_GPU_UTIL", {"gpu": "1", "UUID": "GPU-b", "Hostname": "n"}, 90 + minute % 2),
    ]


def jobstats(minute: int) -> list[Series]:
    """Job 7 is on GPU-b, whose minor number is 0; 8 on GPU-a."""
    del minute
    where = [{"minor_number": "0", "uuid": "GPU-b"}, {"minor_number": "1", "uuid": "GPU-a"}]
    return [
        *(
            ("nvidia_gpu_jobId", labels | {"instance": "n:9445"}, job)
            for labels, job in zip(where, (7, 8), strict=True)
        ),
        *(
            ("nvidia_gpu_temperature_celsius", labels | {"instance": "n:9445"}, degrees)
            for labels, degrees in zip(where, (70, 30), strict=True)
        ),
    ]


def page(folder: Path, name: str, series: Sequence[Series]) -> str:
    (folder / name).write_bytes(as_page(series))
    return name


def command(folder: Path, kind: str, minute: int) -> None:
    series = dcgm(minute) if kind == "dcgm" else jobstats(minute)
    name = page(folder, f"{kind}-{minute}.prom", series)
    ingest_page(name, T + timedelta(minutes=minute))


def ingest_page(name: str, t: datetime) -> None:
    words = ["ingest", "dcgm-exporter", name, "--time", t.isoformat()]
    assert main([*words, "--lake", "lake"]) == 0


def analyzed() -> dict[str, dict[str, Any]]:
    assert main(["analyze", "--lake", "lake"]) == 0
    return {row["job_id"]: row for row in read_summaries(Lake.open("lake")).iter_rows(named=True)}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.chdir(tmp_path)
    made = Lake.create("lake")
    jobs = [job(name, T, T + timedelta(minutes=10), gpus=1) for name in ("7", "8")]
    fill(
        made, {"jobs": jobs, "allocations": [*held("7", "n"), *held("8", "n")]}, chunk="accounting"
    )
    return made


@pytest.mark.parametrize("order", [["dcgm", "jobstats"], ["jobstats", "dcgm"]])
def test_pages_of_separate_commands(order: list[str], lake: Lake, tmp_path: Path) -> None:
    for kind in order:
        for minute in range(0, 8, 4):
            command(tmp_path, kind, minute)
    assert_own_numbers()
    devices = (
        read_latest(lake, DEVICES).sort("uuid").select("uuid", "nvml_index", "minor_number").rows()
    )
    assert devices == [("GPU-a", 0, 1), ("GPU-b", 1, 0)]
    counted = read_latest(lake, REJECTS)
    assert set(counted["reason"]) == {"index_contradicts_uuid"}
    assert counted["removed"].sum() == 4


def assert_own_numbers() -> None:
    found = analyzed()
    assert_own_load(found)
    assert {row["attribution"] for row in found.values()} == {"explicit"}
    assert {name: row["gpu_temp_c_max"] for name, row in found.items()} == {"7": 70.0, "8": 30.0}


def assert_own_load(found: dict[str, dict[str, Any]]) -> None:
    assert {name: round(row["gpu_util_mean"], 1) for name, row in found.items()} == {
        "7": 0.9,
        "8": 0.1,
    }


def one_gpu_each(first: str, second: str) -> list[dict[str, Any]]:
    """A map: the jobs on the GPUs 0 and 1."""
    return [*held(first, "n", [0], T), *held(second, "n", [1], T)]


@pytest.mark.parametrize(("late", "one_process"), [("dcgm", True), ("jobstats", False)])
def test_polls_of_which_one_exporter_answers_late(late: str, one_process: bool, lake: Lake) -> None:
    """The index of a GPU changes while a job is on it: the job holds it once, from its first
    poll to its last.
    """
    memory = {kind: SeriesMemory() for kind in ("dcgm", "jobstats")}
    if one_process:
        memory["dcgm"] = memory["jobstats"]
    series = {"dcgm": dcgm, "jobstats": jobstats}
    for minute in range(6):
        t = T + timedelta(minutes=minute)
        for kinds in [("dcgm", "jobstats")] if one_process else [("dcgm",), ("jobstats",)]:
            rows = SeriesRows(memory[kinds[0]])
            for kind in kinds:
                if kind != late or minute > 2:
                    rows.add_page(as_page(series[kind](minute)), t=t, node="n")
            if rows.known:
                chunk = Chunk(
                    str(kinds), "dcgm-exporter", "n", rows.parts(), rows.known, watermark=t
                )
                ingest(lake, [chunk], now=t)
    assert_own_numbers()
    rows_held = read_latest(lake, ALLOCATIONS).filter(pl.col("provenance") == "explicit")
    assert rows_held.select("job_id").is_unique().all()


NUMBERINGS: tuple[GpuNumbering, GpuNumbering] = ("nvml_index", "minor_number")


@pytest.mark.parametrize(("first", "second"), list(product(permutations(range(3)), repeat=2)))
def test_no_two_gpus_have_one_index(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """Also where one of the numberings shows some of the GPUs alone."""
    known: list[dict[str, Any]] = []
    for seen in (2, 3, 3):
        for order, numbering in zip((first, second), NUMBERINGS, strict=True):
            labels = [
                NumberedGpu("n", order[gpu], None, f"GPU-{gpu}", None, numbering)
                for gpu in range(seen if numbering == "minor_number" else 3)
            ]
            moved = new_indices(labels, pl.DataFrame(known, schema=SCHEMA)).moved
            for label in labels:
                index = moved.get(("n", label.gpu), label.gpu)
                row = next((row for row in known if row["gpu"] == index), None)
                if row is None:
                    known.append(row := {"node": "n", "gpu": index, "uuid": label.uuid})
                assert row["uuid"] == label.uuid
                row[numbering] = label.gpu
    assert sorted(row["uuid"] for row in known) == ["GPU-0", "GPU-1", "GPU-2"]


SCHEMA = {
    name: DEVICES.schema[name] for name in ("node", "gpu", "uuid", "nvml_index", "minor_number")
}


def devices_of(*rows: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=SCHEMA, orient="row")


def test_a_pci_address_where_no_uuid_is_known() -> None:
    known = devices_of(("n", 0, None, None, 0), ("n", 1, None, None, 1)).with_columns(
        pci=pl.Series(["00000000:3A:00.0", "00000000:5A:00.0"])
    )
    labels = [NumberedGpu("n", 0, None, None, "0000:5a:00.0", "nvml_index")]
    assert new_indices(labels, known).moved == {("n", 0): 1}


def test_rows_of_indices_alone_count_as_nvml_does(lake: Lake, tmp_path: Path) -> None:
    command(tmp_path, "jobstats", 0)
    command(tmp_path, "dcgm", 0)
    rows = [
        {"t": T + timedelta(minutes=2), "node": "n", "gpu": gpu, "power_w": 100.0 + gpu}
        for gpu in (0, 1)
    ]
    fill(lake, {"gpu_samples": rows}, chunk="indices")
    found = analyzed()
    assert {name: row["power_w_sampled_mean"] for name, row in found.items()} == {
        "7": 101.0,
        "8": 100.0,
    }


SCONTROL = """JobId={job} JobName=x
   UserId=ana(1) JobState=RUNNING StartTime=2026-03-01T12:00:00 EndTime=2026-03-01T12:10:00
   NodeList=n
     Nodes=n CPU_IDs=0-1 Mem=0 GRES=gpu:1(IDX:{number})
"""


@pytest.mark.parametrize("order", [("scontrol", "dcgm", "minors"), ("dcgm", "minors", "scontrol")])
def test_indices_of_the_controller_are_minor_numbers(
    order: tuple[str, ...], lake: Lake, tmp_path: Path
) -> None:
    without_jobs = [series for series in jobstats(0) if series[0] != "nvidia_gpu_jobId"]
    minors = page(tmp_path, "minors.prom", without_jobs)
    (tmp_path / "scontrol.txt").write_text(
        SCONTROL.format(job=7, number=0) + SCONTROL.format(job=8, number=1)
    )
    for kind in order:
        match kind:
            case "dcgm":
                for minute in range(0, 8, 4):
                    command(tmp_path, kind, minute)
            case "minors":
                ingest_page(minors, T)
            case "scontrol":
                words = ["ingest", "allocation-map", "scontrol.txt", "--trusted"]
                assert main([*words, "--lake", "lake"]) == 0
    found = analyzed()
    assert_own_load(found)
    assert {row["attribution"] for row in found.values()} == {"live_index"}


def minutes(first: int, last: int) -> tuple[datetime, datetime]:
    return T + timedelta(minutes=first), T + timedelta(minutes=last)


def numbered(
    label: NumberedGpu, known: pl.DataFrame, times: tuple[int, int], sampled: tuple[int, int]
) -> NewIndices:
    """Indices of a label with rows in some minutes, where each index has samples in others."""
    rows = minutes(*sampled)

    def near(node: str, first: datetime, last: datetime) -> dict[int, NearSamples]:
        assert node == "n"
        samples = NearSamples(
            before=max((t for t in rows if t < first), default=None),
            first=max(first, rows[0]) if rows[0] <= last and first <= rows[1] else None,
            last=min(last, rows[1]) if rows[0] <= last and first <= rows[1] else None,
            after=min((t for t in rows if t > last), default=None),
        )
        return dict.fromkeys((0, 1), samples)

    return new_indices(
        [label], known, times=lambda: {("n", label.gpu): minutes(*times)}, sampled=near
    )


def unsure(numbers: NewIndices) -> list[tuple[int, datetime, datetime, bool]]:
    columns = ("node", "gpu", "mig", "uuid", "nvml_index", "history")
    rows = [dict(zip(columns, row, strict=True)) for row in numbers.changed]
    return unsure_times(with_seq("devices", rows)).drop("node").sort("gpu").rows()


def test_a_replaced_gpu_keeps_its_place() -> None:
    known = devices_of(("n", 0, "GPU-a", 0, 0), ("n", 1, "GPU-b", 1, 1))
    label = NumberedGpu("n", 1, None, "GPU-c", None, "nvml_index")
    assert not new_indices([label], known).moved
    later = numbered(label, known, (6, 9), (0, 5))
    assert not later.moved
    assert unsure(later) == [(1, *minutes(5, 6), True)]


@pytest.mark.parametrize(
    ("uuid", "number", "index"), [("GPU-b", 0, 1), ("GPU-c", 1, 2), ("GPU-c", 0, 2)]
)
def test_another_index_in_the_same_time_is_no_new_index(uuid: str, number: int, index: int) -> None:
    """A node is renumbered where the old number ends before the new one begins."""
    known = devices_of(("n", 0, "GPU-a", 0, None), ("n", 1, "GPU-b", 1, None))
    label = NumberedGpu("n", number, None, uuid, None, "nvml_index")
    for first, last in ((20, 20), (20, 24), (10, 10), (0, 10), (12, 30), (0, 30)):
        contradicting = numbered(label, known, (first, last), (10, 20))
        within = [row for row in unsure(contradicting) if not row[-1]]
        assert {row[0] for row in within} >= {number, index}
        # Of polls up to ten minutes after the last one, else in the time of the label alone.
        margin = 10 if last - first < 10 else 0
        expected = minutes(first, last + margin)
        if (first, last) == (0, 10):
            expected = minutes(10, 10)
        assert {row[1:3] for row in within} == {expected}
    for first, last, border in ((21, 30, (20, 21)), (0, 9, (9, 10))):
        renumbered = numbered(label, known, (first, last), (10, 20))
        assert not renumbered.moved
        assert {row[1:] for row in unsure(renumbered) if row[0] == number} == {
            (*minutes(*border), True)
        }


@pytest.mark.parametrize(("overlap", "lingers"), [(4, True), (5, False)])
def test_a_series_that_lingers_after_a_renumbering(overlap: int, lingers: bool) -> None:
    """Prometheus shows a series up to five minutes after its end."""
    known = devices_of(("n", 0, "GPU-a", 0, None), ("n", 1, "GPU-b", 1, None))
    label = NumberedGpu("n", 0, None, "GPU-b", None, "nvml_index")
    numbers = numbered(label, known, (20 - overlap, 60), (0, 20))
    end = 20 if lingers else 60
    assert {row[1:3] for row in unsure(numbers)} >= {minutes(20 - overlap, end)}
    kept = [after for *_, after, disputed in numbers.places if not disputed]
    assert kept == ([0] if lingers else [])


def ordinals(minute: int) -> list[Series]:
    """Another exporter numbers the same GPUs the other way round."""
    del minute
    metric = "DCGM_FI_DEV_GPU_TEMP"
    return [
        (metric, {"ordinal": "0", "UUID": "GPU-b", "Hostname": "n"}, 70),
        (metric, {"ordinal": "1", "UUID": "GPU-a", "Hostname": "n"}, 30),
    ]


EXPORTERS = {"dcgm": dcgm, "ordinals": ordinals}


def ingest_pages(lake: Lake, memory: SeriesMemory, series: Sequence[Series], t: datetime) -> None:
    rows = SeriesRows(memory)
    rows.add_page(as_page(series), t=t, node="n")
    chunk = Chunk(f"{t} {series}", "dcgm-exporter", "n", rows.parts(), rows.known)
    ingest(lake, [chunk], now=t)


@pytest.mark.parametrize("order", [("dcgm", "ordinals"), ("ordinals", "dcgm")])
@pytest.mark.parametrize("analyzed_between", [False, True])
def test_exporters_that_contradict_each_other(
    order: tuple[str, str], analyzed_between: bool, lake: Lake
) -> None:
    """Nobody knows which of them the map agrees with: jobs are ambiguous, and it is counted."""
    fill(lake, {"allocations": one_gpu_each("8", "7")}, chunk="map")
    for exporter in order:
        memory = SeriesMemory()
        for minute in range(0, 8, 4):
            t = T + timedelta(minutes=minute)
            ingest_pages(lake, memory, EXPORTERS[exporter](minute), t)
        if analyzed_between:
            analyzed()
    assert {row["ambiguous_because"] for row in analyzed().values()} == {"unknown_numbers"}
    counted = read_latest(lake, REJECTS).filter(reason="contradicting_numbers")
    assert counted.height == 1
    samples = lake.scan(GPU_SAMPLES).collect()
    by_gpu = samples.group_by("gpu").agg(pl.col("gpu_util").max(), pl.col("gpu_temp_c").max())
    assert {(round(row[1], 1), row[2]) for row in by_gpu.rows()} == {(0.1, 30), (0.9, 70)}


def test_one_page_of_contradicting_exporters(lake: Lake) -> None:
    fill(lake, {"allocations": one_gpu_each("8", "7")}, chunk="map")
    ingest_pages(lake, SeriesMemory(), [*dcgm(0), *ordinals(0)], T)
    assert {row["attribution"] for row in analyzed().values()} == {"ambiguous"}


@settings(max_examples=12, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["dcgm", "ordinals"]), st.sampled_from([0, 1, 30, 240])),
        min_size=1,
        max_size=6,
    ),
    one_process=st.booleans(),
    by_labels=st.booleans(),
)
def test_no_interleaving_gives_a_job_the_samples_of_another(
    steps: list[tuple[str, int]], one_process: bool, by_labels: bool
) -> None:
    """The GPUs of a job, wherever they are known, have only samples of its own GPU."""
    with TemporaryDirectory() as folder:
        made = Lake.create(f"{folder}/lake")
        t = T
        shared = SeriesMemory()
        memories = {name: shared if one_process else SeriesMemory() for name in EXPORTERS}
        for exporter, wait in steps:
            series = EXPORTERS[exporter](0)
            if by_labels:
                named = {"GPU-a": "8", "GPU-b": "7"}
                series = [
                    (metric, labels | {"hpc_job": named[labels["UUID"]]}, value)
                    for metric, labels, value in series
                ]
            ingest_pages(made, memories[exporter], series, t)
            t += timedelta(minutes=wait)
        jobs = ("7", "8") if steps[0][0] == "ordinals" else ("8", "7")
        if not by_labels:
            fill(made, {"allocations": one_gpu_each(*jobs)}, chunk="map")
        allocations = with_own_indices(
            read_latest(made, ALLOCATIONS), read_latest(made, DEVICES), slurm=SlurmOptions()
        )
        samples = made.scan(GPU_SAMPLES).collect()
        both = samples.join(allocations.drop("seq"), on=["node", "gpu"])
        of_others = (pl.col("gpu_temp_c") == pl.when(job_id="7").then(30).otherwise(70)) | (
            (pl.col("gpu_util") < 0.5) == (pl.col("job_id") == "7")
        )
        during = (pl.col("t") >= pl.col("start")) & (
            pl.col("t") <= pl.col("end").fill_null(pl.col("t"))
        )
        assert both.filter(during.fill_null(value=True) & of_others).is_empty()
        if len({exporter for exporter, _ in steps}) == 1:
            assert set(both["job_id"]) == {"7", "8"}


def test_one_page_of_a_node_that_is_renumbered_later(lake: Lake, tmp_path: Path) -> None:
    """Its times are those of the labels: jobs from before the change keep their numbers."""
    fill(lake, {"allocations": one_gpu_each("8", "7")}, chunk="map")
    lines = []
    for minute in (*range(10), *range(30, 40)):
        time_ms = round((T + timedelta(minutes=minute)).timestamp() * 1000)
        for gpu, (uuid, percent) in enumerate((("GPU-a", 10), ("GPU-b", 90))):
            number = gpu if minute < 10 else 1 - gpu
            labels = f'gpu="{number}",UUID="{uuid}",Hostname="n"'
            lines.append(f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {percent} {time_ms}\n")
    (tmp_path / "history.prom").write_text("".join(sorted(lines)))
    ingest_page("history.prom", T + timedelta(hours=1))
    assert_own_load(analyzed())
    devices = read_latest(lake, DEVICES).sort("gpu").select("gpu", "uuid")
    assert devices.rows() == [(0, "GPU-b"), (1, "GPU-a")]


def test_labels_without_a_uuid_follow_those_with_one() -> None:
    known = devices_of(("n", 0, "GPU-b", 1, 0), ("n", 1, "GPU-a", 0, 1))
    labels = [NumberedGpu("n", gpu, None, None, None, "nvml_index") for gpu in (0, 1)]
    assert new_indices(labels, known).moved == {("n", 0): 1, ("n", 1): 0}
