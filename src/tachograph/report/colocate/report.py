"""Which kinds of jobs of a lake could share GPUs: all pairs judged, the best ones matched, and what that would save."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

import polars as pl

from tachograph.config import Interference, Thresholds
from tachograph.devices import match
from tachograph.errors import NotFoundError, UsageError
from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.jobs.advice import CONTEXT_BYTES, Advice, advise
from tachograph.interference.jobs.mixes import Pairs, Together, gpu_of_device, issuing, together
from tachograph.interference.outcome import Estimate, Matrix, Sharing
from tachograph.report.colocate.kinds import LEAST_RUNS, LEFT_OUT, Candidates, Kind, candidates, missing_counters
from tachograph.report.columns import must_exist
from tachograph.units import MI

MOST_PACKED = 8  # runs of one kind on a GPU that are tried
MOST_KINDS = 150  # of one model and number of GPUs, those of most GPU-hours: all their pairs are judged


@dataclass(frozen=True, slots=True)
class Estimator:
    """What tells of demands on one GPU: all pairs, and a set that shares in some way."""

    pairs: Pairs
    estimate: Callable[[Sequence[Demand], Sharing], Estimate]


# the estimator of one GPU, calibrated
EstimatorOf = Callable[[Gpu, Calibration], Estimator]


_UNASKED = Estimate((), {}, None, None, safe=False, unknown=())  # of a pair that memory does not hold


@dataclass(frozen=True, slots=True)
class Proposal:
    """Two kinds on one GPU in place of two; both may be the same kind: two of its runs.

    overlap_h: GPU-hours of one of them that the other can run beside, at the most. saved_h: GPU-hours fewer then; 0
    where it is not proposed. taken: one of them is in a pair that saves more. packed: so many runs of a kind beside
    itself may share under MPS. runs: what is expected over all pairs of their runs; None where not asked for.
    """

    one: Kind
    other: Kind
    advice: Advice
    overlap_h: float
    saved_h: float
    taken: bool = False
    packed: int = 2
    runs: Together | None = None

    @property
    def memory(self) -> float | None:
        """Share of a GPU's memory that both need together, and a further context; None not known."""
        return memory_share(self.one, self.other)

    @property
    def same_user(self) -> bool:
        """Whether both are of one user, who can do it without asking anybody."""
        return self.one.user is not None and self.one.user == self.other.user


@dataclass(frozen=True, slots=True)
class ColocateReport:
    """What could share, of `jobs` that were looked at.

    proposals: most saved first, no kind in two of them. refused: other pairs, where they were asked for. chosen: the
    pair that was asked for, explained. left_out: (reason, jobs, GPU-hours). missing: counters that no job has.
    achievable: {model: share of the peak bandwidth of memory that can be achieved, as far as is known}. cut: kinds that
    were not compared, for there are too many.
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
    cut: int = 0
    zone_name: str = "UTC"

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
    pair: tuple[str, str] | None = None,
    zone_name: str = "UTC",
) -> ColocateReport:
    """Return the report on (already filtered) rows of job_summaries.

    `verdicts`: rows of findings with job_key, code, verdict, those of the class `stable` among them. `every`: pairs
    that are not proposed, too. `pair`: two kinds (user/name) or jobs (ids) that shall be explained.
    Errors: NotFoundError for a kind of the pair that there is not; UsageError for one that cannot be compared.
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

    def judge_of(kind: Kind) -> _Judge:
        model = kind.device.name
        here = replace(calibration, achievable_share=achievable[model])
        gpu = gpu_of_device(kind.device)
        return _Judge(gpu, here, settings, estimator_of(gpu, here))

    proposals: list[Proposal] = []
    refused: list[Proposal] = []
    cut = 0
    for kinds in () if pair else _comparable(found.kinds):
        judged, others = _matched(kinds[:MOST_KINDS], judge_of(kinds[0]), every=every)
        proposals += judged
        refused += others
        cut += max(0, len(kinds) - MOST_KINDS)
    return ColocateReport(
        jobs=summaries.height,
        gpu_hours=float(summaries.get_column("gpu_hours").sum()),
        first=summaries.select(pl.col("start").min()).item() if summaries.height else None,
        last=summaries.select(pl.col("as_of").max()).item() if summaries.height else None,
        kinds=len(found.kinds),
        proposals=tuple(sorted(proposals, key=_order)),
        refused=tuple(sorted(refused, key=_order)),
        chosen=tuple(_explained(found, pair, judge_of)) if pair else (),
        left_out=tuple(found.reasons()),
        missing=tuple(missing_counters(summaries)) if summaries.height else (),
        achievable=tuple(sorted((name, achievable[name]) for name in {kind.device.name for kind in found.kinds})),
        calibration=calibration,
        settings=settings,
        cut=cut,
        zone_name=zone_name,
    )


def _order(proposal: Proposal) -> tuple[bool, float, float, str, str]:
    return (proposal.taken, -proposal.saved_h, -proposal.overlap_h, proposal.one.label, proposal.other.label)


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


@dataclass(frozen=True, slots=True)
class _Judge:
    gpu: Gpu
    calibration: Calibration
    settings: Interference
    estimator: Estimator

    def slowdowns(self, kinds: Sequence[Kind]) -> list[list[float]]:
        """Of each kind (row) beside each (column), of the runs that ask most; NaN not known."""
        asked = [_alike(kind.mix.highest) for kind in kinds]
        return [
            [1 + other.busy * (slowdown - 1) for slowdown, other in zip(row, kinds, strict=True)]
            for row in self.estimator.pairs(asked, asked).slowdown.tolist()
        ]

    def full(self, one: Kind, other: Kind) -> bool:
        """Whether memory is known not to hold both."""
        return (memory_share(one, other) or 0.0) > self.settings.safe_hbm

    def proposal(self, one: Kind, other: Kind) -> Proposal:
        """What is to be said of a pair: limits and slowdowns are those of the runs that ask most."""
        demands = [one.mix.highest, other.mix.highest]
        full = self.full(one, other)  # then nothing else is looked at
        same_user = one.user is not None and one.user == other.user
        advice = self._advice(demands, (one.busy, other.busy), same_user=same_user, full=full)
        overlap = _overlap_h(one, other)
        return Proposal(one, other, advice, overlap, _saved_h(advice, overlap))

    def _advice(
        self, demands: Sequence[Demand], busy: Sequence[float], *, same_user: bool, full: bool = False
    ) -> Advice:
        asked = [_alike(demand) for demand in demands]
        return advise(
            _UNASKED if full else self.estimator.estimate(asked, Sharing("mps")),
            demands,
            gpu=self.gpu,
            settings=self.settings,
            calibration=self.calibration,
            busy=busy,
            same_user=same_user,
            shared=lambda shares: self.estimator.estimate(asked, Sharing("mps", shares)),
        )

    def packed(self, proposal: Proposal) -> Proposal:
        """The same with how many runs of a kind may share at once, of those that there are."""
        kind, count = proposal.one, 2
        if kind is not proposal.other or proposal.advice.way != "mps":
            return proposal
        while count < min(MOST_PACKED, kind.runs):
            more = count + 1
            if self._advice([kind.mix.highest] * more, [kind.busy] * more, same_user=True).way != "mps":
                break
            count = more
        return replace(proposal, packed=count)

    def over_runs(self, proposal: Proposal) -> Proposal:
        """The same with what is expected over all pairs of runs."""

        def pairs(rows: Sequence[Demand], columns: Sequence[Demand]) -> Matrix:
            return self.estimator.pairs([_alike(row) for row in rows], [_alike(column) for column in columns])

        return replace(proposal, runs=together(proposal.one.mix, proposal.other.mix, pairs=pairs))


def _alike(demand: Demand) -> Demand:
    """A demand as the estimator takes it: the issue slots its pipes need, and as long as any other, for jobs that come
    again run beside each other all the time."""
    return replace(issuing(demand), seconds=1.0)


def memory_share(one: Kind, other: Kind) -> float | None:
    """Return the share of a GPU's memory that both need at their peaks, and a further context; None not known."""
    known = [kind.mix.highest.hbm_bytes for kind in (one, other) if kind.mix.highest.hbm_bytes is not None]
    return None if len(known) < 2 else (math.fsum(known) + CONTEXT_BYTES) / (one.device.hbm_mib * MI)


def _overlap_h(one: Kind, other: Kind) -> float:
    """GPU-hours of each that can run beside the other, were they always there at the same time."""
    return one.gpu_hours / 2 if one is other else min(one.gpu_hours, other.gpu_hours)


def _saved_h(advice: Advice, overlap_h: float) -> float:
    """Two GPUs for the overlap, less the one GPU that both take until the slower one is through."""
    known = [slowdown for slowdown in advice.slowdowns if slowdown is not None]
    if advice.way == "no" or len(known) < 2:
        return 0.0
    return max(0.0, overlap_h * (2 - max(known)))


def _matched(kinds: Sequence[Kind], judge: _Judge, *, every: bool) -> tuple[list[Proposal], list[Proposal]]:
    """Pairs in which no kind is twice, and with `every` all others.

    Greedy: pairs of one user first, in order of what they would save by the matrix of all pairs.
    """
    table = judge.slowdowns(kinds)
    order = sorted(
        (
            (_rank(kinds, table, i, j), i, j)
            for i, one in enumerate(kinds)
            for j in range(i, len(kinds))
            if i != j or one.runs > 1
        ),
        key=lambda item: item[0],
    )
    free, found, others = set(range(len(kinds))), [], []
    for _, i, j in order:
        taken = not (i in free and j in free)
        if not every and (taken or judge.full(kinds[i], kinds[j])):
            continue
        proposal = replace(judge.proposal(kinds[i], kinds[j]), taken=taken)
        if proposal.saved_h > 0 and not taken:
            found.append(judge.packed(proposal))
            free -= {i, j}
        elif every:
            others.append(proposal)
    return found, others


def _rank(kinds: Sequence[Kind], table: Sequence[Sequence[float]], i: int, j: int) -> tuple[bool, float, str, str]:
    one, other = kinds[i], kinds[j]
    slowest = max(table[i][j], table[j][i])
    saved = 0.0 if math.isnan(slowest) else _overlap_h(one, other) * (2 - min(2.0, slowest))
    own = one.user is not None and one.user == other.user
    return not own, -saved, one.label, other.label


def _explained(found: Candidates, pair: tuple[str, str], judge_of: Callable[[Kind], _Judge]) -> Iterator[Proposal]:
    """The pair on each model and number of GPUs where there are both."""
    ones, others = (_named(found, name) for name in pair)
    any_yet = False
    for one in ones:
        for other in others:
            if (one.device.name, one.gpus) != (other.device.name, other.gpus):
                continue
            if one is other and one.runs < 2:
                continue
            any_yet = True
            judge = judge_of(one)
            yield judge.over_runs(judge.proposal(one, other))
    if not any_yet:
        where = " and ".join(
            " or ".join(dict.fromkeys(f"{kind.gpus} x {kind.device.name}" for kind in kinds))
            for kinds in (ones, others)
        )
        raise UsageError(
            f"{pair[0]} and {pair[1]} cannot share: they ran on {where}",
            do="only jobs on as many GPUs of one model are compared, and a kind with itself only if it ran twice",
        )


def _named(found: Candidates, name: str) -> list[Kind]:
    """The kinds that a person means: user/name, or the id of a job.

    Errors: UsageError where it is left out, with the reason; NotFoundError where it is not known.
    """
    kinds = [
        kind for kind in found.kinds if name in (kind.label, f"{kind.user or '?'}/{kind.name}") or (name in kind.jobs)
    ]
    if kinds:
        return kinds
    called = pl.concat_str(pl.col("user").fill_null("?"), pl.lit("/"), pl.col("name").fill_null(""))
    mine = found.left_out.filter((called == name) | (pl.col("display_id") == name) | (pl.col("job_id") == name))
    if mine.is_empty():
        known = [kind.label for kind in found.kinds]
        must_exist([name], known, what="kind of job")
        raise NotFoundError(f"no kind of job {name!r}", do="write user/name, or the id of a job")
    reasons = dict.fromkeys(LEFT_OUT[reason] for reason in mine.get_column("reason"))
    raise UsageError(f"{name} cannot be judged: {'; '.join(reasons)}", do="name another, or see --help")
