"""What the numbers of every job must be: recomputed in plain Python from the exporters' pages and
Slurm's records.

The time of a sample is when the server requested the page (what it stores), its values are what the
page reported. Accounted times are whole seconds. A sample is a job's from its accounted start on
and before its accounted end: [start, end). Where a map reports the GPUs, also from the prolog on
and before the epilog. In the second in which a GPU goes from one job to the next it is of neither,
unless a map with fractions or the label tells.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import httpx2
from slurm_exporter import PAGE_NUMBER, Exporter, Reading
from slurm_scenario import BETWEEN

WINDOW_S = 60  # of spatial imbalance
Gpu = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one GPU: seconds since 1970, values."""

    t: float
    reading: Reading


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job as sacct reports it, in seconds since 1970; `start` None: it never ran."""

    job_id: str
    display_id: str
    name: str
    state: str
    exit_code: str
    submit: float
    start: float | None
    end: float
    nodes: str
    gpus: int

    @property
    def ran(self) -> tuple[float, float]:
        """From when to when, of a run that ran."""
        if self.start is None:
            raise ValueError(f"{self} never ran")
        return self.start, self.end


@dataclass(frozen=True, slots=True)
class Held:
    """A line of prolog and its epilog: who held which GPUs of a node."""

    job_id: str
    node: str
    gpus: tuple[int, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Stay:
    """When one run held one GPU, as far as the lake knows."""

    gpu: Gpu
    start: float
    end: float
    unsure_s: float = 0.0  # from its start on, in which samples may be another run's


def read_accounting(path: Path) -> list[Run]:
    """Runs that have ended, of a `sacct --parsable2` in UTC, without steps. Jobs of other tests
    may still run.
    """
    header, *lines = path.read_text().splitlines()
    rows = [dict(zip(header.split(BETWEEN), line.split(BETWEEN), strict=False)) for line in lines]
    return [_run(row) for row in rows if "." not in row["JobID"] and row["End"] != "Unknown"]


def _run(row: Mapping[str, str]) -> Run:
    tres = dict(part.partition("=")[::2] for part in row["AllocTRES"].split(",") if part)
    start = row["Start"]
    return Run(
        row["JobIDRaw"],
        row["JobID"],
        row["JobName"],
        row["State"].partition(" ")[0],
        row["ExitCode"],
        _seconds(row["Submit"]),
        None if start in {"None", "Unknown"} else _seconds(start),
        _seconds(row["End"]),
        row["NodeList"],
        int(tres.get("gres/gpu", "0")),
    )


def _seconds(written: str) -> float:
    return datetime.fromisoformat(written).replace(tzinfo=UTC).timestamp()


def read_map(folder: Path) -> list[Held]:
    """What prolog and epilog wrote, in order; of a requeued job once per run."""
    opened: dict[tuple[str, str], float] = {}
    held = []
    for line in "".join(path.read_text() for path in sorted(folder.iterdir())).splitlines():
        written, event, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        key = (values["job"], values["node"])
        if event == "prolog":
            opened[key] = float(written)
        else:
            gpus = tuple(map(int, values["gpus"].split(",")))
            held.append(Held(*key, gpus, opened.pop(key), float(written)))
    return held


def of_run(run: Run, held: Iterable[Held]) -> list[Held]:
    """What was given to a run: what was given to its job and not taken back before the run
    began.
    """
    start, end = run.ran
    return [
        one for one in held if one.job_id == run.job_id and one.start <= end and one.end >= start
    ]


def stays_from_the_scheduler(run: Run, held: Iterable[Held]) -> list[Stay]:
    """When a run held which GPU, where the scheduler reported it: as long as the run lasted."""
    start, end = run.ran
    return [Stay((one.node, gpu), start, end) for one in of_run(run, held) for gpu in one.gpus]


def without_handovers(stays: Mapping[Run, Sequence[Stay]]) -> dict[Run, list[Stay]]:
    """The same; unsure in their first second where another run had the GPU until then."""
    every = [(run, stay) for run in stays for stay in stays[run]]

    def follows(run: Run, stay: Stay) -> bool:
        return any(
            other is not run and before.gpu == stay.gpu and before.start < stay.start <= before.end
            for other, before in every
        )

    return {
        run: [replace(stay, unsure_s=float(follows(run, stay))) for stay in stays[run]]
        for run in stays
    }


def stays_on_the_map(run: Run, held: Iterable[Held]) -> list[Stay]:
    """The same, where prolog and epilog reported it: no earlier and no later than they did."""
    start, end = run.ran
    return [
        Stay((one.node, gpu), max(start, one.start), min(end, one.end))
        for one in of_run(run, held)
        for gpu in one.gpus
    ]


def stays_by_label(run: Run, samples: Mapping[Gpu, Sequence[Sample]]) -> list[Stay]:
    """The same, where samples name the job: from the first that does to the next that does not."""
    start, end = run.ran
    stays = []
    for gpu, rows in samples.items():
        named = [
            n
            for n, row in enumerate(rows)
            if row.reading.job == int(run.job_id) and start <= row.t < end
        ]
        if named:
            after = rows[named[-1] + 1 :]
            stays.append(
                Stay(gpu, max(start, rows[named[0]].t), min(end, after[0].t if after else end))
            )
    return stays


def samples_of(
    url: str, exporters: Mapping[str, Exporter], *, since: float, until: float
) -> dict[Gpu, list[Sample]]:
    """Every sample a server has: when, by its own account; and what, by the exporter's pages."""
    query = {"query": f"{PAGE_NUMBER}[15m]", "time": f"{until:.3f}"}
    answer = httpx2.get(f"{url}/api/v1/query", params=query, timeout=30).raise_for_status().json()
    samples: dict[Gpu, list[Sample]] = defaultdict(list)
    for series in answer["data"]["result"]:
        node = series["metric"]["Hostname"]
        for t, page in series["values"]:
            if since <= float(t) < until:
                for gpu, reading in enumerate(exporters[node].pages[int(page)]):
                    samples[node, gpu].append(Sample(float(t), reading))
    return {gpu: sorted(rows, key=lambda sample: sample.t) for gpu, rows in samples.items()}


def during(samples: Mapping[Gpu, Sequence[Sample]], stay: Stay) -> list[Sample]:
    """The samples of one stay."""
    return [
        sample for sample in samples[stay.gpu] if stay.start + stay.unsure_s <= sample.t < stay.end
    ]


def numbers(
    run: Run, held: Sequence[Stay], samples: Mapping[Gpu, Sequence[Sample]]
) -> dict[str, float | None]:
    """What `tachograph jobs --json` must report of a run, for the columns that are compared."""
    of = {stay: during(samples, stay) for stay in held}
    with_samples = [rows for rows in of.values() if rows]
    utils = [[sample.reading.gpu_util / 100 for sample in rows] for rows in with_samples]
    energies = {stay: _energy(rows) for stay, rows in of.items() if len(rows) > 1}
    scaled = [
        grown * (stay.end - stay.start) / seconds for stay, (grown, seconds) in energies.items()
    ]
    span = math.fsum(stay.end - stay.start for stay in energies)
    return {
        "gpus": len(held),
        "samples": sum(map(len, of.values())),
        "gpu_util_mean": _mean([_mean(values) for values in utils]),
        "gpu_util_max": max((value for values in utils for value in values), default=None),
        "hbm_used_mib_max": max(
            (s.reading.hbm_used_mib for rows in with_samples for s in rows), default=None
        ),
        "power_w_sampled_mean": _mean(
            [_mean([s.reading.power_w for s in rows]) for rows in with_samples]
        ),
        "power_w_max": max(
            (s.reading.power_w for rows in with_samples for s in rows), default=None
        ),
        "energy_j": math.fsum(grown for grown, _ in energies.values()) if energies else None,
        "energy_j_estimated": math.fsum(scaled) if energies else None,
        "power_w_mean": math.fsum(scaled) / span if energies else None,
        "spatial_imbalance": _spatial_imbalance(run, of),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _energy(rows: Sequence[Sample]) -> tuple[float, float]:
    """What the counter grew by while it was read, J, and for how long that was, s."""
    grown = math.fsum(b.reading.energy_mj - a.reading.energy_mj for a, b in pairwise(rows)) / 1000
    return grown, rows[-1].t - rows[0].t


def _spatial_imbalance(run: Run, of: Mapping[Stay, Sequence[Sample]]) -> float | None:
    """Mean of 1 - sum / (GPUs x largest sum) over windows that are not idle, from the start on;
    null for one GPU.
    """
    if len(of) < 2:
        return None
    windows: dict[int, dict[Stay, float]] = defaultdict(lambda: defaultdict(float))
    for stay, rows in of.items():
        for sample in rows:
            windows[int((sample.t - run.ran[0]) // WINDOW_S)][stay] += sample.reading.gpu_util / 100
    sums = [list(window.values()) for window in windows.values()]
    return _mean(
        [1 - math.fsum(window) / (len(of) * max(window)) for window in sums if max(window) > 0]
    )
