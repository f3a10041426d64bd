"""Headings of columns and sums lead to what they mean."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from tachograph.report.jobs import KNOWN

LEADS = re.compile(r'href="/help#([^"]+)"')
IDS = re.compile(r'id="([^"]+)"')


@pytest.fixture(scope="module")
def places(admin: TestClient) -> set[str]:
    """What the page explains."""
    return set(IDS.findall(admin.get("/help").text))


@pytest.mark.parametrize(
    ("page", "explained"),
    [
        ("/jobs", {"gpu_util_mean", "spatial_imbalance", "limiter", "findings"}),
        ("/jobs?columns=account,sm_active_mean,qos", {"account", "sm_active_mean", "qos"}),
        ("/?of=all", {"used", "lost", "recoverable", "recovered", "gpu_util_mean"}),
        ("/waste?by=user", {"recoverable", "gpu_hours_hung", "gpu_hours_in_use_unknown"}),
    ],
)
def test_what_a_heading_means_is_explained(
    admin: TestClient, places: set[str], page: str, explained: set[str]
) -> None:
    found = set(LEADS.findall(admin.get(page).text))
    assert explained <= found <= places


def test_every_column_of_jobs_is_explained(places: set[str]) -> None:
    assert {*KNOWN} <= places
