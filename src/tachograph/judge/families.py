"""Final findings of many jobs: one per code, unknown if unmeasured, covered within families.

The steps of `settled` are the only places where verdicts of different checks meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, cast

import polars as pl

from tachograph.catalog.units import plural, text
from tachograph.judge.check import Check, families_around
from tachograph.judge.classes.inputs import HOST_SUFFIX
from tachograph.judge.completions import GapRow

_HIDES = {"begin": "at the beginning", "end": "at the end", "within": "in between"}
_MINUTE_S = 60.0
_NAMED = 3  # counters that a sentence names
_EXPLAINS = 1 / 3  # of the run: what an interval as long does to its means
_RANK = {"yes": 0, "unknown": 1, "no": 2}


def settled(
    findings: pl.DataFrame, refuted: pl.DataFrame, checks: Sequence[Check], gaps: pl.DataFrame
) -> pl.DataFrame:
    """Return findings with one row per (job_key, code), and `covered_by`.

    `findings`: in the schema of FINDINGS without `seq`, one row per job and decider. `refuted`:
    (job_key, code) of those that the time without samples may have made otherwise
    (`completions.refuted`). `checks`: in their order. `gaps`: what was not measured of each job
    (`completions.unmeasured`).
    """
    every = _of_each_code(checks)
    return covered(_certain(_decided(findings, every), refuted, gaps), every, gaps)


def verdicts(findings: pl.DataFrame, checks: Sequence[Check]) -> pl.DataFrame:
    """Return (job_key, code, verdict) where one is decided: `yes` by any decider, `no` by all.

    What is said about the recording itself is left out: no sample would change it.
    """
    every = _of_each_code(checks)
    of_recording = [code for check in every if not check.of_samples for code in check.codes]
    ranked = findings.select(
        "job_key",
        pl.col("code").replace(_codes_of_deciders(every)),
        rank=pl.col("verdict").replace_strict(_RANK, return_dtype=pl.Int8()),
    )
    decided = ranked.group_by("job_key", "code").agg(pl.col("rank").min())
    return (
        decided.filter(pl.col("rank") != _RANK["unknown"])
        .select(
            "job_key",
            "code",
            verdict=pl.when(pl.col("rank") == _RANK["yes"])
            .then(pl.lit("yes"))
            .otherwise(pl.lit("no")),
        )
        .filter(~pl.col("code").is_in(of_recording))
    )


def _of_each_code(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The first check of each code, with the deciders of all."""
    found: dict[str, Check] = {}
    for check in checks:
        first = found.setdefault(check.code, check)
        if first is not check and check.deciders:
            found[check.code] = replace(first, deciders=(*first.deciders, *check.deciders))
    return tuple(found.values())


def _codes_of_deciders(checks: Sequence[Check]) -> dict[str, str]:
    """{name of a decider: code of the check that it decides, too}."""
    several = [check for check in checks if check.several]
    return {name: check.code for check in several for name in (check.code, *check.deciders)}


def _decided(findings: pl.DataFrame, checks: Sequence[Check]) -> pl.DataFrame:
    """Keep one row per (job_key, code): `yes` before `unknown` before `no`.

    Of two definitions that hold the more certain one; of two that do not, the one that has values
    to show.
    """
    several = [check for check in checks if check.several]
    code_of = _codes_of_deciders(checks)
    mine = pl.col("code").is_in(list(code_of))
    apart = findings.filter(mine)
    if not apart.height:
        return findings
    of_check = {
        name: pl.col("code").replace_strict(
            {check.code: getattr(check, name) for check in several}, return_dtype=pl.String()
        )
        for name in ("severity", "title", "advice")
    }
    of_check["advice"] = pl.when(pl.col("verdict") == "yes").then(of_check["advice"])
    ranked = (
        apart.with_columns(
            others=pl.col("code").replace_strict(code_of) != pl.col("code"),
            code=pl.col("code").replace_strict(code_of),
            rank=pl.col("verdict").replace_strict(_RANK, return_dtype=pl.Int8()),
        )
        .sort(
            "rank",
            "confidence",
            "others",
            pl.col("checks") == "[]",
            nulls_last=True,
            maintain_order=True,
        )
        .unique(["job_key", "code"], keep="first", maintain_order=True)
        .with_columns(**of_check)
    )
    return pl.concat([findings.filter(~mine), ranked.select(findings.columns)])


def _certain(findings: pl.DataFrame, refuted: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Findings that are `unknown` where the time without samples may have made it otherwise."""
    if not refuted.height:
        return findings
    in_part = gaps.join(refuted, on="job_key", how="semi")
    rows = cast("Iterator[GapRow]", in_part.iter_rows(named=True))
    sentences = {row["job_key"]: _not_certain(row) for row in rows}
    found = findings.join(
        refuted.with_columns(open=True), on=["job_key", "code"], how="left", maintain_order="left"
    )
    because = pl.col("job_key").replace_strict(sentences, default=None, return_dtype=pl.String())
    unknown = {"verdict": pl.lit("unknown"), "sentence": because, "evidence": pl.lit("{}")}
    unknown |= {name: pl.lit(None) for name in ("confidence", "advice", "begin", "end")}
    return found.with_columns(
        pl.when("open").then(value).otherwise(name).alias(name) for name, value in unknown.items()
    ).select(findings.columns)


def _not_certain(gap: GapRow) -> str:
    """Return what is missing of a job: the longest gap where it is most of it, else the share.

    Where nothing of its time is missing, counters of some of its GPUs are.
    """
    if not gap["share"]:
        counters = gap["lacking"].split(",")
        were = "was" if len(counters) == 1 else "were"
        return f"Unknown: {_names(counters)} {were} not measured on some of its GPUs."
    minutes = {"begin": gap["begin"], "end": gap["end"], "within": gap["within"]}
    where = max(_HIDES, key=lambda name: minutes[name] or 0)
    longest_s = (minutes[where] or 0) * _MINUTE_S
    if 2 * longest_s >= gap["share"] * (gap["elapsed_s"] or 0) and longest_s:
        return f"Unknown: {text(longest_s, 's')} {_HIDES[where]} were not measured."
    return f"Unknown: {text(gap['share'], 'fraction')} of its GPU time was not measured."


def _names(counters: Sequence[str]) -> str:
    """Return a few counters, and how many more."""
    named, more = counters[:_NAMED], len(counters) - _NAMED
    if more > 0:
        return f"{', '.join(named)} and {plural(more, 'more counter')}"
    return ", ".join(named)


class _Holding(NamedTuple):
    """A finding that holds: its index in the frame, families, order among the checks, interval."""

    row: int
    code: str
    fact: bool
    families: tuple[str, ...]
    place: int
    begin: datetime | None
    end: datetime | None
    elapsed_s: float | None

    def covers(self, other: _Holding) -> bool:
        """Whether it is more specific than another of its families, about the same time.

        A finding on a part of the run explains one on the whole run in a wider family if the part
        is at least a third of it. Nothing covers a fact, which covers its consequences in wider
        families.
        """
        if other.fact or other.families[0] not in self.families:
            return False
        narrower = other.families[0] != self.families[0]
        if not narrower and (self.fact or other.place <= self.place):
            return False
        if self.begin is None or self.end is None:
            return True
        if other.begin is None or other.end is None:
            lasted = (self.end - self.begin).total_seconds()
            return not narrower or self.elapsed_s is None or lasted >= _EXPLAINS * self.elapsed_s
        return self.begin < other.end and other.begin < self.end


def covered(findings: pl.DataFrame, checks: Sequence[Check], gaps: pl.DataFrame) -> pl.DataFrame:
    """Return findings with `covered_by`, the code of the more specific finding of the family.

    Null where a finding is reported, where it does not hold, and of facts.
    """
    places: dict[str, tuple[tuple[str, ...], int]] = {}
    for place, check in enumerate(checks):
        families = families_around(check.family)
        for code in check.codes:
            places[code] = (families, 2 * place + code.endswith(HOST_SUFFIX))
    rows = findings.with_row_index("row").filter(
        pl.col("verdict") == "yes", pl.col("code").is_in(list(places))
    )
    rows = rows.select("row", "job_key", "code", "begin", "end", fact=pl.col("severity") == "fact")
    elapsed = dict(gaps.select("job_key", "elapsed_s").iter_rows())
    of_jobs: dict[str, list[_Holding]] = {}
    for row in rows.iter_rows(named=True):
        families, place = places[row["code"]]
        of_jobs.setdefault(row["job_key"], []).append(
            _Holding(
                row["row"],
                row["code"],
                row["fact"],
                families,
                place,
                row["begin"],
                row["end"],
                elapsed.get(row["job_key"]),
            )
        )
    by: dict[int, str] = {}
    for holding in of_jobs.values():
        by |= _covered(holding)
    values: list[str | None] = [None] * findings.height
    for place_of_row, code in by.items():
        values[place_of_row] = code
    return findings.with_columns(covered_by=pl.Series(values, dtype=pl.String()))


def _covered(holding: Iterable[_Holding]) -> Mapping[int, str]:
    """{row: code that covers it}, the narrowest family and its most specific finding first."""
    ordered = sorted(holding, key=lambda one: (-len(one.families), one.place))
    reported: list[_Holding] = []
    found: dict[int, str] = {}
    for one in ordered:
        above = next((other for other in reported if other.covers(one)), None)
        if above is None:
            reported.append(one)
        else:
            found[one.row] = above.code
    return found
