"""Parts of lists: together they are the list, in any state of the lake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.answers import Paging, encode_cursor, page_of
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.errors import UsageError


def parts(client: TestClient, url: str) -> Iterator[list[dict[str, Any]]]:
    """The parts of a list, as its Link headers lead through it."""
    for _ in range(100):
        answer = client.get(url)
        assert answer.status_code == 200, answer.text
        yield answer.json()
        if "next" not in answer.links:
            return
        url = answer.links["next"]["url"]
    raise AssertionError("no end")


@pytest.mark.parametrize(
    "path", ["/jobs", "/findings", "/jobs?sort=user", "/jobs?sort=-energy_j&where=gpus>1"]
)
def test_parts_make_the_list(admin: TestClient, path: str) -> None:
    mark = "&" if "?" in path else "?"
    whole = admin.get(f"/api/v1{path}{mark}limit=10000")
    each = list(parts(admin, f"/api/v1{path}{mark}limit=37"))
    assert [row for part in each for row in part] == whole.json()
    assert whole.headers["x-total-count"] == str(len(whole.json()))
    assert {len(part) for part in each[:-1]} <= {37}


@pytest.mark.parametrize("what", ["minutes", "node_minutes"])
def test_parts_of_a_job_make_its_minutes(admin: TestClient, served: ServedLake, what: str) -> None:
    view = served.view(Viewer("root", Role.ADMIN))
    job = view.opened.jobs().filter(pl.col("gpus") > 2).sort("elapsed_s").get_column("job_key")[0]
    of_lake = getattr(view.opened, what)(view.opened.run_of(job))
    whole = admin.get(f"/api/v1/jobs/{job}/{what}?limit=10000")
    assert whole.headers["x-total-count"] == str(of_lake.height)
    assert [row["t"] for row in whole.json()] == [f"{t:%Y-%m-%dT%H:%M:%SZ}" for t in of_lake["t"]]
    for limit in (1000, 64, max(1, of_lake.height // 16)):
        each = list(parts(admin, f"/api/v1/jobs/{job}/{what}?limit={limit}"))
        assert [row for part in each for row in part] == whole.json()


rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ab"]), st.none() | st.integers(0, 5)),
    unique=True,
    min_size=1,
    max_size=30,
)


@given(rows, st.integers(1, 7), st.data())
def test_no_row_is_lost_or_repeated_while_others_come_and_go(
    keys: list[tuple[str, int | None]], limit: int, data: st.DataObject
) -> None:
    schema = {"node": pl.String, "mig": pl.Int16}
    frame = pl.DataFrame(keys, schema=schema, orient="row").sort("node", "mig")
    seen: list[Any] = []
    paging = Paging(limit=limit)
    while True:
        page = page_of(frame, ["node", "mig"], paging)
        seen += page.rows.rows()
        if not page.cursor:
            break
        paging = Paging(limit=limit, after=page.cursor)
        if data.draw(st.booleans()):  # the last row that was seen is gone
            frame = frame.join(page.rows.tail(1), on=frame.columns, how="anti", nulls_equal=True)
    assert len(seen) == len(set(seen))
    assert set(seen) >= set(frame.rows())


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "!",
        "é",
        encode_cursor(),
        encode_cursor("a"),
        encode_cursor("a", "b"),
        encode_cursor("a", 1 << 70),
        "e30",
    ],
)
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    frame = pl.DataFrame({"node": ["a"], "mig": [1]}, schema={"node": pl.String, "mig": pl.Int16})
    with pytest.raises(UsageError, match="invalid cursor"):
        page_of(frame, ["node", "mig"], Paging(after=cursor))
