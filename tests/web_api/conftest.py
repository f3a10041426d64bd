"""Clients of the demo's lake."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from api_client import ApiClient, NamedService, proof
from starlette.testclient import TestClient

from tachograph.catalog import config
from tachograph.lake.delta import Lake
from tachograph.web.application import create_application
from tachograph.web.snapshot import ServedLake


@pytest.fixture(scope="module")
def served(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLake]:
    """A copy of the demo's lake, into which labels may be written; no limit of requests."""
    lake = tmp_path_factory.mktemp("served") / "lake"
    shutil.copytree(demo / "lake", lake)
    configuration = config.load(str(demo / "tachograph.toml"))
    unlimited = msgspec.structs.replace(configuration.serve, requests_per_s=0.0)
    made = ServedLake(Lake.open(str(lake)), msgspec.structs.replace(configuration, serve=unlimited))
    yield made
    made.fleet.close()


@pytest.fixture(scope="module")
def as_viewer(served: ServedLake) -> ApiClient:
    """A client as `name role`; without any as nobody."""
    application = create_application(NamedService.of(served))

    def client(name: str = "", role: str = "user") -> TestClient:
        return TestClient(application, headers=proof(name, role))

    return client


@pytest.fixture(scope="module")
def admin(as_viewer: ApiClient) -> TestClient:
    """A client that sees all jobs."""
    return as_viewer("root", "admin")
