"""Every number of the published figures, recomputed from the raw samples of a simulated lake in
plain Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import figure_reference as reference
import polars as pl
import pytest
from raw_jobs import PIPES, Job, Recomputed, agreed, recomputed, same

from tachograph.annexes.lab.figures.correlation import COMPARED
from tachograph.annexes.lab.figures.numbers import FigureNumbers
from tachograph.annexes.lab.figures.registry import FIGURES, FigureEntry, load_figure
from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulationPlan

SMALL, LARGE = NodeGroup(4, 4, "A100 SXM 40GB"), NodeGroup(3, 4, "A100 SXM 80GB")
LACKING = NodeGroup(3, 4, "A100 SXM 80GB", lacks=("fp64_active", "mem_temp_c"))


def plan(large: NodeGroup, *, defects: bool) -> SimulationPlan:
    """A day of seven nodes with every kind of job, a sample a minute."""
    return SimulationPlan(
        seed=11, groups=(SMALL, large), interval_s=60, each_kind=3, median_hours=0.4, load=0.4, shared=0.4,
        defects=defects,
    )  # fmt: skip


PLANS = {"complete": plan(LARGE, defects=False), "nulls and defects": plan(LACKING, defects=True)}
EXPECTED: dict[int, Callable[[reference.Jobs, str], reference.Expected]] = {
    1: reference.figure_1,
    2: reference.figure_2,
    3: reference.figure_3,
    4: reference.figure_4,
    5: reference.figure_5,
    6: reference.bands("spatial_imbalance"),
    7: reference.bands("temporal_imbalance"),
    8: reference.by_type("spatial_imbalance"),
    9: reference.by_type("temporal_imbalance"),
    10: reference.figure_10,
    11: lambda jobs, pipe: reference.figure_11(jobs, pipe, COMPARED),
}
RECOMPUTED = tuple(entry for entry in FIGURES if entry.number in EXPECTED)
LIMITS = {"20", "30", "50", "70", "80", "90"}  # of bands, which sentences name


@pytest.fixture(scope="module", params=list(PLANS))
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recomputed:
    return recomputed(PLANS[request.param], tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def jobs(found: Recomputed) -> list[Job]:
    return agreed(found)


def test_jobs_are_those_of_the_raw_samples(found: Recomputed, jobs: list[Job]) -> None:
    """All columns that figures use; enough jobs of every kind for the figures to have something
    to show.
    """
    assert len(jobs) == found.study.jobs.height > 45
    assert {job["bound"] for job in jobs} >= {"compute", "memory"}
    assert {job["gpu_model"] for job in jobs} == {SMALL.model, LARGE.model}
    assert any(job["spatial_imbalance"] is None for job in jobs)


def test_numbers_and_names_are_unique() -> None:
    assert [entry.number for entry in FIGURES] == list(range(1, len(FIGURES) + 1))
    assert len({entry.name for entry in FIGURES}) == len(FIGURES)
    assert set(EXPECTED) == {entry.number for entry in RECOMPUTED}


def made(found: Recomputed, entry: FigureEntry, pipe: str) -> FigureNumbers:
    return load_figure(entry).compute(found.of_pipe(pipe))


def compare(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{name: (stored, recomputed)} of those that differ; rank correlations add many small
    numbers.
    """
    assert set(stored) == set(wanted)
    return {
        name: (stored[name], wanted[name])
        for name in wanted
        if not same(stored[name], wanted[name], 1e-8)
    }


@pytest.mark.parametrize("pipe", ["fp64", "tensor"])
@pytest.mark.parametrize("entry", RECOMPUTED, ids=lambda entry: entry.name)
def test_facts_and_tables(
    found: Recomputed, jobs: list[Job], entry: FigureEntry, pipe: str
) -> None:
    facts, tables = EXPECTED[entry.number](jobs, pipe)
    numbers = made(found, entry, pipe)
    assert compare(facts, numbers.facts) == {}
    assert set(numbers.tables) == set(tables)
    for part, rows in tables.items():
        stored = numbers.tables[part].rows(named=True)
        assert len(stored) == len(rows), part
        wrong = {
            place: apart for place, row in enumerate(rows) if (apart := compare(row, stored[place]))
        }
        assert wrong == {}, part


@pytest.mark.parametrize("entry", RECOMPUTED, ids=lambda entry: entry.name)
def test_sentences_say_percentages_that_were_recomputed(
    found: Recomputed, jobs: list[Job], entry: FigureEntry
) -> None:
    """Each percentage in words is one of the shares or fractions above."""
    wanted, _ = EXPECTED[entry.number](jobs, "fp64")
    fractions = [value for value in wanted.values() if isinstance(value, float)]
    sayable = {f"{value * 100:.{digits}f}" for value in fractions for digits in (0, 1, 2)} | LIMITS
    sentences = load_figure(entry).sentences(made(found, entry, "fp64"))
    assert sentences
    for number in re.findall(r"([\d.]+) %", " ".join(sentences)):
        assert number in sayable, sentences


def test_labelled_samples_are_those_counted_one_by_one(found: Recomputed, jobs: list[Job]) -> None:
    """Figure 4 weighs fractions of jobs by samples at work: where nothing is missing, the exact
    count.
    """
    facts = made(found, FIGURES[3], "fp64").facts
    for pipe in PIPES:
        counted = {label: found.labelled.get((pipe, label), 0) for label in ("compute", "memory")}
        total = sum(counted.values())
        if all(
            job[f"{name}_mean"] is not None
            for job in jobs
            for name in (*PIPES.values(), "dram_active")
        ):
            assert facts[f"{pipe}_labelled_samples"] == total
            assert facts[f"{pipe}_memory_share"] == pytest.approx(
                counted["memory"] / total, abs=1e-9
            )


def test_order_of_jobs_does_not_matter(found: Recomputed) -> None:
    shuffled = type(found.study)(found.study.jobs.sample(fraction=1.0, shuffle=True, seed=3))
    for entry in FIGURES:
        one, other = load_figure(entry).compute(found.study), load_figure(entry).compute(shuffled)
        assert compare(one.facts, other.facts) == {}, entry.name
        for part, table in one.tables.items():
            assert isinstance(table, pl.DataFrame)
            rows = zip(table.rows(named=True), other.tables[part].rows(named=True), strict=True)
            assert not any(compare(a, b) for a, b in rows), (entry.name, part)
