"""The package of a site in CONTRIBUTING.md, installed beside the project: its source, check,
export, command, page and figure.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from madelake import held, job, make_lake, utc
from tachograph.annexes.serve.registry import all_pages
from tachograph.catalog import doors
from tachograph.catalog.doors import added_entries, annex_function
from tachograph.catalog.errors import ConfigError, UsageError
from tachograph.cli.registry import CommandEntry, find
from tachograph.judge import checks
from tachograph.lake.delta import Lake
from tachograph.sources.registry import settings_of

TESTS = Path(__file__).resolve().parents[1]
CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
BEGIN = utc(1)
MINUTES = 60


def written(folder: Path) -> Path:
    """The files of the recipe, in a folder."""
    section = CONTRIBUTING.read_text(encoding="utf-8").partition("## A package of a site's own\n")[
        2
    ]
    files = re.findall(
        r"^New file `([^`]+)`:\n\n```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL
    )
    for name, text in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "our-site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages in which the package of the site is installed, without network."""
    folder = tmp_path_factory.mktemp("site")
    words = [
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(folder / "packages"),
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *words, str(written(folder))], check=True
    )
    return folder / "packages"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with two jobs and no samples."""
    rows, owners = [], []
    for number, node in enumerate(("cold", "warm")):
        name, end = str(number + 1), BEGIN + timedelta(minutes=MINUTES)
        rows.append(job(name, BEGIN, end, user="ann", gpus=1, node_list=node))
        owners += held(name, node, [0], BEGIN, end)
    return make_lake(tmp_path_factory.mktemp("site-lake") / "lake", jobs=rows, allocations=owners)


# runs commands one after the other in a process that finds the package
_RUN = """
import json, os, sys
from pathlib import Path
from in_process import run_here
for words in json.load(sys.stdin):
    done = run_here(words, Path.cwd(), dict(os.environ))
    assert done.returncode == 0, (words, done.stderr)
    print(json.dumps(done.stdout))
"""


def run(site: Path, *commands: Sequence[str]) -> list[str]:
    """What commands print where the package is installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(TESTS)))}
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        env=environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_package_of_a_site_adds_a_source_a_check_an_export_and_a_command(
    site: Path, lake: Lake, tmp_path: Path
) -> None:
    file = tmp_path / "day.room"
    times = [
        (BEGIN + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%S")
        for minute in range(MINUTES)
    ]
    lines = [
        f"{time},{node},0,80,{celsius}\n"
        for time in times
        for node, celsius in (("cold", 12), ("warm", 60))
    ]
    file.write_text("time,node,gpu,percent,celsius\n" + "".join(lines), encoding="ascii")
    where, tickets = ("--lake", lake.location), tmp_path / "tickets"
    _, _, jobs_json, job_json, job_text, _, rooms, overview = run(
        site,
        ("ingest", "room", str(file), *where),
        ("analyze", *where),
        ("jobs", "--finding", "cold_room", "--json", *where),
        ("job", "1", "--json", *where),
        ("job", "1", *where),
        ("export", "tickets", "--to", str(tickets), *where),
        ("rooms",),
        ("help", "--all"),
    )
    listed = json.loads(jobs_json)
    assert [one["job_id"] for one in listed] == ["1"]
    (found,) = [one for one in json.loads(job_json)["findings"] if one["code"] == "cold_room"]
    assert (found["severity"], found["evidence"]["gpu_temp_c_max"]) == ("hint", 12.0)
    assert "No GPU was warmer than 12 C." in job_text
    assert tickets.read_text(encoding="utf-8") == f"cold: {listed[0]['job_key']}\n"
    assert rooms == "cellar\n"
    added = r"^Of installed packages:\n  rooms +list our rooms$"
    assert re.search(added, overview, re.MULTILINE)


SHOW = """
import sys
from starlette.testclient import TestClient
from served_entries import NamedService, proof
from tachograph.catalog.config import Configuration
from tachograph.lake.delta import Lake
from tachograph.annexes.serve.application import create_application
from tachograph.annexes.serve.snapshot import ServedLake
service = NamedService.of(ServedLake(Lake.open(sys.argv[1]), Configuration()))
client = TestClient(create_application(service))
for name in ("ann", "bob"):
    print(client.get("/rooms", headers=proof(name, "user")).text)
"""


@pytest.mark.slow
def test_a_package_of_a_site_adds_a_page(site: Path, lake: Lake) -> None:
    run(site, ("analyze", "--lake", lake.location))
    folders = os.pathsep.join((str(site), str(TESTS)))
    environment = {**os.environ, "PYTHONPATH": folders}
    program = [sys.executable, "-c", SHOW, lake.location]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('<a href="/rooms"') == 2
    assert "<p>2 jobs in the cellar.</p>" in done.stdout
    assert "<p>0 jobs in the cellar.</p>" in done.stdout


# GPU-hours and highest temperature of jobs; None: not recorded
PEAKS = ((1.0, 40.0), (2.0, 71.0), (4.0, None), (5.0, 55.0), (8.0, 83.0))


@pytest.fixture(scope="module")
def warm_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with a job on one GPU for each of PEAKS."""
    rows, owners, samples = [], [], []
    for number, (hours, peak) in enumerate(PEAKS, start=1):
        node, end = f"n{number}", BEGIN + timedelta(hours=hours)
        rows.append(job(str(number), BEGIN, end, user="ann", gpus=1, node_list=node))
        owners += held(str(number), node, [0], BEGIN, end)
        for minute in range(int(hours * 60)):
            temperature = None if peak is None else peak - (minute % 7)
            sample = {"t": BEGIN + timedelta(minutes=minute), "node": node, "gpu": 0}
            samples.append(sample | {"gpu_util": 0.8, "gpu_temp_c": temperature})
    folder = tmp_path_factory.mktemp("warm-lake") / "lake"
    return make_lake(folder, jobs=rows, allocations=owners, gpu_samples=samples)


def drawn_points(svg: str, name: str) -> list[tuple[float, float]]:
    """The places of the markers of a scatter plot in an image, in its units, y upwards."""
    group = re.search(rf'<g id="{name}">(.*?)</g>\n', svg, re.DOTALL)
    assert group is not None
    markers = re.findall(r'<use [^>]*\bx="([-\d.]+)" y="([-\d.]+)"', group[1])
    return [(float(x), -float(y)) for x, y in markers]


@pytest.mark.slow
def test_a_package_of_a_site_adds_a_figure(site: Path, warm_lake: Lake, tmp_path: Path) -> None:
    where, study = ("--lake", warm_lake.location), tmp_path / "study"
    named = ("--figure", "peak_temperatures", "--format", "svg")
    _, printed = run(site, ("analyze", *where), ("study", *named, "-o", str(study), *where))
    assert re.search(r"^101  peak_temperatures +4  drawn", printed, re.MULTILINE)

    stem = study / "101_peak_temperatures"
    with Path(f"{stem}.temperatures.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            (float(row["gpu_hours"]), float(row["gpu_temp_c_max"])) for row in csv.DictReader(file)
        ]
    assert rows == [peak for peak in PEAKS if peak[1] is not None]

    points = drawn_points(Path(f"{stem}.svg").read_text(encoding="utf-8"), "temperatures")
    assert len(points) == len(rows)
    for values, places in zip(zip(*rows, strict=True), zip(*points, strict=True), strict=True):
        # both axes are linear: one scale and one origin fit all points
        scale = (places[-1] - places[0]) / (values[-1] - values[0])
        assert scale > 0
        expected = [places[0] + scale * (value - values[0]) for value in values]
        assert places == pytest.approx(expected, abs=0.01)

    page = (study / "study.html").read_text(encoding="utf-8")
    assert "The highest temperature of 4 jobs was 83 C." in page
    assert "1 job without a temperature" in page


def declare(folder: Path, name: str, group: str, entry: str, module: str) -> None:
    """A package in a folder, with one entry point."""
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[tachograph.{group}]\n{entry} = {name}_site:ENTRY\n")
    if module:
        (folder / f"{name}_site.py").write_text(module)


def test_a_package_may_add_a_source_that_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = (
        "from tachograph.sources.registry import FeedSettings, SourceEntry\n"
        "ENTRY = SourceEntry('bmc', 'polled_site', 'controllers')\n"
        "class SETTINGS(FeedSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):\n"
        "    rack: str\n"
        "def connect(settings, *, configuration): ...\n"
    )
    declare(tmp_path, "polled", "sources", "bmc", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = settings_of({"source": "bmc", "rack": "r1"}, where="here")
    assert (settings.stream, msgspec.structs.asdict(settings)["rack"]) == ("bmc:bmc", "r1")
    with pytest.raises(ConfigError, match="rack"):
        settings_of({"source": "bmc"}, where="here")
    with pytest.raises(ConfigError, match="unknown source 'ipmi'"):
        settings_of({"source": "ipmi"}, where="here")


def test_an_entry_that_is_none_is_one_line_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path, "broken", "commands", "rooms", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"rooms of broken: cannot be imported: No module named 'broken_site'"
    ):
        find(["rooms"])
    (tmp_path / "broken_site.py").write_text("ENTRY = 7\n")
    with pytest.raises(
        ConfigError, match=r"broken_site:ENTRY is of type int; make it name a CommandEntry"
    ):
        added_entries("commands", CommandEntry)
    assert find(["jobs"]).name == "jobs"


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        ("pl.col('gpu_temp_c_max')", "is of type Float64, not Boolean"),
        ("'gpu_temp_c_max < 18'", "is of type str, and no expression of polars"),
        ("pl.col('user') < 18", "cannot be computed: "),
        ("threshold('cold_c') > pl.col('gpu_temp_c_max')", "cannot be computed: "),
        ("(pl.col('gpu_temp_c_max') < 18).any()", "gives one value for all rows, not one for each"),
        ("pl.col('gpu_temp_c_max') < 18", None),
        ("pl.col('of_another_package') < threshold('idle_util')", None),
    ],
)
@pytest.mark.parametrize("name", ["condition", "gpu_condition"])
def test_a_check_with_a_wrong_condition_is_refused(
    name: str, condition: str, what: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any job is judged, in one line with its package."""
    if name == "gpu_condition":
        condition = condition.replace("'user'", "'node'")
    module = (
        "import polars as pl\n"
        "from tachograph.judge.check import Check, threshold\n"
        "ENTRY = Check('cold_gpus', family='clocks', severity='hint', title='Cold', decide=print,\n"
        f"    {name}={condition})\n"
    )
    package = f"cold{len(list(tmp_path.iterdir()))}"
    declare(tmp_path, package, "checks", "cold_gpus", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, f"{package}_site", raising=False)
    checks._added.cache_clear()  # other tests of this process judge without the package
    try:
        if what is None:
            assert [check.code for check in checks._added()] == ["cold_gpus"]
            return
        with pytest.raises(ConfigError) as error:
            checks._added()
    finally:
        checks._added.cache_clear()
    assert error.value.where == f"entry point cold_gpus of {package}"
    assert error.value.what.startswith(f"{name} of check cold_gpus {what}")
    assert "for example pl.col('gpu_temp_c_max') < 18" in str(error.value)


def test_a_page_without_its_module_stops_the_server_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would break every page."""
    module = (
        "from tachograph.api.pages import PageEntry\n"
        "from tachograph.api.viewer import Role\n"
        "ENTRY = PageEntry('/rooms', 'rooms', 'Rooms', Role.USER, module='lost_site.pages.rooms')\n"
    )
    declare(tmp_path, "lost", "pages", "rooms", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    all_pages.cache_clear()  # other tests of this process serve pages without the package
    with pytest.raises(
        ConfigError, match=r"page rooms: no module 'lost_site\.pages\.rooms'; repair"
    ):
        all_pages()


@pytest.mark.parametrize("name", doors.ANNEX_FUNCTIONS)
def test_what_the_core_asks_of_annexes_is_there(name: str) -> None:
    assert callable(annex_function(name))


def test_an_annex_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"sharing": "tachograph.not_installed.job_sharing:read_sharing"}
    monkeypatch.setattr(doors, "ANNEX_FUNCTIONS", absent)
    with pytest.raises(UsageError, match=r"is not installed; pip install 'tachograph\[all\]'"):
        annex_function("sharing")


def test_without_packages_nothing_is_added() -> None:
    assert added_entries("commands", CommandEntry) == ()
    with pytest.raises(UsageError, match="unknown command 'rooms'"):
        find(["rooms"])
