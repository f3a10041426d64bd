"""GPUs of series that number them differently: the UUID decides, then the PCI address, then the
index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_as_pages import Series, as_page, reasons

from tachograph.catalog.chunks import ChunkPart
from tachograph.sources.gpu_indices import (
    AMBIGUOUS,
    CONTRADICTS,
    NO_GPU,
    GpuIndices,
    LabelledGpu,
    PlacedGpu,
    TimeSpan,
)
from tachograph.sources.metrics import NO_INDEX
from tachograph.sources.series import (
    SeriesAnswer,
    SeriesMemory,
    SeriesRun,
)
from tachograph.sources.series_rows import SeriesRows, series_parts

T = datetime(2026, 3, 1, 12, tzinfo=UTC)
UTIL, JOB, DUTY = "DCGM_FI_DEV_GPU_UTIL", "nvidia_gpu_jobId", "nvidia_gpu_temperature_celsius"

DCGM: list[Series] = [
    (UTIL, {"gpu": "0", "UUID": "GPU-a", "Hostname": "n"}, 10),
    (UTIL, {"gpu": "1", "UUID": "GPU-b", "Hostname": "n"}, 90),
]
SWAPPED: list[Series] = [
    (JOB, {"minor_number": "0", "uuid": "GPU-b", "instance": "n:9445"}, 7),
    (DUTY, {"minor_number": "0", "uuid": "GPU-b", "instance": "n:9445"}, 40),
    (JOB, {"minor_number": "1", "uuid": "GPU-a", "instance": "n:9445"}, 8),
    (DUTY, {"minor_number": "1", "uuid": "GPU-a", "instance": "n:9445"}, 30),
]


def as_answer(series: Sequence[Series], t: Sequence[int] = (60_000, 120_000)) -> SeriesAnswer:
    return SeriesAnswer(
        [
            SeriesRun(
                msgspec.json.encode({"__name__": metric, **labels}),
                np.array(t),
                np.full(len(t), float(value)),
            )
            for metric, labels, value in series
        ]
    )


def of_pages(
    *pages: Sequence[Series], memory: SeriesMemory | None = None, t: datetime = T
) -> dict[str, ChunkPart]:
    rows = SeriesRows(memory or SeriesMemory())
    for number, page in enumerate(pages):
        rows.add_page(as_page(page), t=t + timedelta(milliseconds=number), node="n")
    return {part.table: part for part in rows.parts()}


def of_answer(series: Sequence[Series], memory: SeriesMemory | None = None) -> dict[str, ChunkPart]:
    return {
        part.table: part
        for part in series_parts(as_answer(series), memory or SeriesMemory(), overlaps=False)
    }


def holders(parts: Mapping[str, ChunkPart]) -> set[tuple[Any, ...]]:
    return set(parts["allocations"].frame.select("job_id", "gpu").rows())


def devices(parts: Mapping[str, ChunkPart]) -> dict[int, str]:
    return dict(parts["devices"].frame.select("gpu", "uuid").rows())


def temperatures(parts: Mapping[str, ChunkPart]) -> dict[int, float]:
    frame = parts["gpu_samples"].frame.drop_nulls("gpu_temp_c")
    return dict(frame.select("gpu", "gpu_temp_c").rows())


def assert_not_swapped(parts: Mapping[str, ChunkPart]) -> None:
    assert holders(parts) == {("7", 1), ("8", 0)}
    assert devices(parts) == {0: "GPU-a", 1: "GPU-b"}
    assert temperatures(parts) == {1: 40.0, 0: 30.0}
    assert reasons(parts) == {("allocations", "index_contradicts_uuid"): 2}


@pytest.mark.parametrize(
    "pages", [(DCGM, SWAPPED), (SWAPPED, DCGM), (SWAPPED + DCGM,), (DCGM + SWAPPED,)]
)
def test_pages_of_one_round(pages: tuple[list[Series], ...]) -> None:
    assert_not_swapped(of_pages(*pages))


def test_another_exporter_ends_no_allocation() -> None:
    """Scraped at other times, without a job: the job named by the first holds its GPU until that
    names it no more.
    """
    memory = SeriesMemory()
    for minute in range(3):
        parts = of_pages(DCGM, SWAPPED, memory=memory, t=T + timedelta(minutes=minute))
    assert "allocations" not in parts or parts["allocations"].frame.is_empty()
    (answered,) = {
        len(part.frame)
        for part in series_parts(phases(), SeriesMemory(), overlaps=False)
        if part.table == "allocations"
    }
    assert answered == 2


def phases() -> SeriesAnswer:
    answer = as_answer(DCGM, range(10_000, 100_000, 30_000))
    answer.add(as_answer(SWAPPED, range(20_000, 100_000, 30_000)))
    return answer


@pytest.mark.parametrize(
    "make", [of_pages, lambda *pages: of_answer([one for page in pages for one in page])]
)
def test_an_unknown_uuid_at_the_index_of_another(make: Any) -> None:
    """Its job is on the node, on which GPU is not recorded; its samples are of no known GPU."""
    jobs = [(JOB, {"minor_number": "0", "uuid": "GPU-x", "instance": "n:9445"}, 7.0), *SWAPPED[1:2]]
    jobs += [(DUTY, {"minor_number": "0", "uuid": "GPU-x", "instance": "n:9445"}, 66.0)]
    parts = make(jobs, DCGM)
    assert parts["allocations"].frame.select(
        "job_id", "node", "gpu", "mig", "provenance"
    ).rows() == [("7", "n", None, None, "node_list")]
    assert devices(parts) == {0: "GPU-a", 1: "GPU-b"}
    assert 66.0 not in temperatures(parts).values()
    counted = reasons(parts)
    assert counted["allocations", "ambiguous_gpu"] == 1
    assert counted["gpu_samples", "ambiguous_gpu"] >= 1


def test_a_job_is_recorded_with_no_gpu_of_a_node_where_one_is_ambiguous() -> None:
    jobs = [
        (JOB, {"minor_number": "0", "uuid": "GPU-x"}, 7.0),
        (JOB, {"minor_number": "0", "uuid": "GPU-b"}, 7.0),
        (JOB, {"minor_number": "1", "uuid": "GPU-a"}, 8.0),
    ]
    memory = SeriesMemory()
    assert holders(of_pages(jobs, DCGM, memory=memory)) == {("7", None), ("8", 0)}
    idle = [(metric, labels, 0.0) for metric, labels, _ in jobs]
    ended = of_pages(idle, DCGM, memory=memory, t=T + timedelta(minutes=1))["allocations"].frame
    assert set(ended.filter(pl.col("end").is_not_null())["gpu"].to_list()) == {None, 0}


def test_one_index_with_two_uuids_at_once() -> None:
    other = [(UTIL, {"gpu": "0", "UUID": "GPU-c", "Hostname": "n"}, 10.0)]
    held = [(metric, {**labels, "hpc_job": "7"}, value) for metric, labels, value in DCGM[:1]]
    for parts in (of_pages(held, other), of_pages(other, held), of_answer([*held, *other])):
        assert holders(parts) == {("7", None)}
        assert reasons(parts) == {
            ("allocations", "ambiguous_gpu"): 1,
            ("gpu_samples", "ambiguous_gpu"): 1,
        }
        assert parts["devices"].frame.is_empty() if "devices" in parts else True


def decided(claims: Sequence[tuple[int, TimeSpan, Any]]) -> tuple[int, Any]:
    """The best rank, and what its latest labels agree on; None where they do not."""
    best = min(rank for rank, _, _ in claims)
    latest = max(span for rank, span, _ in claims if rank == best)
    values = {value for rank, span, value in claims if (rank, span) == (best, latest)}
    return best, values.pop() if len(values) == 1 else None


class PlainIndices:
    """The rules of `GpuIndices`, one label after the other; all labels are of one node."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, Any]] = {}  # of UUIDs and PCI addresses
        self.owned: dict[int, int] = {}

    def places(self, labelled: Mapping[LabelledGpu, TimeSpan]) -> dict[LabelledGpu, PlacedGpu]:
        claims: dict[str, list[tuple[int, TimeSpan, Any]]] = {}
        for label, span in labelled.items():
            for name in {label.uuid, address_of(label)} - {None}:
                if label.gpu is not None:
                    claims.setdefault(str(name), []).append((label.rank, span, label.gpu))
        for name, of_name in claims.items():
            rank, gpu = decided(of_name)
            if name not in self.known or rank <= self.known[name][0]:
                self.known[name] = rank, gpu
        owners: dict[Any, list[tuple[int, TimeSpan, Any]]] = {}
        for label, span in labelled.items():
            if label.uuid is None or label.gpu is None:
                continue
            if self.known[label.uuid][1] in (label.gpu, None):
                unit = label.gpu, label.mig
                owners.setdefault(unit, []).append((label.rank, span, label.uuid))
        disputed: dict[Any, int] = {}
        for (gpu, mig), of_unit in owners.items():
            rank, uuid = decided(of_unit)
            self.owned[gpu] = min(rank, self.owned.get(gpu, NO_INDEX))
            if uuid is None:
                disputed[gpu, mig] = rank
        return {label: self._place(label, disputed) for label in labelled}

    def _place(self, label: LabelledGpu, disputed: Mapping[Any, int]) -> PlacedGpu:
        rank, gpu = self.known.get(label.uuid or "", (NO_INDEX, None))
        if rank < label.rank:
            if gpu is None:
                return PlacedGpu(None, AMBIGUOUS)
            return PlacedGpu(gpu, CONTRADICTS if label.gpu not in (None, gpu) else None, rank)
        rank, gpu = self.known.get(address_of(label) or "", (NO_INDEX, None))
        if rank < label.rank and gpu is not None:
            return PlacedGpu(gpu, None, rank)
        if label.gpu is None:
            return PlacedGpu(None, NO_GPU)
        if label.uuid and self.owned.get(label.gpu, NO_INDEX) < label.rank:
            return PlacedGpu(None, AMBIGUOUS)
        is_disputed = disputed.get((label.gpu, label.mig), NO_INDEX) <= label.rank
        return PlacedGpu(label.gpu, AMBIGUOUS if is_disputed else None, label.rank)


def address_of(label: LabelledGpu) -> str | None:
    return label.pci and label.pci.lower().removeprefix("0000").removeprefix("0000").lstrip(":")


@st.composite
def labels(draw: st.DrawFn) -> LabelledGpu:
    gpu = draw(st.none() | st.integers(0, 2))
    rank = NO_INDEX if gpu is None else draw(st.integers(0, 2))
    pci = draw(st.sampled_from([None, None, "0000:5A:00.0", "5a:00.0", "00000000:5b:00.0"]))
    mig = draw(st.sampled_from([None, None, 1]))
    return LabelledGpu("n", gpu, rank, mig, draw(st.sampled_from([None, "A", "B"])), pci)


@settings(max_examples=2 * settings().max_examples)
@given(
    st.lists(
        st.dictionaries(labels(), st.sampled_from([(1, 5), (10, 20)]), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_indices_are_those_of_the_rules_one_by_one(
    answers: list[dict[LabelledGpu, TimeSpan]],
) -> None:
    indices, plain = GpuIndices(), PlainIndices()
    for answer in [*answers, answers[0]]:
        version, before = indices.version, (dict(plain.known), dict(plain.owned))
        expected = plain.places(answer)
        assert indices.places(answer) == expected
        assert (indices.version == version) == ((plain.known, plain.owned) == before)
        assert indices.places(dict(reversed(answer.items()))) == expected


@pytest.mark.parametrize(
    ("value", "of_node", "of_gpu"),
    [(7, {("5", None)}, {("7", 0)}), (0, set(), set()), (-1, set(), set())],
)
def test_only_a_value_above_0_names_a_job(
    value: int, of_node: set[tuple[Any, ...]], of_gpu: set[tuple[Any, ...]]
) -> None:
    """Of the node by a label, of the GPU by the value; in a page as in an answer."""
    node = [("rmsjob_info", {"jobid": "5", "instance": "n:8000", "Hostname": "n"}, value)]
    gpu = [(JOB, {"minor_number": "0", "uuid": "GPU-a", "Hostname": "n"}, value)]
    for series, expected in ((node, of_node), (gpu, of_gpu)):
        for parts in (of_pages([*DCGM, *series]), of_answer([*DCGM, *series])):
            assert (holders(parts) if "allocations" in parts else set()) == expected
            assert reasons(parts) == {}


def test_a_node_is_called_as_its_node_exporter_says() -> None:
    address = {"instance": "10.0.0.1:9100"}
    answer = as_answer(
        [
            ("node_uname_info", {**address, "nodename": "n7.example.org"}, 1),
            ("node_load1", address, 3),
            (UTIL, {**address, "gpu": "0"}, 50),
        ]
    )
    parts = {
        part.table: part.frame for part in series_parts(answer, SeriesMemory(), overlaps=False)
    }
    assert set(parts["node_samples"]["node"]) == {"n7"}
    assert set(parts["gpu_samples"]["node"]) != {"n7"}  # of which the exporter may be elsewhere
