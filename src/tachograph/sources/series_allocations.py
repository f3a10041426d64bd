"""Job-to-GPU rows from polls of labels, one at each begin and end."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from tachograph.catalog.arrays import Longs
from tachograph.catalog.chunks import ChunkPart
from tachograph.sources.gpu_indices import AMBIGUOUS, NO_GPU, LabelledGpu, PlacedGpu
from tachograph.sources.series import AllocationSpan, AllocationTracker, GpuUnit
from tachograph.sources.series_points import allocation_rows, union_of_times


@dataclass(frozen=True, slots=True)
class JobLooks:
    """When GPUs and nodes were looked at, and which jobs were named on them then.

    `naming`: GPUs whose labels or values named a job before; `of_nodes`: {node: {its job, or none:
    when}}.
    """

    naming: Container[LabelledGpu]
    placed: Mapping[LabelledGpu, PlacedGpu]
    seen: Mapping[LabelledGpu, list[Longs]]
    jobs: Mapping[LabelledGpu, Mapping[str, list[Longs]]]
    of_nodes: Mapping[str, Mapping[str | None, list[Longs]]]


def allocation_part(looks: JobLooks, tracker: AllocationTracker) -> ChunkPart:
    """Return begins and ends of jobs on GPUs.

    Labels or values that never name a job show no end of one: another exporter is scraped at other
    times. Of a job that holds a GPU of a node by an ambiguous index no GPU on this node is
    recorded. A GPU with a UUID is tracked by it: its index may be another one once more labels are
    known.
    """
    uuids = {
        (label.node, gpu, label.mig): label.uuid
        for label, (gpu, reason, _) in looks.placed.items()
        if gpu is not None and label.uuid is not None and reason != AMBIGUOUS
    }
    indices: dict[GpuUnit, int] = {}
    unsure: set[tuple[str, str]] = set()
    for label, times_of_jobs in looks.jobs.items():
        if looks.placed[label].reason == AMBIGUOUS:
            unsure.update((label.node, job) for job in times_of_jobs)
    nodes = {node for node, _ in unsure}
    nodes |= {unit[0] for unit, held in tracker.now.items() if unit[1] is None and held}
    scrapes: dict[GpuUnit, list[Longs]] = {}
    jobs: dict[GpuUnit, dict[str, list[Longs]]] = {}
    for label, times_seen in looks.seen.items():
        if label not in looks.naming:
            continue
        gpu, reason, _ = looks.placed[label]
        node_unit: GpuUnit = (label.node, None, None)
        gpu_unit: GpuUnit = node_unit
        if gpu is not None:
            gpu_unit = (label.node, uuids.get((label.node, gpu, label.mig), gpu), label.mig)
            indices[gpu_unit] = gpu
            tracker.rename((label.node, gpu, label.mig), gpu_unit)
            scrapes.setdefault(gpu_unit, []).extend(times_seen)
        if label.node in nodes:
            scrapes.setdefault(node_unit, []).extend(times_seen)
        if reason == NO_GPU:
            continue
        for job, times in looks.jobs.get(label, {}).items():
            unit = node_unit if (label.node, job) in unsure else gpu_unit
            jobs.setdefault(unit, {}).setdefault(job, []).extend(times)
    for node, of_node in looks.of_nodes.items():
        for job_of_node, times in of_node.items():
            scrapes.setdefault((node, None, None), []).extend(times)
            if job_of_node is not None:
                jobs.setdefault((node, None, None), {}).setdefault(job_of_node, []).extend(times)
    spans: list[AllocationSpan] = []
    for unit in scrapes:
        if unit in jobs or tracker.now.get(unit):
            named = {job: union_of_times(times) for job, times in jobs.get(unit, {}).items()}
            spans += tracker.changes(unit, union_of_times(scrapes[unit]), named)
    return ChunkPart("allocations", allocation_rows(spans, indices), overlaps=True)
