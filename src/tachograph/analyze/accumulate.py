"""What has been reduced so far of runs that are not over yet: added day by day, taken out when a run is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.config import Analysis
from tachograph.reduce.merge import merge_segments
from tachograph.reduce.run import Piece
from tachograph.reduce.timelines import together
from tachograph.reduce.windows import BORDER, IMBALANCE, Windows, fold

_INTENSITIES = {"run": pl.Int32(), "bin": pl.Int32(), "samples": pl.Int64()}


@dataclass(frozen=True, slots=True)
class Merged:
    """Everything that was reduced of some runs: merged segments, intensities, imbalance, timelines."""

    segments: pl.DataFrame
    intensities: pl.DataFrame
    imbalance: pl.DataFrame
    timelines: pl.DataFrame


class Accumulated:
    """Accumulators of runs under way; memory is that of the runs, not of their samples."""

    def __init__(self, starts: Mapping[int, datetime], gpus: pl.DataFrame, analysis: Analysis) -> None:
        self.starts, self.gpus, self.analysis = starts, gpus, analysis
        self.segments: list[pl.DataFrame] = []
        self.intensities: list[pl.DataFrame] = []
        self.imbalance: list[pl.DataFrame] = []
        self.timelines: list[pl.DataFrame] = []
        self.windows: list[Windows] = []  # of the day that is under way
        self.border = pl.DataFrame(schema=BORDER)

    def add(self, piece: Piece) -> None:
        """Add one partition."""
        part = piece.reduced
        if part.segments.height:
            self.segments.append(part.segments)
            self.intensities.append(part.intensities)
            self.windows.append(part.windows)
            self.imbalance.append(part.windows.settled)
            self.timelines.append(piece.minutes.timeline)

    def end_day(self, day: date, timeline: pl.DataFrame) -> None:
        """All partitions of a day are in: its windows are complete, but for those that cross its end.

        `timeline`: of minutes that the beginning of the day had cut.
        """
        self.timelines.append(timeline)
        windows, self.windows = self.windows, []
        self._fold(windows, day, last=False)

    def close(self, day: date, timeline: pl.DataFrame) -> None:
        """No day follows: windows and minutes that wait for one are complete."""
        self.timelines.append(timeline)
        self._fold([], day, last=True)

    def unfinished(self) -> pl.DataFrame:
        """Runs of which a window waits for the next day."""
        return self.border.select("run").unique()

    def take(self, runs: pl.DataFrame) -> Merged:
        """Return what there is of some runs, and forget it."""
        gone = np.zeros(max(self.starts, default=0) + 1, np.bool_)
        gone[runs.get_column("run").to_numpy()] = True
        segments, intensities, imbalance, timelines = (
            _out(kept, gone) for kept in (self.segments, self.intensities, self.imbalance, self.timelines)
        )
        return Merged(
            merge_segments(segments),
            pl.concat([pl.DataFrame(schema=_INTENSITIES), *intensities]),
            pl.concat([pl.DataFrame(schema=IMBALANCE), *imbalance]),
            together(timelines),
        )

    def _fold(self, windows: list[Windows], day: date, *, last: bool) -> None:
        folded, self.border = fold(
            windows, self.border, self.starts, self.gpus, analysis=self.analysis, day=day, last=last
        )
        if folded.height:
            self.imbalance.append(folded)


def _out(kept: list[pl.DataFrame], gone: NDArray[np.bool_]) -> list[pl.DataFrame]:
    """The rows of the runs that are `gone`, taken out of `kept`; what is left there is one frame."""
    mine, rest = [], []
    for frame in kept:
        taken = pl.Series(gone[frame.get_column("run").to_numpy()])
        if taken.all():
            mine.append(frame)
        elif taken.any():
            mine.append(frame.filter(taken))
            rest.append(frame.filter(~taken))
        else:
            rest.append(frame)
    kept[:] = [pl.concat(rest, how="diagonal")] if rest else []
    return [frame for frame in mine if frame.height]
