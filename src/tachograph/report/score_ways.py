"""The GPU scores of a job, each way: as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tachograph.catalog.tables import SCORES
from tachograph.judge.score_ways import DIFFERENCES, TITLES, ScoreWay

HEADINGS = ("measured by", *SCORES, "of")
NOT_MEASURED = "–"


def way_row(way: ScoreWay) -> tuple[str, ...]:
    """Return the cells of a way, as HEADINGS names them."""
    cells = [TITLES[way.name]]
    for name in SCORES:
        score = way.scores[name]
        cells.append(NOT_MEASURED if score is None else f"{score:.1f}")
    return (*cells, way.basis)


def way_remarks(ways: Sequence[ScoreWay]) -> Iterator[str]:
    """Yield the limits of each method and, for several scores, why they differ."""
    for way in ways:
        for note in way.notes:
            yield f"{TITLES[way.name]}: {note}."
    measured = [way for way in ways if way.is_measured]
    if len(measured) > 1:
        for way in measured:
            yield f"{TITLES[way.name]}: {DIFFERENCES[way.name]}"


def ways_json(job: str, ways: Sequence[ScoreWay]) -> dict[str, Any]:
    """Return them as JSON. Not measured: null."""
    return {
        "job_id": job,
        "ways": [
            {
                "way": way.name,
                **way.scores,
                "basis": way.basis,
                "notes": list(way.notes),
                "differs": DIFFERENCES[way.name],
            }
            for way in ways
        ],
    }
