"""Headings of columns and sums lead to what they mean."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from tachograph.annexes.serve.pages.help import SHOWN_UNITS
from tachograph.catalog.units import text
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
        ("/?of=all", {"held", "lost", "recoverable", "recovered", "gpu_util_mean"}),
        ("/waste?by=user", {"recoverable", "gpu_hours_hung", "gpu_hours_in_use_unknown"}),
        (
            "/job/1000316?tab=all",
            {"user", "start", "elapsed_s", "gpu_util_mean", "energy_j", "power_w_mean", "coverage"},
        ),
        ("/search?q=10003", {"display_id", "user", "name", "state", "end", "findings"}),
    ],
)
def test_what_a_heading_means_is_explained(
    admin: TestClient, places: set[str], page: str, explained: set[str]
) -> None:
    found = set(LEADS.findall(admin.get(page).text))
    assert explained <= found <= places


def test_every_column_of_jobs_is_explained(places: set[str]) -> None:
    assert {*KNOWN} <= places


def test_the_contents_lead_to_every_group_and_no_place_is_there_twice(admin: TestClient) -> None:
    page = admin.get("/help").text
    contents = re.findall(r'<nav [^>]*aria-label="Contents">(.*?)</nav>', page, re.DOTALL)
    leads = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', contents[0])
    assert leads == re.findall(r'<h2 id="([^"]+)">([^<]+)</h2>', page)
    assert len(leads) > 5
    ids = IDS.findall(page)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("gpu_util_mean", "%"),
        ("spatial_imbalance", "0 to 1"),
        ("hbm_mib", "GiB"),
        ("gpu_hours_lost", "h"),
        ("energy_j", "kWh"),
        ("start", "time of Europe/Berlin"),
        ("power_w_mean", "W"),
    ],
)
def test_units_are_those_that_people_see(admin: TestClient, column: str, unit: str) -> None:
    page = admin.get("/help").text
    entry = page.partition(f'<div id="{column}">')[2].partition("</div>")[0]
    assert f"Unit: {unit}." in entry


@pytest.mark.parametrize(
    ("stored", "amounts"),
    [
        ("fraction", (0.5,)),
        ("s", (90.0, 7260.0)),
        ("J", (7.2e6,)),
        ("MiB", (20480.0,)),
        ("B", (3e9,)),
        ("B/s", (3e9,)),
        ("C", (50.0,)),
    ],
)
def test_people_see_these_units_where_numbers_are_written(
    stored: str, amounts: tuple[float, ...]
) -> None:
    written = " ".join(text(amount, stored) for amount in amounts).split()
    assert {*SHOWN_UNITS[stored].split(", ")} <= {*written}
