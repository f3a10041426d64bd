"""Made-up series of a small cluster, and in plain Python the rows that must become of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from servers.prometheus import Series
from tachograph.catalog.tables import GPU_SAMPLES, NODE_SAMPLES, LakeTable
from tachograph.lake.delta import Lake

T0 = 1_790_000_000 - 1_790_000_000 % 3600 + 1800  # half past: windows of an hour cut the data
STEP = 15
SCRAPES = 400  # 100 minutes: three windows of an hour
GAP = range(100, 180)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# {metric: (column, factor into the unit of the column)}, written by hand
GPU_METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util", 0.01),
    "DCGM_FI_DEV_FB_USED": ("hbm_used_mib", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 0.001),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active", 1.0),
}
Key = tuple[str, int | None, int | None, datetime]
Expected = dict[Key, dict[str, float]]


@dataclass
class Made:
    """Series, and the rows that must become of them."""

    series: list[Series] = field(default_factory=list)
    gpu_rows: Expected = field(default_factory=dict)
    node_rows: Expected = field(default_factory=dict)

    def add_gpu(
        self, node: str, gpu: int, mig: int | None, scrapes: Iterable[int], **labels: str
    ) -> None:
        """One GPU or slice, scraped at these steps."""
        scrapes = list(scrapes)
        for metric, (column, factor) in GPU_METRICS.items():
            points = [(self.at(k), _value(metric, gpu, k)) for k in scrapes]
            told = {
                "__name__": metric,
                "gpu": str(gpu),
                "Hostname": f"{node}.example.org",
                "UUID": f"GPU-{node}-{gpu}",
            }
            if mig is not None:
                told |= {"GPU_I_ID": str(mig), "GPU_I_PROFILE": "1g.10gb"}
            self.series.append(
                Series({**told, "instance": f"{node}:9400", "job": "dcgm", **labels}, points)
            )
            for t, value in points:
                self.gpu_rows.setdefault((node, gpu, mig, moment(t)), {})[column] = value * factor

    def add_node(self, node: str, scrapes: Iterable[int]) -> None:
        """A node_exporter known by its address only, but for what it calls itself."""
        scrapes = list(scrapes)
        common = {"instance": f"10.0.0.{node[-1]}:9100", "job": "node"}
        name = {"__name__": "node_uname_info", "nodename": f"{node}.example.org"}
        self.series.append(Series({**name, **common}, [(self.at(k), 1.0) for k in scrapes]))
        for cpu in range(3):
            for mode, column in (
                ("user", "cpu_user_s"),
                ("iowait", "cpu_iowait_s"),
                ("softirq", None),
            ):
                labels = {"__name__": "node_cpu_seconds_total", "cpu": str(cpu), "mode": mode}
                points = [(self.at(k), 1000.0 * cpu + 0.25 * k) for k in scrapes]
                self.series.append(Series({**labels, **common}, points))
                for t, value in points if column else ():
                    row = self.node_rows.setdefault((node, None, None, moment(t)), {})
                    row[column or ""] = row.get(column or "", 0.0) + value

    @staticmethod
    def at(scrape: int) -> float:
        """When a scrape took place: on the step, so that every way to ask gives the same times."""
        return float(T0 + STEP * scrape)


def _value(metric: str, gpu: int, k: int) -> float:
    match metric:
        case "DCGM_FI_DEV_GPU_UTIL":
            return float((7 * k + gpu) % 101)
        case "DCGM_FI_DEV_FB_USED":
            return float(k * 100 + gpu)
        case "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION":
            return 1e9 + 3000.0 * k
    return ((3 * k + gpu) % 1000) / 1000


def moment(t: float) -> datetime:
    """A time as the lake has it."""
    return EPOCH + timedelta(milliseconds=round(t * 1000))


def cluster() -> Made:
    """Two nodes; a gap on one GPU, a MIG slice, a job that hands over to another."""
    made = Made()
    everything = range(SCRAPES)
    made.add_gpu("n1", 0, None, everything)
    made.add_gpu("n1", 1, None, [k for k in everything if k not in GAP])
    made.add_gpu("n2", 0, None, range(50), hpc_job="0")
    made.add_gpu("n2", 0, None, range(50, 200), hpc_job="4711")
    made.add_gpu("n2", 0, None, range(200, SCRAPES), hpc_job="4712")
    made.add_gpu("n2", 1, 7, everything)
    made.add_node("n1", everything)
    made.add_node("n2", range(0, SCRAPES, 2))
    return made


def rows_of(lake: Lake, table: LakeTable) -> Expected:
    """What the lake has, in the same shape; a null is not there."""
    found: Expected = {}
    keys = {"t", "node", "gpu", "mig", "seq"}
    for row in lake.latest(table).iter_rows(named=True):
        key = (row["node"], row.get("gpu"), row.get("mig"), row["t"])
        found[key] = {
            name: value for name, value in row.items() if name not in keys and value is not None
        }
    return found


def assert_rows(lake: Lake, made: Made) -> None:
    """The lake has exactly the rows that were made, each of them once."""
    for table, wanted in ((GPU_SAMPLES, made.gpu_rows), (NODE_SAMPLES, made.node_rows)):
        assert_same(rows_of(lake, table), wanted)
        assert lake.scan(table).select(pl.len()).collect().item() == len(wanted), "a row lies twice"


def assert_same(found: Expected, wanted: Mapping[Key, Mapping[str, float]]) -> None:
    """Equal, to the precision of single-precision columns."""
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert found[key].keys() == values.keys(), key
        for name, value in values.items():
            assert abs(found[key][name] - value) <= 1e-6 * max(1.0, abs(value)), (key, name)


def held(lake: Lake) -> set[tuple[Any, ...]]:
    """(job, node, gpu, mig, start, end) of every allocation."""
    from tachograph.catalog.tables import ALLOCATIONS

    return set(
        lake.latest(ALLOCATIONS).select("job_id", "node", "gpu", "mig", "start", "end").iter_rows()
    )
