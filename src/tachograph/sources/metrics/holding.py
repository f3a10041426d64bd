"""Which job holds which GPU, look by look: rows of `allocations`, where that changes.

A job that is named at one look holds the GPU from then until the first look at which it is not named. An exporter that
does not answer ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from tachograph.schema import TIME
from tachograph.sources import Part

Unit = tuple[str, int, int | None]  # node, GPU, MIG slice
_UNIT = ("node", "gpu", "mig")
_Hold = tuple[str, str, int, int | None, datetime, datetime | None]  # job, unit, start, end; None: it still does


@dataclass(slots=True)
class Holding:
    """Who held what at the last look; a new process knows of nobody. {GPU: {job: since when}}"""

    _now: dict[Unit, dict[str, datetime]] = field(default_factory=dict)

    def changes(self, parts: Iterable[Part], now: datetime) -> pl.DataFrame:
        """Return where the jobs that `parts` name began or ceased to hold a GPU: rows of `allocations`.

        A look at a GPU is when its samples are of; without a sample it is `now`.
        """
        looks, named = _looks(parts, now)
        rows = [row for unit, t in looks.items() for row in self._changes(unit, t, named.get(unit, {}))]
        schema = {"job_id": pl.String(), "node": pl.String(), "gpu": pl.Int16(), "mig": pl.Int16()}
        frame = pl.DataFrame(rows, schema={**schema, "start": TIME, "end": TIME}, orient="row")
        return frame.with_columns(provenance=pl.lit("explicit"))

    def _changes(self, unit: Unit, t: datetime, jobs: Mapping[str, None]) -> Iterator[_Hold]:
        held = self._now.setdefault(unit, {})
        for job in [job for job in held if job not in jobs]:
            yield job, *unit, held.pop(job), t
        for job in jobs:
            if job not in held:
                held[job] = t
                yield job, *unit, t, None


def _looks(parts: Iterable[Part], now: datetime) -> tuple[dict[Unit, datetime], dict[Unit, dict[str, None]]]:
    """When each GPU was looked at, and the jobs that were named on it."""
    looks: dict[Unit, datetime] = {}
    named: dict[Unit, dict[str, None]] = {}
    for part in parts:
        if part.table == "gpu_samples" and part.frame.height:
            for *unit, t in part.frame.select(*_UNIT, "t").iter_rows():
                node, gpu, mig = unit
                looks[node, gpu, mig] = max(t, looks.get((node, gpu, mig), t))
        elif part.table == "allocations" and part.frame.height:
            for job, node, gpu, mig in part.frame.select("job_id", *_UNIT).iter_rows():
                named.setdefault((node, gpu, mig), {})[job] = None
    return {**dict.fromkeys(named, now), **looks}, named
