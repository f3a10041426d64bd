"""Source `pm-sampling`: CUPTI PM sampling of this node, for `collect` and live views.

What is committed is a row of `gpu_scores` per GPU and minute: sums of its PM samples, and the
scores of the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, cast

from tachograph.annexes.watch.pm_sampling.child import PmRequest
from tachograph.annexes.watch.pm_sampling.library import this_host
from tachograph.annexes.watch.pm_sampling.process import PmProcess
from tachograph.catalog.errors import ConfigError
from tachograph.sources.registry import FeedSettings, PollOutcome, Watermark, settings_in
from tachograph.sources.score_sums import MINUTE_S, PmSums, warps_of

if TYPE_CHECKING:
    from tachograph.catalog.chunks import Chunk
    from tachograph.catalog.config import Configuration
    from tachograph.catalog.rows import GpuScoreRow

PM_SAMPLING = "pm-sampling"
SHORTEST_S = 0.0001  # CUPTI's own default is 10 us, at which buffers fill within a second


class PmSettings(FeedSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings in `[[sources]]` with source = "pm-sampling".

    interval_cycles: instead of interval_s, cycles of the system clock.

    buffer_mib: per GPU, in host memory. node: name in the lake, if unlike the host's.
    """

    interval_s: float = 0.05
    interval_cycles: int | None = None
    buffer_mib: int = 64
    node: str = ""


SETTINGS = PmSettings


def pm_settings(configuration: Configuration) -> PmSettings:
    """Return the first entry's settings of this source, or defaults. Errors: ConfigError."""
    return checked(cast("PmSettings", settings_in(configuration, PM_SAMPLING)[0]))


def checked(settings: PmSettings) -> PmSettings:
    """Return the settings. Errors: ConfigError for an invalid interval or buffer."""
    least = {"interval_s": SHORTEST_S, "buffer_mib": 1, "interval_cycles": 1}
    for key, limit in least.items():
        value = getattr(settings, key)
        if value is not None and not limit <= value:
            raise ConfigError(
                f"{key} is {value:g}, less than {limit:g}", where=PM_SAMPLING, do=f"give {key} more"
            )
    return settings


def pm_request(settings: PmSettings) -> PmRequest:
    """Return the request for the sampling process."""
    return PmRequest(settings.interval_s, settings.interval_cycles, settings.buffer_mib)


def connect(settings: FeedSettings, *, configuration: Configuration) -> PmFeed:
    """Return the feed, which samples from its first poll. Errors: ConfigError: settings."""
    sampling = checked(cast("PmSettings", settings))
    return PmFeed(sampling)


class PmFeed:
    """Minutes of PM sampling of this node. Errors of `poll`: PmSamplingError without a GPU."""

    def __init__(
        self,
        settings: PmSettings,
        *,
        process: PmProcess | None = None,
    ) -> None:
        self.outcome = PollOutcome()
        self._settings = settings
        self._process = process
        self._node = settings.node or this_host()
        self._minutes: dict[tuple[int, int], PmSums] = {}  # by GPU and minute, that may grow

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield the minutes that are over."""
        process = self._running()
        self.outcome = PollOutcome()
        for device, every in process.take().items():
            for minute in every:
                sums = self._minutes.setdefault((device, minute.minute), minute)
                if sums is not minute:
                    sums.add(minute)
        for failed in process.faults():
            self.outcome.unreachable[failed.gpu.uuid if failed.gpu else self._node] = str(
                failed.fault
            )
        # samples arrive within seconds: a minute that ended so long ago is whole
        over = int((now.timestamp() - MINUTE_S / 6) // MINUTE_S)
        yield self._chunk(self._take_before(over), watermark, now)

    def close(self) -> None:
        """End sampling."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _running(self) -> PmProcess:
        if self._process is None:
            process = PmProcess(pm_request(self._settings))
            process.begin()
            self._process = process
        return self._process

    def _take_before(self, minute: int) -> list[tuple[int, PmSums]]:
        whole = [(device, sums) for (device, of), sums in self._minutes.items() if of < minute]
        self._minutes = {key: sums for key, sums in self._minutes.items() if key[1] >= minute}
        return whole

    def _chunk(
        self, minutes: list[tuple[int, PmSums]], watermark: Watermark, now: datetime
    ) -> Chunk:
        import polars as pl

        from tachograph.catalog.chunks import Chunk, ChunkPart, next_watermark
        from tachograph.catalog.tables import GPU_SCORES

        stream = f"{self._settings.stream}:{self._node}"
        rows = [self._row(device, sums) for device, sums in minutes]
        frame = pl.DataFrame(rows, schema=GPU_SCORES.row_schema)
        parts = (ChunkPart(GPU_SCORES.name, frame),) if rows else ()
        mark = next_watermark(now, before=watermark(stream))
        return Chunk(stream, PM_SAMPLING, self._node, parts, len(rows), watermark=mark)

    def _row(self, device: int, sums: PmSums) -> GpuScoreRow:
        """A row of `gpu_scores`; GPUs are numbered by PCI address, as in NVML."""
        process = self._running()
        gpu = process.gpus[device]
        warps = warps_of(gpu.model)
        cut = ",".join(process.cut.get(device, ()))
        return sums.row(
            node=self._node, gpu=process.places[device], mig=None, max_warps=warps, cut=cut
        )
