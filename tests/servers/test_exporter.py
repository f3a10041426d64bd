"""The exporter for tests serves what was set, and fails as configured."""

from __future__ import annotations

import http.client
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from servers.exporter import Exporter, exporter

UTIL = "DCGM_FI_DEV_GPU_UTIL"


def read(server: Exporter, node: str) -> dict[tuple[str, str], float]:
    """{(gpu, hpc_job): GPU_UTIL} of a node's page."""
    with urllib.request.urlopen(server.url(node), timeout=5) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    found = [sample for family in families for sample in family.samples if sample.name == UTIL]
    return {(sample.labels["gpu"], sample.labels.get("hpc_job", "")): sample.value for sample in found}


def test_values_jobs_and_nodes_are_what_was_set() -> None:
    with exporter({"n1": {0: {UTIL: 50}, 1: {UTIL: lambda t: 60}}, "n2": {0: {UTIL: 70}}}) as server:
        assert read(server, "n1") == {("0", ""): 50, ("1", ""): 60}
        server.set("n1", 0, {UTIL: 90})
        server.hold("n1", 0, "7", "8")
        assert read(server, "n1") == {("0", "7"): 90, ("0", "8"): 90, ("1", ""): 60}
        assert read(server, "n2") == {("0", ""): 70}
        assert [(entry.node, entry.status) for entry in server.served] == [("n1", 200), ("n1", 200), ("n2", 200)]


def test_faults_end_when_they_are_taken_back() -> None:
    with exporter({"n1": {0: {UTIL: 50}}}, slow_s=5) as server:
        server.fail("n1", "status")
        with pytest.raises(urllib.error.HTTPError, match="500") as raised:
            read(server, "n1")
        raised.value.close()
        server.fail("n1", "cut_off")
        with pytest.raises(http.client.IncompleteRead):
            read(server, "n1")
        server.fail("n1", None)
        assert read(server, "n1") == {("0", ""): 50}
