"""What is shipped for other programs: every query of the Grafana dashboard is answered, the widget finds its jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from api_client import ApiClient, NamedService, proof
from starlette.testclient import TestClient

from tachograph.export.minute_series import MINUTE_METRICS
from tachograph.web.application import create_application
from tachograph.web.registry import API, PROMETHEUS
from tachograph.web.snapshot import ServedLake

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
GRAFANA = CONTRIB / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "tachograph-jobs.json").read_text(encoding="utf-8"))
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
# what an instant near the end of the demo is, in s
END = 1741129200


def interpolated(text: str, **values: str) -> str:
    """A query as Grafana sends it."""
    for name, value in {"__interval": "1m", **values}.items():
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    assert "$" not in text
    return text


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("name", [name for name, one in VARIABLES.items() if one["type"] == "query"])
def test_variables_have_values(admin: TestClient, name: str) -> None:
    found = _LABEL_VALUES.fullmatch(VARIABLES[name]["query"]["query"])
    assert found is not None
    answer = admin.get(
        f"{API}{PROMETHEUS}/label/{found[2]}/values",
        params={"match[]": interpolated(found[1], user=".+"), "start": END - 21600, "end": END},
    )
    assert answer.status_code == 200
    assert answer.json()["data"]


@pytest.mark.parametrize("query", expressions())
@pytest.mark.parametrize(("user", "job"), [(".+", ".+"), ("user003|user036", ".+")])
def test_queries_are_answered(admin: TestClient, query: str, user: str, job: str) -> None:
    parameters = {"query": interpolated(query, user=user, job=job), "start": END - 21600, "end": END, "step": 60}
    answer = admin.post(f"{API}{PROMETHEUS}/query_range", data=parameters)
    assert answer.status_code == 200, answer.text
    of_nodes = "tachograph_node_" in query  # hosts of the demo were not recorded
    unrecorded = any(f"_{name}_" in query for name in ("nvlink", "pcie"))
    assert answer.json()["data"]["result"] or of_nodes or unrecorded


def test_metrics_of_the_dashboard_exist() -> None:
    named = {name for query in expressions() for name in re.findall(r"tachograph_\w+", query)}
    assert named <= set(MINUTE_METRICS)
    assert len(named) > 10


def test_panels_name_variables_that_exist() -> None:
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD["panels"]))) - {"__interval"}
    assert used <= set(VARIABLES)
    places = [tuple(panel["gridPos"][name] for name in "xywh") for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_the_data_source_is_this_service(admin: TestClient) -> None:
    text = (GRAFANA / "provisioning" / "datasources" / "tachograph.yaml").read_text(encoding="utf-8")
    (source,) = yaml.safe_load(text)["datasources"]
    assert source["uid"] == VARIABLES["source"]["current"]["value"]
    assert source["type"] == VARIABLES["source"]["query"] == "prometheus"
    path = source["url"].removeprefix("$TACHOGRAPH_URL")
    assert admin.get(f"{path}/api/v1/status/buildinfo").json()["status"] == "success"
    # what `Save & test` sends
    checked = admin.post(f"{path}/api/v1/query", data={"query": "1+1", "time": str(END)})
    assert checked.json()["data"] == {"resultType": "scalar", "result": [END, "2"]}
    providers = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "tachograph.yaml").read_text())
    assert providers["providers"][0]["type"] == "file"


@pytest.fixture
def behind_a_portal(served: ServedLake) -> TestClient:
    """A client of user000 behind a portal that has the pages below /tachograph."""
    serve = msgspec.structs.replace(served.configuration.serve, url="https://ondemand.example.org/tachograph")
    moved = ServedLake(served.lake, msgspec.structs.replace(served.configuration, serve=serve))
    return TestClient(create_application(NamedService.of(moved)), headers=proof("user000", "user"))


def test_the_widget_finds_what_it_requests(behind_a_portal: TestClient) -> None:
    widget = (CONTRIB / "ondemand" / "widgets" / "_tachograph_jobs.html.erb").read_text(encoding="utf-8")
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
    manifest = yaml.safe_load((CONTRIB / "ondemand" / "tachograph" / "manifest.yml").read_text(encoding="utf-8"))
    assert {"name", "category", "description", "url"} <= set(manifest)
    assert behind_a_portal.get(manifest["url"]).status_code == 200
    readme = (CONTRIB / "ondemand" / "README.md").read_text(encoding="utf-8")
    assert f'"unix:/run/tachograph/serve.sock|http://localhost{manifest["url"]}"' in readme
