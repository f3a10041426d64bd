"""What the GPUs of jobs did: share of GPU time in each class, from the samples counted while they were reduced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.finding import Answer, Finding
from tachograph.units import plural, text
from tachograph.workload.classes import CLASSES, CODES, UNKNOWN
from tachograph.workload.reading import enabling
from tachograph.workload.rules import DECIDING

NAMED = 4  # classes in a sentence
LEAST_SHARE = 0.005  # of a class that is named


@dataclass(frozen=True, slots=True)
class Shares:
    """Per job: shares of GPU time along CLASSES (NaN without samples), and how many of its GPUs have samples."""

    fractions: NDArray[np.float64]
    gpus: NDArray[np.int64]

    def largest(self) -> list[str | None]:
        """Return the class with the largest share of each job, of equal ones the first; None without samples."""
        places = np.argmax(np.nan_to_num(self.fractions), axis=1)
        return [CLASSES[place] if count else None for place, count in zip(places, self.gpus, strict=True)]


def shares_of(keys: pl.Series, gpus: pl.DataFrame) -> Shares:
    """Return the shares of the jobs `keys` (job_key): mean over a job's GPUs of each GPU's share of samples.

    Each GPU counts alike, however often it was sampled. `gpus`: rows of job_gpus; those without samples do not count.
    """
    counted = gpus.filter(pl.col("workload_samples").list.sum() > 0)
    fractions, number = np.zeros((len(keys), len(CLASSES))), np.zeros(len(keys), np.int64)
    if counted.height:
        samples = counted.get_column("workload_samples").list.to_array(len(CLASSES)).to_numpy().astype(np.float64)
        places = pl.DataFrame({"job_key": keys}).with_row_index("place")
        joined = counted.select("job_key").join(places, on="job_key", how="left", maintain_order="left")
        place = joined.get_column("place").to_numpy()
        np.add.at(fractions, place, samples / samples.sum(axis=1, keepdims=True))
        np.add.at(number, place, 1)
    with np.errstate(invalid="ignore"):
        return Shares(fractions / number[:, None], number)


def workload_finding(summary: Mapping[str, float | None], fractions: NDArray[np.float64], gpus: int) -> Finding:
    """Return what a job did with its GPUs, as a fact; insufficient where most of it cannot be told.

    summary: `<counter>_mean` of what decides. fractions: along CLASSES.
    """
    if not gpus:
        return _of("insufficient", "No sample of its GPUs tells what they did.", {}, DECIDING)
    order = [int(place) for place in np.argsort(-fractions, kind="stable") if fractions[place] > 0]
    evidence = {f"workload_{CODES[place]}": round(float(fractions[place]), 6) for place in order}
    evidence["gpus_seen"] = float(gpus)
    unknown = float(fractions[-1])
    missing = tuple(name for name in DECIDING if _absent(summary, name)) if unknown else ()
    because = f"; {enabling(missing)}" if missing else ""
    if CLASSES[order[0]] == UNKNOWN:
        sentence = f"In {text(unknown, 'fraction')} of the GPU time it cannot be told what the GPUs did{because}."
        return _of("insufficient", sentence, evidence, missing)
    known = [place for place in order if CLASSES[place] != UNKNOWN and fractions[place] >= LEAST_SHARE]
    told = [f"{text(float(fractions[place]), 'fraction')} {CLASSES[place]}" for place in known[:NAMED]]
    rest = sum(float(fractions[place]) for place in order if place not in known[:NAMED] and CLASSES[place] != UNKNOWN)
    told += [f"{text(rest, 'fraction')} other"] if rest >= LEAST_SHARE else []
    sentence = f"Of the time of {plural(gpus, 'GPU')}: {', '.join(told)}."
    if unknown >= LEAST_SHARE:
        sentence += f" In {text(unknown, 'fraction')} it cannot be told{because}."
    return _of("yes", sentence, evidence, ())


def _absent(summary: Mapping[str, float | None], name: str) -> bool:
    """Whether nobody measured a counter; utilisation stands in for the engine's activity."""
    stand_in = summary.get("gpu_util_mean") if name == "gr_engine_active" else None
    return summary.get(f"{name}_mean") is None and stand_in is None


def _of(verdict: Answer, sentence: str, evidence: Mapping[str, float], needs: tuple[str, ...]) -> Finding:
    return Finding(
        "workload", "fact", "What its GPUs did", sentence, None, evidence, kind="workload", verdict=verdict, needs=needs
    )
