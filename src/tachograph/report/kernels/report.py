"""What reports of Nsight Compute tell of kernels, as one structure that text, JSON, CSV and HTML render.

Kernels of different GPUs are never compared: each GPU has its own part, and no pair spans two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from pathlib import Path

from tachograph.config import Configuration
from tachograph.errors import InputError, UsageError
from tachograph.interference.calibration_file import calibration_of
from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.jobs import mixes
from tachograph.interference.outcome import Estimate, Matrix, Sharing
from tachograph.interference.profile.collect import options_for
from tachograph.interference.profile.kernels import Kernel, kernels
from tachograph.interference.sharing.estimate import estimate
from tachograph.interference.sharing.matrix import matrix
from tachograph.nsight.launch import Report
from tachograph.report.kernels.choose import chosen, labels, one
from tachograph.report.kernels.facts import Fact, facts_of, scores_of
from tachograph.report.kernels.judged import Judged, judge
from tachograph.units import plural


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the reports. together, explain: kernels by number, name, pattern. shares: of SMs, under MPS."""

    kernels: tuple[str, ...] = ()
    device: str | None = None
    top: int | None = None
    explain: str | None = None
    together: tuple[str, ...] = ()
    matrix: bool = False
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class KernelView:
    """One kernel. share: fraction 0..1 of the time of all kernels on its GPU, None where times are not told."""

    number: int
    label: str
    kernel: Kernel
    share: float | None
    facts: Mapping[str, Fact]
    scores: Mapping[str, Fact]
    judged: Judged

    @property
    def demand(self) -> Demand:
        """What it asks, under the name that tells it apart."""
        return self.kernel.demand.named(self.label)


@dataclass(frozen=True, slots=True)
class Lacking:
    """What was not collected. `of`: numbers of the kernels that lack it."""

    metric: str
    tells: str
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """What happens when `members` (numbers) run at the same time."""

    members: tuple[KernelView, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class GpuPart:
    """The kernels of one GPU. pairs: rows are the kernels, columns `columns`; None where it was not asked for.

    mixed: all kernels of these reports beside all of the other's, weighted by time; None without another report.
    """

    gpu: Gpu
    calibration: Calibration
    kernels: tuple[KernelView, ...]
    left_out: int  # kernels beyond `top`
    columns: tuple[KernelView, ...]
    pairs: Matrix | None
    lacking: tuple[Lacking, ...]
    command: str | None  # that collects what lacks
    mixed: mixes.Together | None = None


@dataclass(frozen=True, slots=True)
class FileRead:
    """One file: what was read of it, what was left out."""

    file: str
    launches: int
    rejected: Mapping[str, int]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelsReport:
    """Everything that is told. problems: lines for people, of files and of kernels."""

    files: tuple[FileRead, ...]
    parts: tuple[GpuPart, ...]
    sharing: Sharing
    together: Together | None
    explained: KernelView | None
    beside: tuple[str, ...]  # files whose kernels are the columns of pairs
    problems: tuple[str, ...]


def build_kernels_report(
    reports: Sequence[Report], asked: Asked, *, configuration: Configuration, beside: Sequence[Report] = ()
) -> KernelsReport:
    """Return what is told of the kernels of `reports`, those that took most time first on each GPU.

    `beside`: other reports, whose kernels run beside each of these.
    Errors: InputError where the reports hold no kernel, NotFoundError, UsageError for kernels that are not there.
    """
    found, others = _kernels(reports), _kernels(beside) if beside else ()
    views = _views(found, others, calibration_of(configuration))
    kept = {id(kernel) for kernel in chosen(found, asked.kernels, asked.device)}
    mine = [view for view in views[: len(found)] if id(view.kernel) in kept]
    theirs = views[len(found) :]
    sharing = Sharing() if asked.shares is None else Sharing("mps", asked.shares)
    parts = _parts(mine, theirs, asked, sharing, configuration)
    if beside and not any(part.columns for part in parts):
        names = [", ".join(sorted({view.kernel.gpu.name for view in side})) for side in (mine, theirs)]
        raise UsageError(f"these ran on {names[0]}, the others on {names[1]}", do="compare kernels of one GPU")
    return KernelsReport(
        files=tuple(_file(report) for report in (*reports, *beside)),
        parts=parts,
        sharing=sharing,
        together=_together(views, asked, sharing, configuration) if asked.together else None,
        explained=one(views, asked.explain) if asked.explain is not None else None,
        beside=tuple(report.file for report in beside),
        problems=_problems([*reports, *beside], [view.kernel for view in mine]),
    )


def _kernels(reports: Sequence[Report]) -> tuple[Kernel, ...]:
    launches = [launch for report in reports for launch in report.launches]
    if not launches:
        said = next((problem for report in reports for problem in report.problems), "no kernel was profiled")
        files = ", ".join(Path(report.file).name for report in reports[:3])
        raise InputError(said, where=files, do="profile with `ncu -o FILE PROGRAM`")
    return kernels(launches)


def _views(found: Sequence[Kernel], others: Sequence[Kernel], calibration: Calibration) -> list[KernelView]:
    """All kernels, numbered in the order in which they come; shares are of the time of their own reports."""
    named = labels([*found, *others])
    return [
        KernelView(
            number, label, kernel, share, facts_of(kernel), scores_of(kernel), judge(kernel, calibration=calibration)
        )
        for number, (kernel, label, share) in enumerate(
            zip([*found, *others], named, [*_shares(found), *_shares(others)], strict=True), 1
        )
    ]


def _shares(found: Sequence[Kernel]) -> list[float | None]:
    """Of the time of all kernels on the same GPU."""
    seconds: dict[tuple[object, ...], float] = {}
    for kernel in found:
        seconds[gpu_key(kernel)] = seconds.get(gpu_key(kernel), 0.0) + (kernel.seconds or 0.0)
    return [kernel.seconds / seconds[gpu_key(kernel)] if kernel.seconds else None for kernel in found]


def gpu_key(kernel: Kernel) -> tuple[object, ...]:
    """Return what kernels of one GPU share; a slice of a GPU bears its name, and has fewer SMs."""
    gpu = kernel.gpu
    named = kernel.chip.name is not None
    return gpu.name, gpu.sms, kernel.chip.compute_capability, () if named else kernel.reports


def _parts(
    mine: Sequence[KernelView],
    theirs: Sequence[KernelView],
    asked: Asked,
    sharing: Sharing,
    configuration: Configuration,
) -> tuple[GpuPart, ...]:
    keys = list(dict.fromkeys(gpu_key(view.kernel) for view in mine))
    return tuple(
        _part(
            [view for view in mine if gpu_key(view.kernel) == key],
            [view for view in theirs if gpu_key(view.kernel) == key],
            asked,
            sharing,
            configuration,
        )
        for key in keys
    )


def _part(
    mine: Sequence[KernelView],
    theirs: Sequence[KernelView],
    asked: Asked,
    sharing: Sharing,
    configuration: Configuration,
) -> GpuPart:
    shown = tuple(mine if asked.top is None else mine[: asked.top])
    columns = tuple(theirs) or (shown if asked.matrix else ())
    gpu, calibration = mine[0].kernel.gpu, calibration_of(configuration)
    pairs = None
    if columns:
        if sharing.shares is not None and len(sharing.shares) != 2 and not asked.together:
            raise UsageError("pairs have two shares", where="--mps-share", do="write 50,50")
        pairs = matrix(
            [view.demand for view in shown],
            [view.demand for view in columns],
            gpu=gpu,
            calibration=calibration,
            sharing=sharing if sharing.shares is None or len(sharing.shares) == 2 else Sharing("mps"),
            settings=configuration.interference,
        )
    mixed = _mixed(mine, theirs, gpu, calibration) if theirs and sharing == Sharing() else None
    lacking = _lacking(shown)
    return GpuPart(
        gpu,
        calibration,
        shown,
        len(mine) - len(shown),
        columns,
        pairs,
        lacking,
        _command(lacking) if lacking else None,
        mixed,
    )


def _mixed(
    mine: Sequence[KernelView], theirs: Sequence[KernelView], gpu: Gpu, calibration: Calibration
) -> mixes.Together:
    """All beside all, each kernel meeting those of the other side as often as these run."""
    here, there = (mixes.mix([view.demand for view in side]) for side in (mine, theirs))
    return mixes.together(here, there, pairs=partial(matrix, gpu=gpu, calibration=calibration))


def _together(views: Sequence[KernelView], asked: Asked, sharing: Sharing, configuration: Configuration) -> Together:
    members = tuple(one(views, name) for name in asked.together)
    if len(members) < 2:
        raise UsageError("one kernel is alone", where="--together", do="name two or more, or one twice")
    if sharing.shares is not None and len(sharing.shares) != len(members):
        said = f"{plural(len(sharing.shares), 'share')} for {plural(len(members), 'kernel')}"
        raise UsageError(said, where="--mps-share", do="give one percentage for each")
    if len({gpu_key(view.kernel) for view in members}) > 1:
        ran = "; ".join(f"{view.label} on {view.kernel.gpu.name}" for view in members)
        raise UsageError(f"kernels of different GPUs cannot be put together: {ran}", do="profile both on one GPU")
    found = estimate(
        [view.demand for view in members],
        gpu=members[0].kernel.gpu,
        calibration=calibration_of(configuration),
        sharing=sharing,
        settings=configuration.interference,
    )
    return Together(members, found)


def _lacking(views: Sequence[KernelView]) -> tuple[Lacking, ...]:
    """What kernels lack, in the order in which it is missed, each metric once."""
    of: dict[tuple[str, str], list[int]] = {}
    for view in views:
        for missing in view.kernel.missing:
            of.setdefault((missing.metric, missing.tells), []).append(view.number)
    return tuple(Lacking(metric, tells, tuple(numbers)) for (metric, tells), numbers in of.items())


def _command(lacking: Sequence[Lacking]) -> str:
    return f"ncu {options_for([lack.metric for lack in lacking])} -o REPORT PROGRAM"


def _file(report: Report) -> FileRead:
    rejected = Counter[str]()
    for reject in report.rejects:
        rejected[reject.reason] += reject.count
    return FileRead(report.file, len(report.launches), dict(rejected), report.problems)


def _problems(reports: Sequence[Report], found: Sequence[Kernel]) -> tuple[str, ...]:
    """What people must know: of each file what could not be used, of each kernel what is odd."""
    said = []
    for report in reports:
        said += [f"{report.file}: {problem}" for problem in report.problems]
        for reject in report.rejects:
            example = f", such as {reject.example}" if reject.example else ""
            of = "" if reject.column is None else f" of {reject.column}"
            what = plural(reject.count, "value" if of else "row")
            said.append(f"{report.file}: left out {what}{of}: {reject.reason}{example}")
    said += [f"{kernel.short}: {problem}" for kernel in found for problem in kernel.problems]
    return tuple(dict.fromkeys(said))


def total_s(part: GpuPart) -> float | None:
    """Return the time of the kernels that are shown, None where none is told."""
    told = [view.kernel.seconds for view in part.kernels if view.kernel.seconds is not None]
    return fsum(told) if told else None
