"""The benchmark of `tachograph serve`, with few jobs: it runs, and no answer hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

import serve

_SLOWER = 100  # than the goals: other work of this machine takes what it takes


@pytest.mark.slow
def test_the_benchmark_runs_on_a_small_lake(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "USERS", 5)
    monkeypatch.setattr(serve, "EVERY_S", 0.5)
    (tmp_path / "demo").symlink_to(demo)
    found = serve.measure(tmp_path, 180, 3)
    assert found["lists"]["p95_ms"] <= _SLOWER * serve.LIST_MS
    assert found["deep_pages"]["p95_ms"] <= _SLOWER * serve.LIST_MS
    assert found["job_pages"]["p95_ms"] <= _SLOWER * serve.JOB_MS
    assert found["memory_after_mib"]["peak"] <= serve.MEMORY_MIB
    assert set(serve.reached(found)) == {
        "lists",
        "deep_pages",
        "job_pages",
        "start",
        "memory",
        "clicks",
    }
