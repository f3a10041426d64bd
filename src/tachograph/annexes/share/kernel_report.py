"""Report on profiled kernels: selected, numbered, evaluated if shown.

Kernels of different GPUs are never compared: each GPU has its own part, and no pair spans two. Only
kernels that are shown are evaluated; of the others only the demands are known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from tachograph.annexes.share.calibration import calibration_of, of_model
from tachograph.annexes.share.capacity import capability_of_device
from tachograph.annexes.share.demand import Calibration, Matrix, Sharing
from tachograph.annexes.share.estimate import estimate, matrix
from tachograph.annexes.share.kernel_facts import (
    GpuPart,
    KernelsReport,
    KernelsRequest,
    KernelView,
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
from tachograph.annexes.share.kernels import Kernel, Missing, collect_command, kernels_of
from tachograph.annexes.share.nsight.launches import Launch, NcuReport
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
    kernels = kernels_of(chain.from_iterable(report.launches for report in reports))
    if not kernels:
        problems = chain.from_iterable(report.problems for report in reports)
        raise InputError(
            next(problems, "no kernel was profiled"),
            where=", ".join(Path(report.file).name for report in reports[:3]),
            do="profile with `ncu -o FILE PROGRAM`",
        )
    numbered = _numbered(kernels)
    calibration = calibration_of(configuration)
    selected = {id(kernel) for kernel in matching_kernels(kernels, request.kernels)}
    shown = [kernel for kernel in numbered if id(kernel.kernel) in selected]
    gpus: dict[Hashable, list[NumberedKernel]] = {}
    for kernel in shown:
        gpus.setdefault(_gpu_key(kernel.kernel), []).append(kernel)
    sharing = Sharing() if request.shares is None else Sharing("mps", request.shares)
    how = {
        "calibration": calibration,
        "sharing": sharing,
        "settings": configuration.interference,
    }
    explained = together = None
    if request.explain is not None:
        explained = _view(matching_kernel(numbered, request.explain), calibration)
    if request.together is not None:
        together = _together([matching_kernel(numbered, name) for name in request.together], how)
    return KernelsReport(
        files=tuple(map(_file, reports)),
        parts=tuple(_part(of_gpu, request, how) for of_gpu in gpus.values()),
        sharing=sharing,
        together=together,
        explained=explained,
        problems=_problems(reports, [kernel.kernel for kernel in shown]),
    )


def on_one_gpu(reports: Sequence[NcuReport], device: Device) -> tuple[NcuReport, ...]:
    """Return the reports, assigning those without a GPU (CSV details pages) to `device`."""
    name, capability = f"NVIDIA {device.name}", capability_of_device(device)

    def placed(launch: Launch) -> Launch:
        chip = launch.chip
        if chip.name is not None:
            return launch
        chip = replace(chip, name=name, compute_capability=chip.compute_capability or capability)
        return replace(launch, chip=chip)

    return tuple(
        replace(report, launches=tuple(map(placed, report.launches))) for report in reports
    )


def _together(members: Sequence[NumberedKernel], how: Mapping[str, Any]) -> PairEstimate:
    if len({_gpu_key(member.kernel) for member in members}) > 1:
        ran = "; ".join(f"{member.label} on {member.kernel.gpu.name}" for member in members)
        raise UsageError(
            f"kernels of different GPUs cannot be combined: {ran}", do="profile both on one GPU"
        )
    demands, gpu = [member.demand for member in members], members[0].kernel.gpu
    how = {**how, "calibration": of_model(how["calibration"], gpu.name)}
    return PairEstimate(tuple(members), estimate(demands, gpu=gpu, **how))


def _pairs(kernels: Sequence[NumberedKernel], how: Mapping[str, Any]) -> Matrix:
    """Every pair of kernels of one GPU."""
    demands, gpu = [kernel.demand for kernel in kernels], kernels[0].kernel.gpu
    how = {**how, "calibration": of_model(how["calibration"], gpu.name)}
    return matrix(demands, gpu=gpu, **how)


def _view(numbered: NumberedKernel, calibration: Calibration) -> KernelView:
    """Return a kernel with all its results."""
    kernel = numbered.kernel
    calibration = of_model(calibration, kernel.gpu.name)
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
    seconds: dict[Hashable, float] = defaultdict(float)
    for kernel in kernels:
        seconds[_gpu_key(kernel)] += kernel.seconds or 0.0
    numbered = []
    for number, (kernel, label) in enumerate(zip(kernels, labels(kernels), strict=True), 1):
        share = kernel.seconds / seconds[_gpu_key(kernel)] if kernel.seconds else None
        numbered.append(NumberedKernel(number, label, kernel, share))
    return numbered


def _gpu_key(kernel: Kernel) -> Hashable:
    """Return the GPU key; a slice has the GPU's name and fewer SMs."""
    gpu = kernel.gpu
    named = kernel.chip.name is not None
    return gpu.name, gpu.sms, kernel.chip.compute_capability, () if named else kernel.reports


def _part(
    numbered: Sequence[NumberedKernel], request: KernelsRequest, how: Mapping[str, Any]
) -> GpuPart:
    shown = numbered[: request.top]
    calibration = of_model(how["calibration"], numbered[0].kernel.gpu.name)
    numbers: dict[Missing, list[int]] = {}
    for kernel in shown:
        for missing in kernel.kernel.missing:
            numbers.setdefault(missing, []).append(kernel.number)
    return GpuPart(
        gpu=shown[0].kernel.gpu,
        calibration=calibration,
        kernels=tuple(_view(kernel, calibration) for kernel in shown),
        left_out=len(numbered) - len(shown),
        pairs=_pairs(shown, how) if request.matrix else None,
        not_collected=numbers,
        collect_with=collect_command(numbers),
    )


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
