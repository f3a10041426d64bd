"""Which kinds of jobs of a lake could share GPUs: all pairs judged, the best ones matched, and what that would save."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

import polars as pl

from tachograph.config import Interference, Thresholds
from tachograph.devices import match
from tachograph.errors import UsageError
from tachograph.interference.demand import Calibration
from tachograph.interference.jobs.mixes import gpu_of_device
from tachograph.report.colocate.judge import EstimatorOf, Judge, Proposal
from tachograph.report.colocate.kinds import LEAST_RUNS, Kind, candidates, missing_counters
from tachograph.report.colocate.of_all import KindMatrix, matrix_of
from tachograph.report.colocate.pairs import Pair, explained, first_judged, matched, order
from tachograph.report.colocate.profiles import Given, Read, nothing_read, profiled

MOST_KINDS = 150  # of one model and number of GPUs, those of most GPU-hours: all their pairs are judged


@dataclass(frozen=True, slots=True)
class ColocateReport:
    """What could share, of `jobs` that were looked at.

    proposals: most saved first, no kind in two of them. refused: other pairs, where they were asked for, the first of
    `not_proposed`. chosen: the
    pair that was asked for, explained. left_out: (reason, jobs, GPU-hours). missing: counters that no job has.
    achievable: {model: share of the peak bandwidth of memory that can be achieved, as far as is known}. short:
    (resource, pairs that were judged and not proposed for it, most first). cut: kinds that were not compared, for there
    are too many. profiled: kinds that are judged by their kernels. refused_profiles: a line for each that is not used.
    matrices: all kinds beside all, where asked for, one of each model and number of GPUs.
    """

    jobs: int
    gpu_hours: float
    first: datetime | None
    last: datetime | None
    kinds: int
    proposals: tuple[Proposal, ...]
    refused: tuple[Proposal, ...]
    chosen: tuple[Proposal, ...]
    left_out: tuple[tuple[str, int, float], ...]
    missing: tuple[str, ...]
    achievable: tuple[tuple[str, float], ...]
    calibration: Calibration
    settings: Interference
    short: tuple[tuple[str, int], ...] = ()
    least_runs: int = LEAST_RUNS
    cut: int = 0
    not_proposed: int = 0
    zone_name: str = "UTC"
    profiled: tuple[Kind, ...] = ()
    refused_profiles: tuple[str, ...] = ()
    matrices: tuple[KindMatrix, ...] | None = None

    @property
    def saved_h(self) -> float:
        """GPU-hours that all proposals together would save."""
        return math.fsum(proposal.saved_h for proposal in self.proposals)


def build_colocate_report(
    summaries: pl.DataFrame,
    verdicts: pl.DataFrame,
    *,
    settings: Interference,
    thresholds: Thresholds,
    calibration: Calibration,
    estimator_of: EstimatorOf,
    least_runs: int = LEAST_RUNS,
    every: bool = False,
    top: int | None = None,
    pair: tuple[str, str] | None = None,
    matrix: bool = False,
    profiles: Sequence[Given] = (),
    read: Read = nothing_read,
    zone_name: str = "UTC",
) -> ColocateReport:
    """Return the report on (already filtered) rows of job_summaries.

    `verdicts`: rows of findings with job_key, code, verdict, those of the class `stable` among them. `every`: pairs
    that are not proposed, too, at most `top` of them. `pair`: two kinds (user/name) or jobs (ids) that shall be
    explained. `matrix`: all kinds beside all in place of proposals. `profiles`: reports of Nsight Compute of kinds,
    which `read` reads.
    Errors: NotFoundError for a kind of the pair that there is not; UsageError for one that cannot be compared; that of
    the first profile where none named at the command can be used.
    """
    if least_runs < 1:
        raise UsageError(f"--runs {least_runs} makes no sense", do="give 1 or more")
    achievable = _achievable(summaries, calibration)
    found = candidates(
        summaries,
        verdicts,
        settings=settings,
        thresholds=thresholds,
        achievable=achievable,
        least_runs=1 if pair else least_runs,
    )
    by_profile = profiled(found, profiles, read)
    found = replace(found, kinds=by_profile.kinds)

    def judge_of(kind: Kind) -> Judge:
        model = kind.device.name
        here = replace(calibration, achievable_share=achievable[model])
        gpu = gpu_of_device(kind.device)
        return Judge(gpu, here, settings, estimator_of(gpu, here))

    proposals: list[Proposal] = []
    refused: list[Pair] = []
    short: Counter[str] = Counter()
    matrices: list[KindMatrix] = []
    cut = 0
    for kinds in () if pair else _comparable(found.kinds):
        cut += max(0, len(kinds) - MOST_KINDS)
        if matrix:
            matrices.append(matrix_of(kinds[:MOST_KINDS], judge_of(kinds[0])))
            continue
        judged = matched(kinds[:MOST_KINDS], judge_of(kinds[0]), every=every)
        proposals += judged.found
        refused += judged.others
        short += judged.short
    return ColocateReport(
        jobs=summaries.height,
        gpu_hours=float(summaries.get_column("gpu_hours").sum()),
        first=summaries.select(pl.col("start").min()).item() if summaries.height else None,
        last=summaries.select(pl.col("as_of").max()).item() if summaries.height else None,
        kinds=len(found.kinds),
        proposals=tuple(sorted(proposals, key=order)),
        refused=tuple(first_judged(refused, top)),
        not_proposed=len(refused),
        chosen=tuple(explained(found, pair, judge_of)) if pair else (),
        left_out=tuple(found.reasons()),
        missing=tuple(missing_counters(summaries)) if summaries.height else (),
        achievable=tuple(sorted((name, achievable[name]) for name in {kind.device.name for kind in found.kinds})),
        calibration=calibration,
        settings=settings,
        short=tuple(sorted(short.items(), key=lambda item: (-item[1], item[0]))),
        least_runs=least_runs,
        cut=cut,
        zone_name=zone_name,
        profiled=tuple(kind for kind in found.kinds if kind.profile),
        refused_profiles=by_profile.refused,
        matrices=tuple(matrices) if matrix else None,
    )


def _achievable(summaries: pl.DataFrame, calibration: Calibration) -> dict[str, float]:
    """{model: share of peak bandwidth}: as calibrated, or the highest sample of any job, where that is more."""
    seen = summaries.group_by("gpu_model").agg(pl.col("dram_active_max").max()).iter_rows()
    known = [(device.name, share or 0.0) for model, share in seen if (device := match(model)) is not None]
    return {
        name: max([calibration.achievable_share, *(min(1.0, share) for model, share in known if model == name)])
        for name, _ in known
    }


def _comparable(kinds: Sequence[Kind]) -> Iterator[list[Kind]]:
    """Kinds on as many GPUs of one model each: of a job on several GPUs the slowest one sets the pace."""

    def shape(kind: Kind) -> tuple[str, int]:
        return kind.device.name, kind.gpus

    for _, group in groupby(sorted(kinds, key=shape), key=shape):
        yield list(group)
