"""A lake whose every text that others write is hostile: a job per payload, the payload in all its
columns of text.

The columns are those of the tables' schemas: a new one is hostile until it is named in VOCABULARY,
or as a key here.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from madelake import held, job, make_lake, summarized
from tachograph.annexes.share.nsight.launches import Chip, Launch, NcuReport
from tachograph.annexes.share.profiles import AttachedProfile, attach_profiles
from tachograph.catalog.tables import TABLES
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.labels import write_label
from tachograph.lake.query import read_verdicts, select_jobs

NOW = datetime(2026, 4, 24, tzinfo=UTC)
START = datetime(2026, 4, 23, 10, tzinfo=UTC)
END = START + timedelta(minutes=30)
MARK = "qz"  # in every payload: what is shown of it can be found
LONG = 100_000  # characters

PAYLOADS: Mapping[str, str] = MappingProxyType(
    {
        "csi": "qz\x1b[2J\x1b[1;31m\x1b[10;10H",
        "osc": "qz\x1b]0;title\x07\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\\x1b]52;c;cm0=\x07",
        "c1": "qz\x9b2J\x9d0;title\x9c\x90q\x9c",
        "lines": "qz\nnext: line\r\nback\x0b\x0c\x85\u2028\u2029over",
        "tabs": "qz\tone\ttwo\x08\x08\x08",
        "nul": "qz\0behind\x7f",
        "bidi": "qz\u202ecod.exe\u202c\u2066\u2067\u2068\u2069\u200e\u200f\u061c",
        "invisible": "qz\u200b\u200c\u200d\u2060\ufeff\xad\u3164\U000e0041\U000e0020",
        "html": (
            "qz</td></script><script>alert(1)</script><img src=x "
            "onerror=alert(1)>\"'><svg/onload=alert(1)>"
        ),
        "formula": "=cmd|'/c calc'!A1 qz",
        "plus": "+1+cmd|qz",
        "minus": "-2+3+cmd|qz",
        "at": "@SUM(1+1)*qz",
        "tab_formula": "\t=1+1 qz",
        "return_formula": "\r=1+1 qz",
        "quoted": "'=1+1 qz",
        "template": "qz{{ 7*7 }}{% raw %}${7*7}#{7*7}{0.__class__}%s%(x)s",
        "markdown": "qz](https://evil.example) **b** `c` | d\n# head\n<!-- -->",
        "shell": "qz$(reboot)`reboot`;reboot&&'\"\\",
        "mathtext": "qz$\\frac{a}$ $x^{2$",
        "underscore": "_qz",
        "labels": 'qz"} 1\n# EOF\nevil{a="',
        "long": "qz" + "x" * LONG,
    }
)
# Ids that are none, one per payload.
PLAIN_JOBS = [str(1000 + place) for place in range(len(PAYLOADS))]
# one of each way to act: what is walked with few payloads is walked with these
STRONG = ("csi", "lines", "bidi", "html")
STRONG_JOBS = [PLAIN_JOBS[list(PAYLOADS).index(kind)] for kind in STRONG]
# columns whose values are Slurm's or Tachograph's own words, or decide which rows belong together
_FIXED = frozenset(
    {"state", "provenance", "numbering", "step", "job_id", "cluster", "node", "node_list"}
)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")},
    "NO_COLOR": "1",
    "TACHOGRAPH_LAKE": "lake",
}
_KINDS = frozenset({"Cf", "Cs", "Co", "Zl", "Zp"})
_INVISIBLE = frozenset("\u3164\u115f\u1160\uffa0\u2800")


def steering(text: str) -> list[str]:
    """Characters of a text, other than line ends, that steer a terminal, turn its direction, or
    are not seen.
    """
    return sorted(
        {
            f"{ord(letter):#x}"
            for letter in text
            if (unicodedata.category(letter) == "Cc" and letter != "\n")
            or unicodedata.category(letter) in _KINDS
            or letter in _INVISIBLE
        }
    )


def foreign_columns(table: str) -> list[str]:
    """Columns of text of a table that is filled from outside, but those that are fixed."""
    schema = TABLES[table].schema
    return [name for name, dtype in schema.items() if dtype == pl.String and name not in _FIXED]


def foreign(table: str, payload: str, **given: Any) -> dict[str, Any]:
    """A row of a table with a payload in each column that is foreign text."""
    return dict.fromkeys(foreign_columns(table), payload) | given


def node_of(payload: str) -> str:
    """The name of a node; a short one, as there are many samples of it."""
    return payload[:200]


NODES = {*map(node_of, PAYLOADS.values())}


def hostile_lake(folder: Path) -> Lake:
    """Return an analyzed lake with two jobs per payload: one with a plain id, and one whose id
    is hostile, too.
    """
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in TABLES if name != "node_samples"
    }
    for place, payload in enumerate(PAYLOADS.values()):
        for job_id, gpu in ((PLAIN_JOBS[place], 0), (f"{place}{payload[:500]}", 1)):
            node = node_of(payload)
            row = job(
                job_id,
                START,
                END,
                gpus=1,
                cpus=1,
                node_list=node,
                submit_line=f"sbatch {payload}",
            )
            tables["jobs"].append(
                foreign("jobs", payload) | row | {"display_id": None if gpu == 0 else payload}
            )
            tables["allocations"] += held(job_id, node, [gpu], START, END)
            tables["steps"].append(
                foreign(
                    "steps", payload, job_id=job_id, step="0", start=START, end=END, node_list=node
                )
            )
            tables["devices"].append(foreign("devices", payload, node=node, gpu=gpu))
            times = [START + timedelta(seconds=30 * nth) for nth in range(60)]
            tables["gpu_samples"] += [
                {"t": t, "node": node, "gpu": gpu, "gpu_util": 0.0, "power_w": 90.0, "xid": 79}
                for t in times
            ]
        tables["rejects"].append(
            foreign("rejects", payload, target=payload, reason=payload, chunk=payload, removed=3)
        )
    lake = make_lake(folder, **tables)
    summarized(lake, now=NOW)
    _label(lake)
    _profile(lake)
    return lake


def _label(lake: Lake) -> None:
    """A label of each job with a comment and a person that are hostile."""
    jobs = select_jobs(lake, JobFilter()).jobs
    findings = read_verdicts(lake, jobs).unique("job_key", maintain_order=True)
    for row in findings.iter_rows(named=True):
        known = jobs.filter(pl.col("job_key") == row["job_key"]).row(0, named=True)
        write_label(
            lake, row["job_key"], row["job_id"], row["code"], holds=True, by=known["user"], at=NOW,
            comment=known["name"],
        )  # fmt: skip


def _profile(lake: Lake) -> None:
    """A report of kernels of each job with a plain id, every text of it hostile."""
    for row in (
        select_jobs(lake, JobFilter())
        .jobs.filter(pl.col("job_id").is_in(PLAIN_JOBS))
        .iter_rows(named=True)
    ):
        text = row["name"][:9_000]
        metrics = {"gpu__time_duration.sum": 1e6, "launch__grid_size": 4.0}
        launch = Launch(text, metrics, Chip(text), f"{text}.csv", 0, ranges=(text,))
        report = NcuReport(f"/profiles/{text}.csv", (launch,), problems=(text,), digest="f" * 64)
        attach_profiles(lake, row["job_key"], row["job_id"], [AttachedProfile(report, 1, NOW)])
