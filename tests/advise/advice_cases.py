"""Past jobs of tests, and a plain computation of what may be advised at least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tachograph.catalog.config import AdviceOptions, SlurmOptions
from tachograph.judge.advice.advise import Advice, SiteFacts, advise
from tachograph.judge.advice.past_jobs import History, PastJob
from tachograph.judge.partitions import SitePartitions

GIB = 1024.0
NOW = 200 * 86400.0
OPTIONS = AdviceOptions()
SINGLY = SitePartitions(SlurmOptions(shared=("gpu",)))
SITE = SiteFacts({40 * GIB: 39.5 * GIB, 80 * GIB: 79.0 * GIB}, SINGLY)
USUAL = PastJob(
    key="", label="", user="ann", name="train", partition="gpu", gpus=4, nodes=1, state="COMPLETED", submit=0.0,
    end=0.0, elapsed_s=3600.0, timelimit_s=86400.0, gpus_used=4, hbm_peak_mib=20 * GIB, hbm_mib=80 * GIB,
    gpu_model="NVIDIA A100-SXM4-80GB", sm_active=0.5, mem_mib=256 * GIB, mem_peak_mib=20 * GIB, cpus=64,
    cpu_efficiency=0.1, energy_j=1e6, power_w=300.0, gpu_hours=4.0,
)  # fmt: skip


def run(number: int = 0, **given: Any) -> PastJob:
    """Return a run that ended `number` hours before `NOW`."""
    named = {"key": f"k{number:03d}", "label": str(number), "end": NOW - 3600.0 * (number + 1)}
    job = replace(USUAL, **{**named, **given})
    return replace(job, submit=given.get("submit", job.end - (job.elapsed_s or 0.0) - 60))


def runs(*changes: dict[str, Any], count: int = 4) -> list[PastJob]:
    """Return runs that differ from `USUAL` by these changes, then usual ones up to `count`."""
    return [
        run(number, **(changes[number] if number < len(changes) else {})) for number in range(count)
    ]


def advice(jobs: Sequence[PastJob], options: AdviceOptions = OPTIONS, **request: Any) -> Advice:
    """Return the advice for the usual request."""
    return advise(replace(USUAL.request, **request), History.of(jobs, options), NOW, SITE, options)


def value(
    jobs: Sequence[PastJob], topic: Any, options: AdviceOptions = OPTIONS, **request: Any
) -> float | None:
    """Return what a line advises, None where it advises nothing."""
    line = advice(jobs, options, **request).line(topic)
    return None if line is None else line.value
