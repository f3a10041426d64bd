"""What is shipped for other programs: every panel of the Grafana dashboard is answered, the
widget finds its jobs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import polars as pl
import pytest
import yaml
from starlette.testclient import TestClient

from served_entries import ApiClient, NamedService, proof
from tachograph.annexes.serve.application import create_application
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.snapshot import ServedLake

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
GRAFANA = CONTRIB / "grafana"
DASHBOARD = json.loads(
    (GRAFANA / "dashboards" / "tachograph-jobs.json").read_text(encoding="utf-8")
)
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}


def targets() -> list[dict[str, Any]]:
    """What the panels request, and what the variables are chosen from."""
    of_variables = [
        one["query"]["infinityQuery"] for one in VARIABLES.values() if one["type"] == "query"
    ]
    return [
        *of_variables,
        *(target for panel in DASHBOARD["panels"] for target in panel["targets"]),
    ]


@pytest.mark.parametrize("target", targets(), ids=lambda target: target["url"].rpartition("/")[2])
def test_what_panels_request_has_the_columns_that_they_show(
    admin: TestClient, served: ServedLake, target: dict[str, Any]
) -> None:
    """With a job as the variable's list has it; Infinity takes an object as a single row."""
    job = served.snapshot.jobs.frame.get_column("job_key").min()
    url = target["url"].replace("${job:percentencode}", quote(str(job), safe=""))
    assert "$" not in url
    assert (target["source"], target["parser"], target["root_selector"]) == ("url", "backend", "")
    answer = admin.request(target["url_options"]["method"], url)
    assert answer.status_code == 200, answer.text
    if target["type"] == "csv":
        columns = pl.read_csv(answer.content).columns
    else:
        assert target["type"] == "json"
        rows = answer.json() if isinstance(answer.json(), list) else [answer.json()]
        of_nodes = "/node_minutes" in url  # hosts of the demo were not recorded
        assert rows or of_nodes
        columns = list(rows[0]) if rows else url.partition("fields=")[2].split(",")
    assert [column["selector"] for column in target["columns"]] == columns


def test_panels_name_variables_that_exist() -> None:
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used <= set(VARIABLES)
    places = [tuple(panel["gridPos"][name] for name in "xywh") for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


# {key: its values} in the kind of a dashboard of Grafana 11 (kinds/dashboard), and ids of units
GRAFANA_VALUES: dict[str, set[Any]] = {
    "calcs": {"lastNotNull", "last", "first", "min", "max", "mean", "sum", "count", "range"},
    "displayMode": {"list", "table", "hidden"},
    "graphTooltip": {0, 1, 2},
    "hide": {0, 1, 2},
    "mode": {"single", "multi", "none"},
    "placement": {"bottom", "right"},
    "refresh": {"", 0, 1, 2},
    "sort": {*range(9), "asc", "desc", "none"},
    "timezone": {"browser", "utc", ""},
    "unit": {"Bps", "celsius", "h", "mbytes", "none", "percent", "percentunit", "short", "watt"},
}


def values_of(document: Any, key: str) -> list[Any]:
    """Every value of a key in a document, those of lists one by one."""
    if isinstance(document, list):
        return [value for inner in document for value in values_of(inner, key)]
    if not isinstance(document, dict):
        return []
    value = document.get(key, [])
    values = value if isinstance(value, list) else [value]
    return [*values, *values_of(list(document.values()), key)]


@pytest.mark.parametrize("key", GRAFANA_VALUES)
def test_values_of_the_dashboard_are_those_of_grafana(key: str) -> None:
    values = values_of(DASHBOARD, key)
    assert values
    assert set(values) <= GRAFANA_VALUES[key]


def test_no_panel_lies_on_another() -> None:
    cells = [
        (place["x"] + column, place["y"] + row)
        for place in values_of(DASHBOARD, "gridPos")
        for column in range(place["w"])
        for row in range(place["h"])
    ]
    assert len(cells) == len(set(cells)) > 0


def test_the_dashboard_has_what_an_import_into_grafana_needs() -> None:
    """What the kind of a dashboard in Grafana's schema demands: no Grafana runs here."""
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert DASHBOARD["schemaVersion"] >= 36  # before, a data source was a name and no object
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", DASHBOARD["uid"])
    assert "id" not in DASHBOARD  # it is the database's; an import with one is refused
    assert set(DASHBOARD["time"]) == {"from", "to"}
    assert {variable["type"] for variable in VARIABLES.values()} <= {"datasource", "query"}
    source = {"type": "yesoreyeram-infinity-datasource", "uid": "${source}"}
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in ("stat", "timeseries", "table")
        assert panel["datasource"] == source
        assert panel["title"]
        assert panel["id"] > 0
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) > 0
        for target in panel["targets"]:
            assert target["datasource"] == source
            assert target["format"] in ("table", "timeseries")
            kinds = {column["type"] for column in target["columns"]}
            assert kinds <= {"string", "number", "timestamp"}
            if panel["type"] == "timeseries":
                assert "timestamp" in kinds


def test_the_data_source_is_this_service() -> None:
    text = (GRAFANA / "provisioning" / "datasources" / "tachograph.yaml").read_text(
        encoding="utf-8"
    )
    (source,) = yaml.safe_load(text)["datasources"]
    assert source["uid"] == VARIABLES["source"]["current"]["value"]
    assert source["type"] == VARIABLES["source"]["query"] == "yesoreyeram-infinity-datasource"
    assert {panel["datasource"]["type"] for panel in DASHBOARD["panels"]} == {source["type"]}
    assert source["url"] == "$TACHOGRAPH_URL"  # to which paths are appended
    assert all(target["url"].startswith(API) for target in targets())
    assert source["jsonData"]["auth_method"] == "bearerToken"
    assert set(source["secureJsonData"]) == {"bearerToken"}
    providers = yaml.safe_load(
        (GRAFANA / "provisioning" / "dashboards" / "tachograph.yaml").read_text()
    )
    assert providers["providers"][0]["type"] == "file"


@pytest.fixture
def behind_a_portal(served: ServedLake) -> TestClient:
    """A client of user000 behind a portal that has the pages below /tachograph."""
    serve = msgspec.structs.replace(
        served.configuration.serve, url="https://ondemand.example.org/tachograph"
    )
    moved = ServedLake(served.lake, msgspec.structs.replace(served.configuration, serve=serve))
    return TestClient(create_application(NamedService.of(moved)), headers=proof("user000", "user"))


def test_the_widget_finds_what_it_requests(behind_a_portal: TestClient) -> None:
    widget = (CONTRIB / "ondemand" / "widgets" / "_tachograph_jobs.html.erb").read_text(
        encoding="utf-8"
    )
    (base,) = re.findall(r'base = "(.+?)"', widget)
    (path,) = re.findall(r'fetch\(base \+ "(.+?)"', widget)
    answer = behind_a_portal.get(base + path, headers={"Accept": "application/json"})
    jobs: list[dict[str, Any]] = answer.json()
    assert jobs
    assert set(re.findall(r"\bjob\.(\w+)", widget)) <= set(jobs[0])
    assert behind_a_portal.get(base + jobs[0]["page"]).status_code == 200
    assert answer.links["next"]["url"].startswith(f"{base}api/v1/me/jobs?limit=8&after=")
    assert "innerHTML" not in widget
    document = behind_a_portal.get(f"{base}api/v1/openapi.json").json()
    assert document["servers"] == [{"url": "/tachograph/api/v1"}]


def test_the_app_leads_to_the_pages(behind_a_portal: TestClient, as_viewer: ApiClient) -> None:
    manifest = yaml.safe_load(
        (CONTRIB / "ondemand" / "tachograph" / "manifest.yml").read_text(encoding="utf-8")
    )
    assert {"name", "category", "description", "url"} <= set(manifest)
    assert behind_a_portal.get(manifest["url"]).status_code == 200
    readme = (CONTRIB / "ondemand" / "README.md").read_text(encoding="utf-8")
    assert f'"unix:/run/tachograph/serve.sock|http://localhost{manifest["url"]}"' in readme
