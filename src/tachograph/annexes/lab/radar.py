"""Radar plots as files: drawings, JSON and CSV, all or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.annexes.lab.figures import radar, style
from tachograph.annexes.lab.figures.numbers import FigureNumbers
from tachograph.annexes.lab.figures.registry import FORMATS
from tachograph.annexes.lab.figures.study import Progress
from tachograph.annexes.lab.study import json_text
from tachograph.annexes.lab.study_files import check_formats, move, writable
from tachograph.catalog.spreadsheets import table_csv
from tachograph.catalog.version import __version__
from tachograph.report.json_values import json_values


@dataclass(frozen=True, slots=True)
class RadarReport:
    """Profiles of jobs and of classes. chosen: (option, value) of the job filter."""

    profiles: FigureNumbers
    classes: FigureNumbers
    chosen: tuple[tuple[str, str], ...] = ()


def build_radar(
    jobs: pl.DataFrame, *, by: str = "job", chosen: Sequence[tuple[str, str]] = ()
) -> RadarReport:
    """Return the radar plots of some jobs, rows of job_summaries.

    Errors: UsageError for groups that there are not.
    """
    return RadarReport(radar.compute(jobs, by=by), radar.nominal(), tuple(chosen))


def radar_json(report: RadarReport, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return all values of the drawing as JSON values: fractions 0..1, null: not measured."""
    profiles = report.profiles
    return json_values(
        {
            "tachograph": __version__,
            "chosen_by": dict(report.chosen),
            "jobs": profiles.jobs,
            "facts": profiles.facts,
            "missing": profiles.missing,
            "sentences": radar.sentences(profiles),
            "profiles": profiles.tables["profiles"] if "profiles" in profiles else [],
            "classes": report.classes.tables["profiles"],
            "bounds": report.classes.tables["bounds"],
            "files": files,
        }
    )


def write_radar(
    report: RadarReport,
    folder: Path,
    *,
    formats: Sequence[str] = FORMATS,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Write the plots of jobs and classes, and their numbers; return the file names.

    Errors: UsageError where the folder is a file, or the format none; ExportError where it cannot
    be written.
    """
    formats, drawn = check_formats(formats), 0
    with writable(folder) as aside:
        for stem, numbers in (("radar", report.profiles), ("radar_classes", report.classes)):
            if "profiles" not in numbers:
                continue
            if progress:
                progress(f"draw {stem}", drawn, 2)
            style.save(radar.draw(numbers), aside, f"{stem}_grid", formats)
            drawn += 1
            for part, table in numbers.tables.items():
                (aside / f"{stem}.{part}.csv").write_text(table_csv(table), encoding="utf-8")
        files = sorted({*(file.name for file in aside.iterdir()), "radar.json"})
        (aside / "radar.json").write_text(json_text(radar_json(report, files)), encoding="utf-8")
        move(aside, folder, files)
    return tuple(files)
