"""The report on profiled kernels, built from reports: selected, numbered, evaluated where shown.

Kernels of different GPUs are never compared: each GPU has its own part, and no pair spans two. Only kernels that are
shown are evaluated; of the others only the demands are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tachograph.catalog.config import Configuration
from tachograph.catalog.devices import Device
from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.units import plural
from tachograph.nsight.launches import Chip, Launch, NcuReport
from tachograph.sharing import mixes
from tachograph.sharing.calibration import calibration_of
from tachograph.sharing.capacity import capability_of_device
from tachograph.sharing.demand import Calibration, Matrix, Sharing
from tachograph.sharing.estimate import estimate, matrix
from tachograph.sharing.kernel_facts import (
    DisturbingKernel,
    GpuPart,
    KernelsReport,
    KernelsRequest,
    KernelView,
    MissingMetric,
    ReportFileRead,
    SetEstimate,
    facts_of,
    judge_kernel,
    scores_of,
)
from tachograph.sharing.kernel_names import NumberedKernel, chosen, labels, one
from tachograph.sharing.kernels import Kernel, kernels_of, options_for

MOST_DISTURBERS = 40  # kernels of a table up to which all pairs are examined for the most disturbing ones
_DISTURBED = 1.1  # a slowdown below it is negligible
ProgressFunction = Callable[[str, int, int], None]


def build_kernels_report(
    reports: Sequence[NcuReport],
    request: KernelsRequest,
    *,
    configuration: Configuration,
    beside: Sequence[NcuReport] = (),
    progress: ProgressFunction | None = None,
) -> KernelsReport:
    """Return the report on the kernels of `reports`, on each GPU those of most time first.

    `beside`: other reports, whose kernels run beside each of these. `progress`: called with the step, the parts of it
    that are done, and all of them.
    Errors: InputError where the reports hold no kernel, NotFoundError, UsageError for kernels that are not there.
    """
    found, others = _kernels(reports), _kernels(beside) if beside else ()
    views = _numbered(found, others)
    judging = _KernelJudging(calibration_of(configuration), progress)
    kept = {id(kernel) for kernel in chosen(found, request.kernels, request.device)}
    mine = [view for view in views[: len(found)] if id(view.kernel) in kept]
    theirs = views[len(found) :]
    sharing = Sharing() if request.shares is None else Sharing("mps", request.shares)
    parts = _parts(mine, theirs, request, sharing, configuration, judging)
    if beside and not any(part.columns for part in parts):
        names = [", ".join(sorted({view.kernel.gpu.name for view in side})) for side in (mine, theirs)]
        raise UsageError(f"these ran on {names[0]}, the others on {names[1]}", do="compare kernels of one GPU")
    return KernelsReport(
        files=tuple(_file(report) for report in (*reports, *beside)),
        parts=parts,
        sharing=sharing,
        together=_together(views, request, sharing, configuration) if request.together else None,
        explained=judging.view(one(views, request.explain)) if request.explain is not None else None,
        beside=tuple(report.file for report in beside),
        problems=_problems([*reports, *beside], [view.kernel for view in mine]),
    )


_ONE_GPU = "the GPU of these reports, which they do not name"


def on_one_gpu(reports: Sequence[NcuReport], device: Device | None = None) -> tuple[NcuReport, ...]:
    """Return reports of which those that name no GPU are all of one: of `device`, or of an unknown model (None).

    CSV of the details page names none; each such report is a GPU of its own otherwise.
    """
    name = _ONE_GPU if device is None else f"NVIDIA {device.name}"
    capability = None if device is None else capability_of_device(device)

    def placed(launch: Launch) -> Launch:
        chip = launch.chip
        if chip.name is not None:
            return launch
        return replace(launch, chip=Chip(name, chip.compute_capability or capability, chip.attributes))

    return tuple(replace(report, launches=tuple(map(placed, report.launches))) for report in reports)


def _kernels(reports: Sequence[NcuReport]) -> tuple[Kernel, ...]:
    launches = [launch for report in reports for launch in report.launches]
    if not launches:
        text = next((problem for report in reports for problem in report.problems), "no kernel was profiled")
        files = ", ".join(Path(report.file).name for report in reports[:3])
        raise InputError(text, where=files, do="profile with `ncu -o FILE PROGRAM`")
    return kernels_of(launches)


@dataclass(slots=True)
class _KernelJudging:
    """Evaluates each shown kernel, once. size: how many there will be, as far as is known."""

    calibration: Calibration
    progress: ProgressFunction | None
    size: int = 0
    done: dict[int, KernelView] = field(default_factory=dict)

    def view(self, of: NumberedKernel) -> KernelView:
        """Return a kernel with all its results."""
        if of.number not in self.done:
            kernel = of.kernel
            judged = judge_kernel(kernel, calibration=self.calibration)
            facts = facts_of(kernel, judged.work)
            self.done[of.number] = KernelView(of.number, of.label, kernel, of.share, facts, scores_of(kernel), judged)
            if self.progress is not None:
                self.progress("judge kernels", len(self.done), max(self.size, len(self.done)))
        return self.done[of.number]


def _numbered(found: Sequence[Kernel], others: Sequence[Kernel]) -> list[NumberedKernel]:
    """All kernels, numbered in the order in which they come; shares are of the time of their own reports."""
    named = labels([*found, *others])
    return [
        NumberedKernel(number, label, kernel, share)
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
    mine: Sequence[NumberedKernel],
    theirs: Sequence[NumberedKernel],
    request: KernelsRequest,
    sharing: Sharing,
    configuration: Configuration,
    judging: _KernelJudging,
) -> tuple[GpuPart, ...]:
    sides = _by_gpu(mine), _by_gpu(theirs)
    shown = {key: views[: request.top] for key, views in sides[0].items()}
    judging.size = sum(map(len, shown.values()))
    return tuple(
        _part(
            views, sides[1].get(key, []), [judging.view(view) for view in shown[key]], request, sharing, configuration
        )
        for key, views in sides[0].items()
    )


def _by_gpu(views: Sequence[NumberedKernel]) -> dict[tuple[object, ...], list[NumberedKernel]]:
    found: dict[tuple[object, ...], list[NumberedKernel]] = {}
    for view in views:
        found.setdefault(gpu_key(view.kernel), []).append(view)
    return found


def _part(
    mine: Sequence[NumberedKernel],
    theirs: Sequence[NumberedKernel],
    shown: Sequence[KernelView],
    request: KernelsRequest,
    sharing: Sharing,
    configuration: Configuration,
) -> GpuPart:
    columns = tuple(theirs) or (tuple(shown) if request.matrix else ())
    gpu, calibration = mine[0].kernel.gpu, calibration_of(configuration)
    pairs = None
    if columns:
        if sharing.shares is not None and len(sharing.shares) != 2 and not request.together:
            raise UsageError("pairs have two shares", where="--mps-share", do="write 50,50")
        pairs = matrix(
            [view.demand for view in shown],
            [view.demand for view in columns],
            gpu=gpu,
            calibration=calibration,
            sharing=sharing if sharing.shares is None or len(sharing.shares) == 2 else Sharing("mps"),
            settings=configuration.interference,
        )
    beside_each_other = partial(matrix, gpu=gpu, calibration=calibration, settings=configuration.interference)
    mixed = _mixed(mine, theirs, beside_each_other) if theirs and sharing == Sharing() else None
    lacking = _lacking(shown)
    return GpuPart(
        gpu,
        calibration,
        tuple(shown),
        len(mine) - len(shown),
        columns,
        pairs,
        lacking,
        _command(lacking) if lacking else None,
        _disturbers(shown, beside_each_other),
        mixed,
    )


def _mixed(
    mine: Sequence[NumberedKernel], theirs: Sequence[NumberedKernel], pairs: partial[Matrix]
) -> mixes.MixOutcome:
    """All beside all, each kernel beside those of the other side in proportion to their time: all run repeatedly."""
    here, there = (mixes.mix([view.demand for view in side]) for side in (mine, theirs))
    return mixes.corun_of_mixes(here, there, pairs=partial(pairs, sharing=Sharing(lasting=True)))


def _disturbers(shown: Sequence[KernelView], pairs: partial[Matrix]) -> tuple[DisturbingKernel, ...] | None:
    """The kernels beside which another of the same table takes longest, as streams of one process."""
    if not 1 < len(shown) <= MOST_DISTURBERS:
        return None
    beside = pairs([view.demand for view in shown])
    slowdown = beside.slowdown
    found = []
    for place, view in enumerate(shown):
        others = [
            (float(slowdown[row, place]), -row)
            for row in range(len(shown))
            if row != place and slowdown[row, place] >= _DISTURBED
        ]
        if others:
            most, first = max(others)
            binding = beside.bound_by(-first, place)
            found.append(DisturbingKernel(view.number, view.label, most, shown[-first].number, binding))
    return tuple(sorted(found, key=lambda one: (-one.slowdown, one.number)))


def _together(
    views: Sequence[NumberedKernel], request: KernelsRequest, sharing: Sharing, configuration: Configuration
) -> SetEstimate:
    members = tuple(one(views, name) for name in request.together)
    if len(members) < 2:
        raise UsageError("one kernel is alone", where="--together", do="name two or more, or one twice")
    if sharing.shares is not None and len(sharing.shares) != len(members):
        text = f"{plural(len(sharing.shares), 'share')} for {plural(len(members), 'kernel')}"
        raise UsageError(text, where="--mps-share", do="give one percentage for each")
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
    return SetEstimate(members, found)


def _lacking(views: Sequence[KernelView]) -> tuple[MissingMetric, ...]:
    """Metrics that kernels lack, in their order, each once."""
    of: dict[tuple[str, str], list[int]] = {}
    for view in views:
        for missing in view.kernel.missing:
            of.setdefault((missing.metric, missing.meaning), []).append(view.number)
    return tuple(MissingMetric(metric, reports, tuple(numbers)) for (metric, reports), numbers in of.items())


def _command(lacking: Sequence[MissingMetric]) -> str:
    return f"ncu {options_for([lack.metric for lack in lacking])} -o REPORT PROGRAM"


def _file(report: NcuReport) -> ReportFileRead:
    rejected = Counter[str]()
    for reject in report.rejects:
        rejected[reject.reason] += reject.count
    return ReportFileRead(report.file, len(report.launches), dict(rejected), report.problems)


def _problems(reports: Sequence[NcuReport], found: Sequence[Kernel]) -> tuple[str, ...]:
    """Lines for people: unusable parts of each file, anomalies of each kernel."""
    phrases = []
    for report in reports:
        phrases += [f"{report.file}: {problem}" for problem in report.problems]
        phrases += [f"{report.file}: {sentence}" for sentence in reject_sentences(report)]
    phrases += [f"{kernel.short}: {problem}" for kernel in found for problem in kernel.problems]
    return tuple(dict.fromkeys(phrases))


def reject_sentences(report: NcuReport) -> list[str]:
    """Return a line for each reason for which values or rows of a report were left out."""
    sentences = []
    for reject in report.rejects:
        example = f", such as {reject.example}" if reject.example else ""
        of = "" if reject.column is None else f" of {reject.column}"
        what = plural(reject.count, "value" if of else "row")
        sentences.append(f"left out {what}{of}: {reject.reason}{example}")
    return sentences
