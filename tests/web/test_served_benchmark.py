"""The benchmark of `tachograph serve`: every address that it asks for is answered."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import serve
from served_entries import NamedService, proof
from tachograph.annexes.serve.application import create_application
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.lake.delta import Lake


@pytest.mark.slow
def test_the_addresses_of_the_benchmark_are_answered(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "USERS", 5)
    (tmp_path / "demo").symlink_to(demo)
    lake = Lake.open(str(serve.make_lake(tmp_path, 360)))
    served = ServedLake(lake, Configuration(serve=ServeOptions(requests_per_s=0.0)))
    application = create_application(NamedService.of(served))
    client = TestClient(application, headers=proof("root", "admin"))
    newest = client.get(f"{API}/jobs?limit=1000&fields=job_key,user").json()
    assert len(newest) > 300
    users = sorted({row["user"] for row in newest if row["user"]})
    jobs = [f"/job/{row['job_key']}" for row in newest]
    visits = serve.visits(random.Random(7), users, jobs)
    times = serve.timed(client, [address for visit in visits for address in visit])
    assert set(times) == set(serve.deep_times(client, 3)) == {"p50_ms", "p95_ms", "max_ms"}
