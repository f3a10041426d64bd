"""What a viewer may not see is never read."""

from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from madelake import held, job, make_lake, summarized, utc
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import GPU_SAMPLES, JOBS
from tachograph.web.snapshot import ServedLake
from tachograph.web.viewer import NOBODY, Role, Viewer


@pytest.mark.parametrize(
    ("viewer", "users"),
    [
        (NOBODY, []),
        (Viewer("ann", Role.USER), ["ann"]),
        (Viewer("ann", Role.USER, frozenset({"chem"})), ["ann"]),
        (Viewer("eve", Role.MANAGER, frozenset({"chem"})), ["ann", "bob"]),
        (Viewer("eve", Role.SUPPORT), ["ann", "bob", None]),
        (Viewer("", Role.USER), []),
    ],
)
def test_roles_see_their_jobs(viewer: Viewer, users: list[str | None]) -> None:
    jobs = pl.DataFrame({"user": ["ann", "bob", None], "account": ["chem", "chem", None]})
    assert jobs.filter(viewer.visible())["user"].to_list() == users


def test_two_viewers_with_one_scope_see_the_same() -> None:
    viewers = [
        NOBODY, Viewer("all", Role.USER), Viewer("sums", Role.USER), Viewer("of", Role.USER), Viewer("ann", Role.USER),
        Viewer("ann", Role.MANAGER, frozenset({"chem"})), Viewer("eve", Role.SUPPORT),
    ]  # fmt: skip
    assert len({viewer.scope for viewer in viewers}) == len(viewers)


def test_rows_of_an_id_that_was_given_again_stay_with_their_user(tmp_path: Path) -> None:
    before, after = utc(1), utc(20)
    lake = make_lake(
        tmp_path,
        jobs=[
            job("7", before, before + timedelta(hours=1), user="bob", gpus=1),
            job("7", after, after + timedelta(hours=1), user="ann", gpus=1),
        ],
        allocations=held("7", "n1", [0], before, before + timedelta(hours=1))
        + held("7", "n1", [0], after, after + timedelta(hours=1)),
    )
    summarized(lake)
    view = ServedLake(lake, Configuration()).view(Viewer("ann", Role.USER))
    assert view.opened.jobs().get_column("user").to_list() == ["ann"]
    assert view.opened.lake.latest(JOBS).get_column("user").to_list() == ["ann"]
    with pytest.raises(NotFoundError):
        view.opened.lake.latest(GPU_SAMPLES)
