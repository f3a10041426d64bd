"""Report on profiled kernels: selected, numbered, evaluated if shown.

Kernels of different GPUs are never compared: each GPU has its own part, and no pair spans two. Only
kernels that are shown are evaluated; of the others only the demands are known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tachograph.annexes.share.calibration import calibration_of
from tachograph.annexes.share.capacity import capability_of_device
from tachograph.annexes.share.demand import Calibration, Sharing
from tachograph.annexes.share.estimate import estimate, matrix
from tachograph.annexes.share.kernel_facts import (
    GpuPart,
    KernelsReport,
    KernelsRequest,
    KernelView,
    MissingMetric,
    PairEstimate,
    ReportFileRead,
    facts_of,
    scores_of,
)
from tachograph.annexes.share.kernel_limits import limits
from tachograph.annexes.share.kernel_names import (
    NumberedKernel,
    labels,
    matching_kernel,
    matching_kernels,
)
from tachograph.annexes.share.kernels import Kernel, kernels_of, options
from tachograph.annexes.share.nsight.launches import Chip, Launch, NcuReport
from tachograph.annexes.share.utilization import pitfalls, sensitivities
from tachograph.catalog.config import Configuration
from tachograph.catalog.devices import Device
from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.units import plural


def build_kernels_report(
    reports: Sequence[NcuReport], request: KernelsRequest, *, configuration: Configuration
) -> KernelsReport:
    """Return the report on the kernels of `reports`, by GPU and time, longest first.

    Raises InputError where the reports hold no kernel, NotFoundError and UsageError for kernels
    that are not there.
    """
    kernels = _kernels(reports)
    numbered = _numbered(kernels)
    calibration = calibration_of(configuration)
    selected = {id(kernel) for kernel in matching_kernels(kernels, request.kernels, request.device)}
    shown = [view for view in numbered if id(view.kernel) in selected]
    sharing = Sharing() if request.shares is None else Sharing("mps", request.shares)
    explained = together = None
    if request.explain is not None:
        explained = _view(matching_kernel(numbered, request.explain), calibration)
    if request.together is not None:
        together = _together(numbered, request.together, sharing, configuration)
    return KernelsReport(
        files=tuple(map(_file, reports)),
        parts=tuple(_part(views, request, sharing, configuration) for views in _by_gpu(shown)),
        sharing=sharing,
        together=together,
        explained=explained,
        problems=_problems(reports, [view.kernel for view in shown]),
    )


def on_one_gpu(reports: Sequence[NcuReport], device: Device) -> tuple[NcuReport, ...]:
    """Return the reports, assigning those without a GPU (CSV details pages) to `device`."""
    name, capability = f"NVIDIA {device.name}", capability_of_device(device)

    def placed(launch: Launch) -> Launch:
        chip = launch.chip
        if chip.name is not None:
            return launch
        return replace(
            launch, chip=Chip(name, chip.compute_capability or capability, chip.attributes)
        )

    return tuple(
        replace(report, launches=tuple(map(placed, report.launches))) for report in reports
    )


def _kernels(reports: Sequence[NcuReport]) -> tuple[Kernel, ...]:
    launches = list(chain.from_iterable(report.launches for report in reports))
    if not launches:
        problems = chain.from_iterable(report.problems for report in reports)
        files = ", ".join(Path(report.file).name for report in reports[:3])
        raise InputError(
            next(problems, "no kernel was profiled"),
            where=files,
            do="profile with `ncu -o FILE PROGRAM`",
        )
    return kernels_of(launches)


def _view(numbered: NumberedKernel, calibration: Calibration) -> KernelView:
    """Return a kernel with all its results."""
    kernel = numbered.kernel
    return KernelView(
        number=numbered.number,
        label=numbered.label,
        kernel=kernel,
        share=numbered.share,
        facts=facts_of(kernel),
        scores=scores_of(kernel),
        limits=limits(kernel, calibration=calibration),
        sensitivities=sensitivities(kernel, calibration=calibration),
        pitfalls=pitfalls(kernel),
    )


def _numbered(kernels: Sequence[Kernel]) -> list[NumberedKernel]:
    """All kernels, numbered in order; shares are of the time on the same GPU."""
    seconds: dict[tuple[object, ...], float] = defaultdict(float)
    for kernel in kernels:
        seconds[_gpu_key(kernel)] += kernel.seconds or 0.0
    return [
        NumberedKernel(
            number,
            label,
            kernel,
            kernel.seconds / seconds[_gpu_key(kernel)] if kernel.seconds else None,
        )
        for number, (kernel, label) in enumerate(zip(kernels, labels(kernels), strict=True), 1)
    ]


def _gpu_key(kernel: Kernel) -> tuple[object, ...]:
    """Return the GPU key; a slice has the GPU's name and fewer SMs."""
    gpu = kernel.gpu
    named = kernel.chip.name is not None
    return gpu.name, gpu.sms, kernel.chip.compute_capability, () if named else kernel.reports


def _by_gpu(views: Sequence[NumberedKernel]) -> Iterable[list[NumberedKernel]]:
    groups: dict[tuple[object, ...], list[NumberedKernel]] = {}
    for view in views:
        groups.setdefault(_gpu_key(view.kernel), []).append(view)
    return groups.values()


def _part(
    numbered: Sequence[NumberedKernel],
    request: KernelsRequest,
    sharing: Sharing,
    configuration: Configuration,
) -> GpuPart:
    gpu, calibration = numbered[0].kernel.gpu, calibration_of(configuration)
    views = tuple(_view(kernel, calibration) for kernel in numbered[: request.top])
    pairs = None
    if request.matrix:
        pairs = matrix(
            [view.demand for view in views],
            gpu=gpu,
            calibration=calibration,
            sharing=sharing,
            settings=configuration.interference,
        )
    lacking = _lacking(views)
    return GpuPart(
        gpu, calibration, views, len(numbered) - len(views), pairs, lacking, _command(lacking)
    )


def _together(
    numbered: Sequence[NumberedKernel],
    names: tuple[str, str],
    sharing: Sharing,
    configuration: Configuration,
) -> PairEstimate:
    members = tuple(matching_kernel(numbered, name) for name in names)
    if len({_gpu_key(view.kernel) for view in members}) > 1:
        ran = "; ".join(f"{view.label} on {view.kernel.gpu.name}" for view in members)
        raise UsageError(
            f"kernels of different GPUs cannot be combined: {ran}", do="profile both on one GPU"
        )
    outcome = estimate(
        [view.demand for view in members],
        gpu=members[0].kernel.gpu,
        calibration=calibration_of(configuration),
        sharing=sharing,
        settings=configuration.interference,
    )
    return PairEstimate(members, outcome)


def _lacking(views: Sequence[KernelView]) -> tuple[MissingMetric, ...]:
    """Metrics that kernels lack, in their order, each once."""
    of: dict[tuple[str, str], list[int]] = {}
    for view in views:
        for missing in view.kernel.missing:
            of.setdefault((missing.metric, missing.meaning), []).append(view.number)
    return tuple(
        MissingMetric(metric, meaning, tuple(numbers)) for (metric, meaning), numbers in of.items()
    )


def _command(lacking: Sequence[MissingMetric]) -> str | None:
    """Return the command that collects what is missing, or None."""
    parts = dict.fromkeys(sorted((options(lack.metric) for lack in lacking), reverse=True))
    return f"ncu {' '.join(parts)} -o REPORT PROGRAM" if parts else None


def _file(report: NcuReport) -> ReportFileRead:
    rejected = Counter[str]()
    for reject in report.rejects:
        rejected[reject.reason] += reject.count
    return ReportFileRead(report.file, len(report.launches), dict(rejected), report.problems)


def _problems(reports: Sequence[NcuReport], kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Lines for people: unusable parts of each file, anomalies of each kernel."""
    sentences = []
    for report in reports:
        problems = (*report.problems, *reject_sentences(report))
        sentences += [f"{report.file}: {problem}" for problem in problems]
    for kernel in kernels:
        sentences += [f"{kernel.short}: {problem}" for problem in kernel.problems]
    return tuple(dict.fromkeys(sentences))


def reject_sentences(report: NcuReport) -> list[str]:
    """Return a line for each reason for which values or rows of a report were left out."""
    sentences = []
    for reject in report.rejects:
        example = f", such as {reject.example}" if reject.example else ""
        of = "" if reject.column is None else f" of {reject.column}"
        what = plural(reject.count, "value" if of else "row")
        sentences.append(f"left out {what}{of}: {reject.reason}{example}")
    return sentences
