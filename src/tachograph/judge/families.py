"""Final findings of many jobs: one per code, unknown if unmeasured, covered within families.

The steps of `settled` are the only places where verdicts of different checks meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import polars as pl

from tachograph.catalog.codes import FACTS
from tachograph.judge.check import HALF, OF_THE_RUN, Check, families_around
from tachograph.judge.classes.inputs import HOST_SUFFIX

_HIDES = {"begin": "at the begin", "end": "at the end", "within": "at a stretch"}
_MINUTE_S = 60.0
_EXPLAINS = 1 / 3  # of the run: what an interval as long does to its means
_RANK = {"yes": 0, "unknown": 1, "no": 2}


def settled(
    findings: pl.DataFrame, checks: Sequence[Check], gaps: pl.DataFrame, *, idle_minutes: float
) -> pl.DataFrame:
    """Return findings with one row per (job_key, code), and `covered_by`.

    `findings`: in the schema of FINDINGS without `seq`, one row per job and decider. `checks`: in
    their order. `gaps`: what was not measured of each job (`unmeasured`).
    """
    every = _of_each_code(checks)
    decided = _decided(findings, every)
    return covered(_not_denied(decided, every, gaps, idle_minutes), every, gaps)


def _of_each_code(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The first check of each code, with the deciders of all."""
    found: dict[str, Check] = {}
    for check in checks:
        first = found.setdefault(check.code, check)
        if first is not check and check.deciders:
            found[check.code] = replace(first, deciders=(*first.deciders, *check.deciders))
    return tuple(found.values())


def _decided(findings: pl.DataFrame, checks: Sequence[Check]) -> pl.DataFrame:
    """Keep one row per (job_key, code): `yes` before `unknown` before `no`.

    Of two definitions that hold the more certain one; of two that do not, the one that has values
    to show.
    """
    several = [check for check in checks if check.several]
    code_of = {name: check.code for check in several for name in (check.code, *check.deciders)}
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


def unmeasured(jobs: pl.DataFrame, timelines: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job: missing `share` of samples, and stretches without any (minutes).

    `elapsed_s`: its run time. `begin`, `end`: before the first and after the last measured minute;
    `within`: the longest between two. Null where nothing was measured. `timelines`: one row per
    (job_key, minute), in order.
    """
    minutes = (
        timelines.lazy()
        .filter(pl.col("measured_gpus") > 0)
        .select("job_key", pl.col("minute").cast(pl.Int64))
    )
    stretches = minutes.group_by("job_key").agg(
        begin=pl.col("minute").min(),
        last=pl.col("minute").max(),
        within=pl.col("minute").sort().diff().max().fill_null(1) - 1,
    )
    ran = ((pl.col("as_of") - pl.col("start")).dt.total_seconds() / _MINUTE_S).ceil().cast(pl.Int64)
    return (
        jobs.lazy()
        .select(
            "job_key",
            "elapsed_s",
            share=(1.0 - pl.col("coverage")).clip(0.0, 1.0).round(9).fill_null(0.0),
            ran=ran,
        )
        .join(stretches, on="job_key", how="left", maintain_order="left")
        .select(
            "job_key",
            "elapsed_s",
            "share",
            "begin",
            "within",
            end=(pl.col("ran") - 1 - pl.col("last")).clip(lower_bound=0),
        )
        .collect()
    )


def _not_denied(
    findings: pl.DataFrame, checks: Sequence[Check], gaps: pl.DataFrame, idle_minutes: float
) -> pl.DataFrame:
    """Findings in which `no` is `unknown` where the time without measurements can hide what the
    check detects.
    """
    limits: list[tuple[str, str | None, float]] = []
    for check in checks:
        if not check.of_samples or check.hidden is None:
            continue
        for code in check.codes:
            limit = OF_THE_RUN if code.endswith(HOST_SUFFIX) else check.hidden
            limits.append((code, limit.where, limit.share))
    limits += [(code, None, HALF) for code in FACTS]
    schema = {"code": pl.String(), "where": pl.String(), "at_least": pl.Float64()}
    found = findings.select("job_key", "code", "verdict").join(
        pl.DataFrame(limits, schema=schema, orient="row"),
        on="code",
        how="left",
        maintain_order="left",
    )
    found = found.join(gaps, on="job_key", how="left", maintain_order="left")
    where = pl.col("where")
    stretch = pl.coalesce(pl.when(where == name).then(pl.col(name)) for name in _HIDES)
    too_little = pl.col("share") >= pl.col("at_least")
    by_stretch = where.is_not_null() & (stretch >= idle_minutes).fill_null(value=False)
    hides = too_little | by_stretch
    hidden = found.select(
        hidden=(hides & (pl.col("verdict") == "no") & pl.col("at_least").is_not_null()).fill_null(
            value=False
        ),
        sentence=pl.when(~by_stretch)
        .then(
            pl.concat_str(
                pl.lit("Unknown: "),
                (pl.col("share") * 100).round().cast(pl.Int64),
                pl.lit(" % of the expected samples are missing."),
            )
        )
        .otherwise(
            pl.concat_str(
                pl.lit("Unknown: "),
                stretch,
                pl.lit(" min "),
                where.replace(_HIDES),
                pl.lit(" were not measured."),
            )
        ),
    )
    flags = hidden.get_column("hidden")
    return findings.with_columns(
        verdict=pl.when(flags).then(pl.lit("unknown")).otherwise(pl.col("verdict")),
        sentence=pl.when(flags).then(hidden.get_column("sentence")).otherwise(pl.col("sentence")),
    )


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
    values = [by.get(row) for row in range(findings.height)] if by else [None] * findings.height
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
