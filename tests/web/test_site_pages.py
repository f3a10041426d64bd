"""Pages of the whole site on the demo: their numbers, and that a user finds no name of others in
them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partialmethod
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest
from starlette.testclient import TestClient

from served_entries import ApiClient, NamedService, proof
from tachograph.annexes.lab.figures.style import PAGE_COLOURS
from tachograph.annexes.lab.figures.themed_svg import themed
from tachograph.annexes.lab.pages import study, study_figure
from tachograph.annexes.serve import snapshot
from tachograph.annexes.serve.application import create_application
from tachograph.annexes.serve.pages import account as account_page
from tachograph.annexes.serve.pages import home, node, rules, status
from tachograph.annexes.serve.snapshot import ServedLake, View
from tachograph.annexes.share.pages import sharing
from tachograph.api.open_lake import OpenLake
from tachograph.api.pages import Pending, Progress
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog import config
from tachograph.catalog.errors import LakeError, NotFoundError
from tachograph.lake.delta import Lake
from tachograph.report.pages import environment

SUPPORT = Viewer("support", Role.SUPPORT)
_LONGEST_S = 300.0


@contextmanager
def _served(demo: Path) -> Iterator[ServedLake]:
    made = ServedLake(Lake.open(str(demo / "lake")), config.load(str(demo / "tachograph.toml"), {}))
    yield made
    made.background.close()
    made.shared_objects.close()


@pytest.fixture(scope="module")
def served(demo: Path) -> Iterator[ServedLake]:
    with _served(demo) as made:
        yield made


@pytest.fixture(scope="module")
def every(served: ServedLake) -> View:
    return served.view(SUPPORT)


@pytest.fixture(scope="module")
def own(served: ServedLake, every: View) -> View:
    """What the user with most jobs sees."""
    users = (
        every.opened.jobs()
        .group_by("user")
        .agg(jobs=pl.len())
        .sort("jobs", "user", descending=True)
    )
    return served.view(Viewer(users.item(0, "user"), Role.USER))


def _content(view: View, page: ModuleType, **given: Any) -> Mapping[str, Any]:
    """The content of a page, once what it shows is made."""
    until = time.monotonic() + _LONGEST_S
    while time.monotonic() < until:
        found: Mapping[str, Any] = page.content(view, page.PARAMETERS(**given))
        if found.get("pending") is None:
            return found
    raise AssertionError("still being made")


def _others(every: View, own: View) -> list[str]:
    return [
        user
        for user in every.opened.jobs()["user"].unique().drop_nulls()
        if user != own.viewer.name
    ]


def _texts(values: object) -> str:
    """All that templates can print of values, tables included."""
    with pl.Config(tbl_rows=-1, tbl_cols=-1, fmt_str_lengths=10_000):
        return repr(values)


def test_a_node_shows_all_its_jobs_to_support_and_own_ones_to_a_user(
    every: View, own: View
) -> None:
    gpus = every.opened.gpus(every.opened.jobs())
    name = (
        gpus.group_by("node")
        .agg(pl.col("job_key").n_unique())
        .sort("job_key", "node")
        .item(-1, "node")
    )
    whole, mine = (_content(view, node, name=name)["report"] for view in (every, own))
    on_it = gpus.filter(pl.col("node") == name)
    assert set(whole.jobs["job_key"]) == set(on_it["job_key"])
    assert whole.gpus["jobs"].sum() == on_it.height == whole.weeks["jobs"].sum()
    measured = on_it.with_columns(
        h=(pl.col("last_t") - pl.col("first_t")).dt.total_microseconds() / 3.6e9
    )
    assert whole.days["hours"].sum() == pytest.approx(measured["h"].sum())
    assert set(mine.jobs["user"]) <= {own.viewer.name}
    assert (
        mine.jobs.height
        == on_it.join(own.opened.jobs(), on="job_key", how="semi")["job_key"].n_unique()
    )
    with pytest.raises(NotFoundError):
        _content(every, node, name="nid999999")

    found = _content(every, node, name="nid000029")
    assert found["report"].gpus["xid_events"].null_count() == found["report"].gpus.height
    assert "not measured" in found["headline"]


@pytest.mark.slow
def test_the_study_is_made_once_and_its_pictures_have_addresses(every: View) -> None:
    found = _content(every, study)
    assert found["report"].dataset.jobs > 100
    drawn = next(figure for figure in found["report"].figures if figure.drawn)
    address = str(found["picture"](drawn))
    assert f"study/{drawn.entry.name}." in address
    suffix = address.partition(f"study/{drawn.entry.name}.")[2].partition("?")[0]
    picture = study_figure.content(
        every, study_figure.PARAMETERS(figure=drawn.entry.name, suffix=suffix)
    )
    assert picture.media_type.startswith("image/")
    with pytest.raises(NotFoundError):
        study_figure.content(
            every, study_figure.PARAMETERS(figure="../../etc/passwd", suffix="svg")
        )

    found = _content(every, study, user=("absent",))
    assert found["study"] is None
    assert found["problem"]


def test_sharing_of_a_user_is_of_own_groups(every: View, own: View) -> None:
    found = _content(own, sharing, runs=1)
    assert not [user for user in _others(every, own) if f"{user}/" in _texts(found["tables"])]
    refused = _content(own, sharing, runs=1, one="user/absent", other="user/absent")
    assert refused["problem"]
    assert (
        _content(every, sharing, one="user001/finetune")["problem"]
        == "Name both job groups of the pair."
    )


def test_sentences_show_commands_as_code(every: View) -> None:
    found = _content(every, sharing, runs=1)
    notes = [sentence for sentence, _ in found["notes"]]
    assert any("`ncu --set full -o report PROGRAM`" in note for note in notes)
    macros = environment("tachograph.annexes.serve").get_template("choice.html.j2").module
    page = str(macros.sentences([*found["notes"], ("<b> `a < b`", False)]))  # type: ignore[attr-defined]
    assert "`" not in page
    assert "<code>ncu --set full -o report PROGRAM</code>" in page
    assert "<p>&lt;b&gt; <code>a &lt; b</code></p>" in page


def test_status_has_tables_and_gaps(every: View) -> None:
    found = _content(every, status)
    assert {"gpu_samples", "jobs", "job_summaries"} <= {table.table for table in found["tables"]}
    assert found["nodes"].height == 20 < found["all_nodes"]
    assert _content(every, status, nodes=True)["nodes"].height == found["all_nodes"]


def test_rules_count_visible_jobs(every: View, own: View) -> None:
    whole, mine = (_content(view, rules)["numbers"] for view in (every, own))
    code = "hot_gpu"
    for view, numbers in ((every, whole), (own, mine)):
        assert sum(numbers.get((code, verdict), 0) for verdict in ("yes", "no", "unknown")) == len(
            view.jobs
        )


@pytest.mark.parametrize("path", ["/", "/user/user000", "/waste?by=user&jobs=all"])
def test_sums_of_many_jobs_are_made_beside_and_are_the_same(
    as_viewer: ApiClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    client = as_viewer("support", "support")
    client.headers["accept"] = "text/html"
    at_once = client.get(path)
    assert at_once.status_code == 200
    may_end = threading.Event()

    monkeypatch.setattr(snapshot, "MANY_JOBS", 0)
    for name in ("usage", "waste"):
        monkeypatch.setattr(
            OpenLake, name, partialmethod(_delayed, getattr(OpenLake, name), may_end)
        )
    waiting = client.get(path)
    assert "being added up" in waiting.text
    assert '<noscript><meta http-equiv="refresh" content="2">' in waiting.text
    may_end.set()
    until = time.monotonic() + _LONGEST_S
    while "being added up" in (found := client.get(path)).text and time.monotonic() < until:
        time.sleep(0.05)
    assert found.text == at_once.text


def test_the_first_page_waits_for_installed_hours_too(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    delayed = partialmethod(_delayed, OpenLake.capacity, may_end)
    monkeypatch.setattr(OpenLake, "capacity", delayed)
    monkeypatch.setattr(snapshot, "MANY_JOBS", 0)
    until = time.monotonic() + _LONGEST_S
    with _served(demo) as served:
        client = TestClient(create_application(NamedService.of(served)))
        client.headers.update({**proof("support", "support"), "accept": "text/html"})
        while "jobs are being" in (found := client.get("/").text) and time.monotonic() < until:
            pass  # each answer waits a moment for the sums itself
        may_end.set()
        assert "They are being added up." in found
        assert '<noscript><meta http-equiv="refresh" content="2">' in found
        assert '<h2 id="weeks">' in found
        assert "jobs held 63" not in found
        while "being added up" in (found := client.get("/").text) and time.monotonic() < until:
            pass  # each answer waits a moment for the sums itself
        assert "jobs held 63" in found


def test_the_first_page_is_there_without_installed_hours(
    as_viewer: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LakeError("took too long")

    monkeypatch.setattr(OpenLake, "capacity", fail)
    monkeypatch.setattr(home, "CAPACITY_OF", timedelta(days=6))  # nobody has asked for that
    client = as_viewer("support", "support")
    client.headers["accept"] = "text/html"
    page = client.get("/")
    assert page.status_code == 200
    assert '<h2 id="weeks">' in page.text
    assert "All installed GPU-hours" not in page.text


def _delayed(
    opened: OpenLake, make: Callable[..., Any], may_end: threading.Event, *given: Any, **which: Any
) -> Any:
    assert may_end.wait(_LONGEST_S)
    return make(opened, *given, **which)


def test_sums_are_made_once_for_those_who_see_the_same_jobs(
    every: View, own: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(opened: OpenLake, make: Callable[..., Any], **which: Any) -> Any:
        made.append(str(which))
        return make(opened, **which)

    monkeypatch.setattr(OpenLake, "usage", partialmethod(counted, OpenLake.usage))
    account = own.opened.jobs().item(0, "account")
    begin = {"name": account, "since": "2025-03-04T01:00"}
    sums = [_content(view, account_page, **begin) for view in (every, own, every, own)]
    assert len(made) == 2
    assert sums[0]["usage"] is sums[2]["usage"]
    assert [values["own_only"] for values in sums] == [False, True] * 2
    assert sums[1]["usage"].jobs == own.opened.jobs(account=account, since=begin["since"]).height
    assert sums[1]["usage"].jobs < sums[0]["usage"].jobs
    _content(every, account_page, name=account, since="2025-03-04T02:00")
    assert len(made) == 3


def test_served_figures_have_the_colours_of_a_light_or_dark_page() -> None:
    drawn = "".join(f'<path style="fill: {colour}"/>' for colour in PAGE_COLOURS)
    shown = themed(f'<svg xmlns="http://www.w3.org/2000/svg">{drawn}</svg>')
    style, *paths = ElementTree.fromstring(shown)
    light, _, dark = str(style.text).partition("@media (prefers-color-scheme: dark)")
    for path, (colour, variable) in zip(paths, PAGE_COLOURS.items(), strict=True):
        name = variable.removeprefix("var(").removesuffix(")")
        assert path.get("style") == f"fill: var({name}, {colour})"
        assert f"{name}: #" in light + dark.partition("@media")[0]
        # Light, dark, and most of them also as a person chose dark on a light system.
        assert str(style.text).count(f"{name}: #") in (2, 3)


def test_of_many_jobs_a_report_of_each_is_of_the_newest_days(
    every: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = sharing.PARAMETERS()
    assert every.of_recent(usual) is usual
    monkeypatch.setattr(snapshot, "MANY_JOBS", 10)
    monkeypatch.setattr(snapshot, "RECENT", timedelta(hours=6))
    newest = every.jobs.newest
    assert newest is not None
    assert every.of_recent(usual).since == f"{newest - timedelta(hours=6):%Y-%m-%d}"
    chosen = sharing.PARAMETERS(since="2025-03-03")
    assert every.of_recent(chosen) is chosen
    few = sharing.PARAMETERS(user=("user000",), finding=("job_hang",))
    assert every.of_recent(few) is few


def _number_of_jobs(view: View, _: Progress) -> int:
    return len(view.jobs)


def test_a_version_of_another_viewer_is_not_shown(served: ServedLake) -> None:
    """A user may be called as the scope of support is."""
    views = [served.view(Viewer(name, Role.USER)) for name in ("all", "none", "sums")]

    made = [view.made(_number_of_jobs) for view in (served.view(SUPPORT), *views)]
    assert not any(isinstance(one, Pending) for one in made)
    assert made[0] != 0
    assert made[1:] == [0, 0, 0]
