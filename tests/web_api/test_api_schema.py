"""The OpenAPI document: it names all there is, and every endpoint does what it says, with
requests made from it.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from served_entries import ApiClient, proof
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.openapi import (
    PROBLEMS,
    VERSION,
    described_parameters,
    openapi_document,
    operation_id,
)
from tachograph.annexes.serve.registry import ENDPOINTS
from tachograph.api.endpoints import Endpoint, TableShape

# {first part of the path: field of a job that stands in it}
PLACES = {
    "jobs": "job_key",
    "users": "user",
    "accounts": "account",
    "nodes": "node",
    "prometheus": "user",
}
VIEWERS = {"admin": ("root", "admin"), "user": ("user000", "user")}


@pytest.fixture(scope="module")
def api(as_viewer: ApiClient) -> Any:
    """The document, as schemathesis reads it from the application, which it begins and ends at
    each request.
    """
    application = as_viewer().app

    async def lasting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    schema = schemathesis.openapi.from_asgi(f"{API}/openapi.json", lasting)
    rejected = schema.config.checks.negative_data_rejection
    # What is too long may be too long as a whole.
    rejected.expected_statuses = [*rejected.expected_statuses, "413"]
    return schema


# a string that the schema allows may still be no time, no condition, no cursor
EXCLUDED = ("positive_data_acceptance",)
# Requests of each operation: random ones of each kind, and those at limits of the schema.
GENERATED, LISTED = 2, 10

BOUNDED = settings(
    max_examples=GENERATED, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "role"),
    [(entry, [*VIEWERS][number % len(VIEWERS)]) for number, entry in enumerate(ENDPOINTS)],
    ids=[operation_id(entry) for entry in ENDPOINTS],
)
def test_every_endpoint_does_what_the_document_says(
    api: Any, as_viewer: ApiClient, entry: Endpoint, role: str
) -> None:
    load_all_checks()
    excluded: list[Any] = [CHECKS.get_one(name) for name in EXCLUDED]
    operation = api.find_operation_by_id(operation_id(entry))

    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(headers=proof(*VIEWERS[role]), excluded_checks=excluded)

    there = in_path(as_viewer(*VIEWERS[role]), entry)
    strategies = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    if there:  # what is there, with parameters of any kind
        strategies += [
            operation.as_strategy(generation_mode=mode, path_parameters=there)
            for mode in GenerationMode
        ]
    for strategy in strategies:

        @BOUNDED
        @given(case=strategy)
        def generated(case: schemathesis.Case[Any]) -> None:
            check(case)

        generated()
    listed = api.iter_coverage_cases(
        operation,
        generation_modes=list(GenerationMode),
        generation_config=api.config.generation_for(),
    )
    for case in islice(listed, LISTED):
        check(case)


def in_path(client: TestClient, entry: Endpoint) -> dict[str, str]:
    """What stands in the path of an endpoint, of something that is there."""
    job = client.get(f"{API}/jobs", params={"limit": 1, "where": "samples>0"}).json()[0]
    job |= client.get(
        f"{API}/jobs/{job['job_key']}/minutes", params={"limit": 1, "fields": "node"}
    ).json()[0]
    return {
        name: str(job[PLACES[entry.path.split("/")[1]]])
        for name in re.findall(r"{(\w+)}", entry.path)
    }


def test_the_document_is_valid(as_viewer: ApiClient) -> None:
    served = as_viewer().get(f"{API}/openapi.json").json()
    validate(served)
    assert served == json.loads(json.dumps(openapi_document(ENDPOINTS)))
    assert served["openapi"] == VERSION
    listed = {
        (path, method) for path, operations in served["paths"].items() for method in operations
    }
    assert listed == {(entry.path, entry.method.lower()) for entry in ENDPOINTS}
    assert set(served["components"]["schemas"]["Problem"]["properties"]["status"]["enum"]) == set(
        PROBLEMS
    )


def test_every_parameter_and_field_is_described() -> None:
    for entry in ENDPOINTS:
        nameless = [one.name for one in described_parameters(entry) if not one.sentence]
        assert not nameless, (entry.path, nameless)
        schema = entry.returns.schema()
        fields = (schema["items"] if isinstance(entry.returns, TableShape) else schema)[
            "properties"
        ]
        assert not [name for name, schema in fields.items() if not schema.get("description")], (
            entry.path
        )


def test_a_client_made_of_the_document_alone(admin: TestClient) -> None:
    """Follow every operation: each takes what the document says and returns what it says,
    columns and all.
    """
    document = admin.get(f"{API}/openapi.json").json()
    (base,) = document["servers"]
    found = admin.get(f"{base['url']}/findings", params={"limit": 1}).json()[0]
    job = admin.get(f"{base['url']}/jobs", params={"where": f"job_key={found['job_key']}"}).json()[
        0
    ]
    minute = admin.get(
        f"{base['url']}/jobs/{found['job_key']}/minutes", params={"limit": 1}
    ).json()[0]
    known = {**job, "node": minute["node"], "finding": found["code"]}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            given: dict[str, Any] = {}
            sent = [
                (one["name"], one["schema"], one["required"]) for one in operation["parameters"]
            ]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                required = content["schema"].get("required", ())
                sent += [
                    (name, each, name in required)
                    for name, each in content["schema"]["properties"].items()
                ]
            for name, each, required in sent:
                if f"{{{name}}}" not in path and required:
                    inner = each.get("items", each)
                    given[name] = (
                        known[name]
                        if name in known
                        else (*inner.get("enum", ()), *inner.get("examples", ()))[0]
                    )
            values = {
                name: known[PLACES[path.split("/")[1]]] for name in re.findall(r"{(\w+)}", path)
            }
            url = base["url"] + path.format(**values)
            kinds = operation.get("requestBody", {"content": {"": None}})["content"]
            places = {
                "": "params",
                "application/json": "json",
                "application/x-www-form-urlencoded": "data",
            }
            sending: dict[str, Any] = {places[kind]: given for kind in kinds}
            answers = operation["responses"]["200"]["content"]
            body: Any = None
            for media_type in answers:
                answer = admin.request(method, url, headers={"Accept": media_type}, **sending)
                assert answer.status_code == 200, (url, answer.text)
                assert answer.headers["content-type"].partition(";")[0] == media_type
                if media_type == "application/json":
                    body = answer.json()
            Draft202012Validator(answers["application/json"]["schema"]).validate(body)
            row = body[0] if isinstance(body, list) and body else body
            schema = answers["application/json"]["schema"]
            properties = schema.get("items", schema)["properties"]
            assert not row or set(row) | {"warnings"} == set(properties) | {"warnings"}, path
