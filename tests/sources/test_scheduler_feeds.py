"""PBS, Flux and LSF polled: their commands are run and read like saved files, and what was read
before is no news.
"""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_other_schedulers import BJOBS, FLUX, QSTAT

from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import ALLOCATIONS, JOBS
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.sources.registry import PollOutcome, SourceFeed, load_feed, settings_of
from tachograph.sources.schedulers.flux import read_flux
from tachograph.sources.schedulers.lsf import FIELDS, read_lsf
from tachograph.sources.schedulers.pbs import read_pbs
from tachograph.sources.slurm.records import SlurmCluster

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SITE = Configuration(site=SiteOptions(time_zone="Asia/Kolkata", cluster="hpc"))
POLLED = {
    "pbs": ("qstat", QSTAT, read_pbs, ["-x", "-f", "-F", "json"]),
    "flux": ("flux", FLUX, read_flux, ["jobs", "-A", "-a", "--json"]),
    "lsf": ("bjobs", BJOBS, read_lsf, ["-a", "-u", "all", "-json"]),
}


def install(program: Path, body: str) -> None:
    """A program that notes its arguments, a line each, and the format for bjobs."""
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" "$LSB_BJOBS_FORMAT" > {shlex.quote(str(program))}.words\n{body}\n'
    )
    program.chmod(0o755)


def feed_of(**entry: Any) -> SourceFeed:
    settings = settings_of(entry, where="tachograph.toml")
    return load_feed(settings.source).connect(settings, configuration=SITE)


@pytest.mark.parametrize("source", POLLED)
def test_an_answer_is_read_like_a_file_and_once(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, document, reader, words = POLLED[source]
    program = tmp_path / name
    install(program, f"cat <<'END'\n{json.dumps(document)}\nEND")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    lake, feed = Lake.create(str(tmp_path / "lake")), feed_of(source=source)
    poll = partial(feed.poll, partial(watermark, lake))
    first = ingest(lake, poll(now=NOW), now=NOW)
    assert Path(f"{program}.words").read_text().splitlines() == [*words, FIELDS]
    expected = reader(json.dumps(document).encode(), "saved", SlurmCluster("hpc", "Asia/Kolkata"))
    expected.add_usage()
    columns = ("job_id", "state", "gpus", "start", "end", "user", "cpu_time_s")
    polled = lake.latest(JOBS).sort("job_id").select(columns).rows()
    assert polled == sorted(tuple(row[name] for name in columns) for row in expected.jobs)
    held = lake.latest(ALLOCATIONS).select("job_id", "node", "gpu").rows()
    assert set(held) == {(row["job_id"], row["node"], row["gpu"]) for row in expected.allocations}
    assert first.rejected == len(expected.rejected)
    assert feed.outcome == PollOutcome()
    later = NOW + timedelta(minutes=5)
    second = ingest(lake, poll(now=later), now=later)
    assert (sum(second.rows.values()), second.rejected) == (0, 0)
    assert watermark(lake, source + f":{source}") == later


def test_a_command_of_the_site_takes_the_place_of_the_usual_one(tmp_path: Path) -> None:
    program = tmp_path / "my qstat"
    install(program, f"cat <<'END'\n{json.dumps(QSTAT)}\nEND")
    feed = feed_of(source="pbs", name="east", command=[str(program)])
    (chunk,) = feed.poll(lambda stream: None, now=NOW)
    assert (chunk.id, chunk.source, chunk.watermark) == ("pbs:east", "pbs", NOW)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'qstat: cannot connect to server' >&2; exit 1", "code 1: qstat: cannot connect"),
        ("echo '{\"Jobs\": {}}'", "not output of PBS"),
        ('printf \'{"pbs_version": "1", "Jobs": {\'', "qstat"),
    ],
)
def test_a_failure_names_the_command(body: str, said: str, tmp_path: Path) -> None:
    install(tmp_path / "qstat", body)
    feed = feed_of(source="pbs", command=[str(tmp_path / "qstat")])
    with pytest.raises(InputError, match=said):
        list(feed.poll(lambda stream: None, now=NOW))
