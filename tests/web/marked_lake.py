"""A lake of eight users: what is Bob's carries marks that occur nowhere else, what is Ann's is
hostile text.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
from starlette.testclient import TestClient

from madelake import held, job, make_lake, summarized, utc
from tachograph.annexes.serve.application import WebService, create_application
from tachograph.annexes.serve.identity.identities import StartLink
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.annexes.share.nsight.launches import Chip, Launch, NcuReport
from tachograph.annexes.share.profiles import AttachedProfile, attach_profiles
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries

ANN, BOB = "annqz", "bobqz"
ANNS_JOB, BOBS_JOB = "410014", "770077"
HOSTILE = '<script>alert("x")</script>\u202e\x1b[31m'
FORMULA = "=cmd|'/c calc'!A1"
# what must be in no answer to others: each is a part of a value that is Bob's alone
MARKS = (
    *(BOB, "acctqz", "nameqz", "nodeqz", "partqz", "stepqz", "submitqz", "qosqz", BOBS_JOB),
    *("reportqz", "kernelqz", "rangeqz", "problemqz", "chipqz"),
)
_START = utc(23, 12)
_END = _START + timedelta(minutes=30)


def _samples(node: str, util: float) -> list[dict[str, Any]]:
    times = [_START + timedelta(seconds=30 * place) for place in range(60)]
    return [{"t": t, "node": node, "gpu": 0, "gpu_util": util, "power_w": 90.0} for t in times]


def marked_lake(folder: Path, *, whose: str = "") -> Lake:
    """Return an analyzed lake with a job each of Ann and Bob, and of six others in one partition
    and account.

    whose: of jobs only those of this user are recorded; GPUs and samples are the same.
    """
    rows = [
        (ANNS_JOB, ANN, "annacct", "annpart", HOSTILE, "annnode", "NVIDIA A40"),
        ("410015", ANN, "annacct", "annpart", FORMULA, "annnode2", "NVIDIA A40"),
        (BOBS_JOB, BOB, "acctqz", "partqz", "nameqz <b>", "nodeqz", "NVIDIA H100 80GB HBM3"),
        *(
            (str(510000 + n), f"user{n}", "many", "common", f"job{n}", f"n{n}", "NVIDIA A40")
            for n in range(6)
        ),
    ]
    kept = [one for one in rows if whose in ("", one[1])]
    jobs = [
        job(id_, _START, _END, user=user, account=account, partition=partition, name=name, gpus=1)
        | (
            {"submit_line": "sbatch submitqz", "qos": "qosqz", "node_list": "nodeqz"}
            if user == BOB
            else {}
        )
        for id_, user, account, partition, name, _, _ in kept
    ]
    lake = make_lake(
        folder,
        gpu_samples=[
            row for one in rows for row in _samples(one[5], 0.0 if one[1] in (ANN, BOB) else 0.5)
        ],
        devices=[{"node": one[5], "gpu": 0, "model": one[6]} for one in rows],
        jobs=jobs,
        allocations=[row for one in kept for row in held(one[0], one[5], [0], _START, _END)],
        steps=[
            {
                "job_id": one[0],
                "step": "0",
                "name": "stepqz",
                "start": _START,
                "end": _END,
                "node_list": one[5],
            }
            for one in kept
            if one[1] == BOB
        ],
    )
    summarized(lake)
    for row in read_summaries(lake).filter(pl.col("user") == BOB).iter_rows(named=True):
        attach_profiles(lake, row["job_key"], row["job_id"], [_bobs_report()])
    return lake


def _bobs_report() -> AttachedProfile:
    metrics = {"gpu__time_duration.sum": 1e6, "launch__grid_size": 4.0}
    launch = Launch(
        "void kernelqz(int)", metrics, Chip("chipqz"), "reportqz.csv", 0, ranges=("rangeqz",)
    )
    report = NcuReport(
        "/profiles/reportqz.csv", (launch,), problems=("problemqz",), digest="f" * 64
    )
    return AttachedProfile(report, 1, _END)


def connect(
    lake: Lake, *, link: str = "", headers: dict[str, str] | None = None, **options: Any
) -> TestClient:
    """Return a client, in this process, of a server with these options; `headers` are sent with
    each request.
    """
    service = service_of(lake, StartLink(link, ANN), **options)
    return TestClient(create_application(service), headers=headers, follow_redirects=False)


def service_of(lake: Lake, link: StartLink, **options: Any) -> WebService:
    """Return a service of a lake with some options."""
    return WebService.of(ServedLake(lake, Configuration(serve=ServeOptions(**options))), link=link)
