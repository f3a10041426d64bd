"""What a viewer may not see is never read."""

import polars as pl
import pytest

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
