"""The source `pm-sampling` of `collect`: a row per GPU and minute, once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
from pm_node import PmNode, gpu

from tachograph.annexes.watch.pm_sampling.faults import PmSamplingError
from tachograph.annexes.watch.pm_sampling.feed import PmFeed, PmSettings
from tachograph.annexes.watch.pm_sampling.library import CudaGpu
from tachograph.annexes.watch.pm_sampling.process import PmDeviceFault, PmProcess
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import GPU_SCORES
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.sources.registry import configured_feeds, load_feed
from tachograph.sources.score_sums import PmSums

START = datetime(2026, 4, 1, 12, tzinfo=UTC)
SUMS = {
    "sm__cycles_active.avg": 500.0,
    "gpc__cycles_elapsed.max": 1000.0,
    "sm__warps_active.avg": 16000.0,
}


class ScriptedProcess:
    """What a sampling process gives, poll by poll."""

    def __init__(
        self, outputs: list[Mapping[int, list[PmSums]]], faults: list[PmDeviceFault] | None = None
    ) -> None:
        self.gpus = {1: CudaGpu(1, "GPU-1", "0000:3b:00.0", "NVIDIA H100 80GB HBM3")}
        self.places, self.cut = {1: 0}, {1: ("score_gpumem",)}
        self._outputs, self._faults, self.closed = outputs, faults or [], False

    def take(self) -> dict[int, list[PmSums]]:
        return dict(self._outputs.pop(0)) if self._outputs else {}

    def faults(self) -> list[PmDeviceFault]:
        return self._faults

    def close(self) -> None:
        self.closed = True


def minute(at: float, samples: int = 20) -> PmSums:
    begin = START.timestamp() + at
    return PmSums(begin, begin + samples * 0.05, samples * 0.05, samples, sums=dict(SUMS))


def feed(*outputs: Mapping[int, list[PmSums]], **options: Any) -> PmFeed:
    process = ScriptedProcess(list(outputs), **options)
    return PmFeed(PmSettings(source="pm-sampling", node="n1"), process=cast("PmProcess", process))


def test_minutes_are_committed_once_when_they_are_over(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    source = feed({1: [minute(0)]}, {1: [minute(30), minute(61)]}, {})
    heights = []
    for after in (30, 75, 140):
        now = START + timedelta(seconds=after)
        ingest(lake, source.poll(lambda stream: watermark(lake, stream), now=now), now=now)
        heights.append(lake.latest(GPU_SCORES).height)
    rows = lake.latest(GPU_SCORES)
    assert heights == [0, 1, 2]
    assert rows.get_column("pm_samples").to_list() == [40, 20]
    assert rows.row(0, named=True)["sm_cycles_active"] == 1000.0
    assert rows.select("node", "gpu", "score_gpu", "score_gpumem", "cut").row(0) == (
        "n1",
        0,
        75.0,
        None,
        "score_gpumem",
    )


def test_a_gpu_that_is_not_sampled_is_reported_and_the_others_are_read() -> None:
    failed = PmDeviceFault(CudaGpu(0, "GPU-0", "", ""), PmSamplingError("dcgm"))
    source = feed({1: [minute(0)]}, faults=[failed])
    (chunk,) = source.poll(lambda stream: None, now=START + timedelta(minutes=5))
    assert chunk.rows_read == 1
    assert list(source.outcome.unreachable) == ["GPU-0"]
    assert "dcgmi profile --pause" in source.outcome.unreachable["GPU-0"]


def test_it_samples_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tachograph.annexes.watch.pm_sampling.child import PmRequest

    kernel = {"sm_active": 0.5, "warps": 16, "dram_active": 0.25}
    gpus = [gpu(0, kernel=kernel), gpu(1, kernel=kernel | {"warps": 64, "sm_active": 1.0})]
    process = PmProcess(PmRequest(), environment=PmNode(tmp_path, gpus).environment())
    process.begin()
    source = PmFeed(PmSettings(source="pm-sampling", node="n1"), process=process)
    frames: list[pl.DataFrame] = []
    try:
        end = datetime.now(UTC) + timedelta(minutes=2)
        # A poll may come when the first GPU has samples and the second has none.
        while datetime.now(UTC) < end and len({row for one in frames for row in one["gpu"]}) < 2:
            later = datetime.now(UTC) + timedelta(minutes=2)
            (chunk,) = source.poll(lambda stream: None, now=later)
            frames += [part.frame for part in chunk.parts if chunk.rows_read]
    finally:
        source.close()
    rows = pl.concat(frames).unique("gpu", keep="first", maintain_order=True).sort("gpu")
    assert rows["score_gpu"].to_list() == pytest.approx([87.5, 0.0])
    assert rows["score_gpumem"][0] == pytest.approx(
        100 * 0.25 * 3.201 / (0.25 * 3.201 + 0.5 * 1.98)
    )
    assert rows["score_gpumem_normalized"][0] == pytest.approx(100 / 3)
    assert rows["max_warps"].to_list() == [64, 64]


@pytest.mark.parametrize("key", ["interval_s", "buffer_mib", "interval_cycles"])
def test_settings_that_make_no_sense_are_refused(key: str) -> None:
    configuration = Configuration(sources=({"source": "pm-sampling", key: 0},))
    (settings,) = configured_feeds(configuration, where="tachograph.toml")
    with pytest.raises(ConfigError, match=key):
        load_feed("pm-sampling").connect(settings, configuration=configuration)
