"""Jobs on a real Slurm, GPUs watched by real servers, read by real commands: every job's numbers
are what was served.

What must come out is recomputed by `slurm_truth` from the exporters' pages; the rule at the borders
is reported there.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from slurm_recording import SACCT, Filled, Recording, filled, recorded_scenario
from slurm_scenario import WANTED
from slurm_truth import (
    Gpu,
    Run,
    Sample,
    Stay,
    during,
    numbers,
    of_run,
    stays_by_label,
    stays_from_the_scheduler,
    stays_on_the_map,
    without_handovers,
)

from servers.slurm import SlurmCluster

pytestmark = pytest.mark.slow

STATES = {name: ["COMPLETED"] for name in WANTED} | {
    "again": ["COMPLETED", "REQUEUED"],
    "sweep": ["COMPLETED"] * 4,
    "broken": ["FAILED"],
    "mixed": ["COMPLETED"] * 2,
    "stopped": ["CANCELLED"],
    "hopeless": ["CANCELLED"],
}
KINDS = {
    "commands": "live_index",
    "rest": "live_index",
    "imported": "live_index",
    "mapped": "explicit",
    "labelled": "explicit",
}


@pytest.fixture(scope="module")
def recording(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """The scenario, played once."""
    with recorded_scenario(slurm, tmp_path_factory.mktemp("scenario")) as recording:
        yield recording


@pytest.fixture(scope="module")
def lakes(recording: Recording) -> Mapping[str, Filled]:
    """One lake for each way to know which GPUs a job held.

    `commands`, `rest`: by `tachograph collect` while it ran, which queried Slurm's commands or
    slurmrestd. `imported`: from what `scontrol` printed while it ran. `mapped`: prolog and epilog
    wrote it. `unrecorded`: none. All these have the samples of a Prometheus that knows no jobs.
    `labelled`: a VictoriaMetrics whose series name the job.
    """
    folder, cluster = recording.folder, recording.scenario.cluster
    accounting = ["sacct", str(recording.scenario.accounting)]
    made = {name: filled(folder / name, cluster) for name in ("unrecorded", "imported", "labelled")}
    made["unrecorded"].ingest(recording.requested(recording.plain), accounting)
    shutil.copytree(made["unrecorded"].lake, made["imported"].lake)
    made["imported"].ingest(["allocation-map", str(recording.scenario.live), "--trusted"])
    made["labelled"].ingest(accounting, recording.requested(recording.labelled))
    for lake in made.values():
        lake.run("analyze")
    samples = f'source = "prometheus"\nurl = "{recording.plain}"\nsettle_s = 0'
    made["mapped"] = filled(
        folder / "mapped",
        cluster,
        samples,
        SACCT,
        f'source = "allocation-map"\nfiles = ["{recording.map}"]',
    )
    made["mapped"].run("collect", "--once")
    return {**recording.collected, **made}


@dataclass(frozen=True, slots=True)
class Truth:
    """What a lake must report: the samples it was given, and when which run held which GPU."""

    samples: Mapping[Gpu, Sequence[Sample]]
    stays: Mapping[Run, Sequence[Stay]]


@pytest.fixture(scope="module")
def truths(recording: Recording) -> Mapping[str, Truth]:
    """The truth about every lake."""
    runs, held = with_gpus(recording), recording.held
    plain, labelled = recording.samples(recording.plain), recording.samples(recording.labelled)
    live = Truth(
        plain, without_handovers({run: stays_from_the_scheduler(run, held) for run in runs})
    )
    return {
        **dict.fromkeys(("commands", "rest", "imported", "unrecorded"), live),
        "mapped": Truth(plain, {run: stays_on_the_map(run, held) for run in runs}),
        "labelled": Truth(labelled, {run: stays_by_label(run, labelled) for run in runs}),
    }


def test_every_job_ended_as_it_was_meant_to(recording: Recording) -> None:
    states = {
        name: sorted(run.state for run in recording.runs if run.name == name) for name in WANTED
    }
    assert states == STATES


def test_prolog_and_epilog_recorded_the_gpus_of_every_run(recording: Recording) -> None:
    files = recording.scenario.cluster.jobs.glob("told.*")
    reported = sorted(
        tuple(line.split()) for file in files for line in file.read_text().splitlines()
    )
    written = [one for run in with_gpus(recording) for one in of_run(run, recording.held)]
    assert (
        sorted((one.job_id, one.node, ",".join(map(str, one.gpus))) for one in written) == reported
    )
    assert {job for job, _, _ in reported} == {run.job_id for run in with_gpus(recording)}


def test_two_jobs_were_on_one_node_at_one_time_on_different_gpus(recording: Recording) -> None:
    (left,), (right,) = (runs_of(recording, name) for name in ("left", "right"))
    of_left, of_right = (
        {stay.gpu for stay in stays_from_the_scheduler(run, recording.held)}
        for run in (left, right)
    )
    assert {node for node, _ in of_left | of_right} == {"gpu02"}
    assert (len(of_left), len(of_right), len(of_left | of_right)) == (2, 1, 3)
    assert min(left.ran[1], right.ran[1]) - max(left.ran[0], right.ran[0]) > 10


@pytest.mark.parametrize("name", KINDS)
def test_every_run_has_the_numbers_that_were_served(
    name: str, lakes: Mapping[str, Filled], truths: Mapping[str, Truth]
) -> None:
    jobs, truth = jobs_of(lakes[name]), truths[name]
    assert sorted(map(key_of_job, jobs)) == sorted(map(key_of_run, truth.stays))
    for run, stays in truth.stays.items():
        job = the_job(jobs, run)
        assert not differences(job, numbers(run, stays, truth.samples)), run
        assert (job["attribution"], job["state"], job["name"]) == (KINDS[name], run.state, run.name)
        assert job["gpus"] == run.gpus
        assert job["samples"] >= run.gpus


@pytest.mark.parametrize("name", KINDS)
def test_samples_that_no_job_was_there_for_are_in_no_job(
    name: str, lakes: Mapping[str, Filled], truths: Mapping[str, Truth]
) -> None:
    truth = truths[name]
    inside = [
        (stay.gpu, sample.t)
        for stays in truth.stays.values()
        for stay in stays
        for sample in during(truth.samples, stay)
    ]
    assert len(set(inside)) == len(inside) < sum(map(len, truth.samples.values()))
    assert sum(job["samples"] for job in jobs_of(lakes[name])) == len(inside)


@pytest.mark.parametrize("name", ["rest", "mapped"])
def test_no_run_has_a_sample_in_which_a_gpu_was_of_another(
    name: str, truths: Mapping[str, Truth]
) -> None:
    truth = truths[name]
    of = {
        (run.job_id, sample.reading.job)
        for run, stays in truth.stays.items()
        for stay in stays
        for sample in during(truth.samples, stay)
        if sample.reading.t < stay.end  # a busy exporter answers later than it was asked
    }
    assert {(mine, there) for mine, there in of if there not in (None, int(mine))} == set()


@pytest.mark.parametrize("name", ["rest", "mapped"])
@pytest.mark.parametrize("job", ["left", "pair", "again"])
def test_the_report_of_a_job_names_the_gpus_that_slurm_gave(
    name: str,
    job: str,
    recording: Recording,
    lakes: Mapping[str, Filled],
    truths: Mapping[str, Truth],
) -> None:
    truth = truths[name]
    for number, run in enumerate(runs_of(recording, job), start=1):
        report = json.loads(lakes[name].run("job", run.display_id, "--run", str(number), "--json"))
        reported = {(gpu["node"], gpu["gpu"]): gpu["samples"] for gpu in report["per_gpu"]}
        assert reported == {stay.gpu: len(during(truth.samples, stay)) for stay in truth.stays[run]}
        assert set(reported) == {stay.gpu for stay in stays_from_the_scheduler(run, recording.held)}


def test_without_gpu_records_jobs_on_shared_nodes_are_ambiguous(
    lakes: Mapping[str, Filled], truths: Mapping[str, Truth]
) -> None:
    jobs, truth = jobs_of(lakes["unrecorded"]), truths["unrecorded"]
    for run, stays in truth.stays.items():
        job = the_job(jobs, run)
        if run.name == "whole":
            assert job["attribution"] == "whole_node"
            assert not differences(job, numbers(run, stays, truth.samples))
        else:
            assert (job["attribution"], job["gpu_util_mean"], job["energy_j"]) == (
                "ambiguous",
                None,
                None,
            ), run


def with_gpus(recording: Recording) -> list[Run]:
    """Runs that began and held GPUs: those that are reported."""
    return [run for run in recording.runs if run.start is not None and run.gpus]


def jobs_of(lake: Filled) -> list[dict[str, Any]]:
    """The scenario's jobs in a lake; the cluster runs those of other tests, too."""
    return [job for job in lake.jobs() if job["name"] in WANTED]


def runs_of(recording: Recording, name: str) -> list[Run]:
    return sorted(
        (run for run in with_gpus(recording) if run.name == name), key=lambda run: run.submit
    )


def key_of_run(run: Run) -> tuple[str, str, str]:
    return run.job_id, run.display_id, datetime.fromtimestamp(run.submit, UTC).isoformat()


def key_of_job(job: Mapping[str, Any]) -> tuple[str, str, str]:
    return job["job_id"], job["display_id"], job["submit"]


def the_job(jobs: list[dict[str, Any]], run: Run) -> dict[str, Any]:
    (job,) = [job for job in jobs if key_of_job(job) == key_of_run(run)]
    return job


def differences(
    job: Mapping[str, Any], expected: Mapping[str, float | None]
) -> dict[str, tuple[Any, Any]]:
    """Columns in which a job is not what it must be, beyond the rounding of single precision."""
    return {
        name: (job[name], value)
        for name, value in expected.items()
        if not _same(job[name], value, 1e-6 if name.endswith("imbalance") else 1e-9)
    }


def _same(reported: float | None, expected: float | None, nothing: float) -> bool:
    """Whether two values agree; an imbalance is one less a ratio near one, which loses digits of
    the ratio.
    """
    if reported is None or expected is None:
        return reported is expected
    return math.isclose(reported, expected, rel_tol=1e-6, abs_tol=nothing)
