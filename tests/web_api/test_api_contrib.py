"""What is shipped for other programs: every query of the Grafana dashboard is answered, the widget finds its jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2
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


def test_a_query_of_one_instant_is_answered(admin: TestClient) -> None:
    data = {"query": f"avg by (user) ({UTIL})", "time": f"{END - 600}.000"}
    found = admin.post(f"{API}{PROMETHEUS}/query", data=data).json()["data"]
    assert found["resultType"] == "vector"
    assert {row["value"][0] for row in found["result"]} == {END - 600}
    assert all(0 <= float(row["value"][1]) <= 1 for row in found["result"])


def as_grafana(client: TestClient, method: str, path: str, sent: dict[str, str]) -> httpx2.Response:
    """The answer to a request whose parameters stand in the address, or in a form."""
    if method == "POST":
        return client.post(f"{API}{PROMETHEUS}{path}", data=sent)
    return client.request(method, f"{API}{PROMETHEUS}{path}", params=sent)


SPAN = {"start": str(END - 1200), "end": str(END)}
UTIL = 'tachograph_job_gpu_util{user=~".+"}'


@pytest.mark.parametrize("step", ["60", "60.000", "1m", "60s", "0m60s"])
def test_steps_are_seconds_or_spans(admin: TestClient, step: str) -> None:
    answer = admin.post(f"{API}{PROMETHEUS}/query_range", data={**SPAN, "query": f"avg({UTIL})", "step": step})
    (series,) = answer.json()["data"]["result"]
    assert [at for at, _ in series["values"]] == list(range(END - 1200, END + 1, 60))


@pytest.mark.parametrize(
    ("request_line", "sent", "expected"),
    [
        ("POST /labels", {"match[]": UTIL, **SPAN}, ["__name__", "account", "cluster", "gpu", "job"]),
        ("GET /labels", {"limit": "2"}, ["__name__", "account"]),
        ("GET /label/__name__/values", {"match[]": UTIL, **SPAN}, ["tachograph_job_gpu_util"]),
        ("GET /label/user/values", {"match[]": UTIL, **SPAN}, ["user000"]),
        ("GET /label/instance/values", {}, []),
        ("POST /query", {"query": "up", "time": str(END)}, {"resultType": "vector", "result": []}),
    ],
)
def test_lists_are_answered_as_by_prometheus(
    admin: TestClient, request_line: str, sent: dict[str, str], expected: Any
) -> None:
    method, _, path = request_line.partition(" ")
    answer = as_grafana(admin, method, path, sent)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["status"] == "success"
    assert found["data"][: len(expected)] == expected if isinstance(expected, list) else found["data"] == expected


def test_series_are_listed_with_their_labels(admin: TestClient) -> None:
    for found in (
        admin.post(f"{API}{PROMETHEUS}/series", data={"match[]": UTIL, **SPAN}).json(),
        admin.get(f"{API}{PROMETHEUS}/series", params={"match[]": UTIL, **SPAN}).json(),
    ):
        assert {row["__name__"] for row in found["data"]} == {"tachograph_job_gpu_util"}
        assert all({"job", "user", "node", "gpu"} <= set(row) for row in found["data"])


@pytest.mark.parametrize(
    ("request_line", "sent", "status", "kind"),
    [
        ("POST /query", {"query": "up{"}, 400, "bad_data"),
        ("POST /query", {}, 400, "bad_data"),
        ("POST /query_range", {"query": UTIL, **SPAN, "step": "0"}, 400, "bad_data"),
        ("POST /query_range", {"query": UTIL, "start": str(END), "end": "1", "step": "1m"}, 400, "bad_data"),
        ("GET /series", {}, 400, "bad_data"),
        ("GET /rules", {}, 404, "not_found"),
        ("PUT /query", {}, 405, "execution"),
    ],
)
def test_errors_are_those_of_prometheus(
    admin: TestClient, request_line: str, sent: dict[str, str], status: int, kind: str
) -> None:
    method, _, path = request_line.partition(" ")
    answer = as_grafana(admin, method, path, sent)
    found = answer.json()
    assert (answer.status_code, found["status"], found["errorType"]) == (status, "error", kind)
    assert set(found) == {"status", "errorType", "error"}


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
