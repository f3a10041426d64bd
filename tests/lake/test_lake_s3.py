"""The lake in a bucket: the same answers as in a folder, every command, two writers at once, and
what goes wrong.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from lake_jobs import accounting, analyzed, compacted, computed, recording
from lake_rows import NOW, WAIT, at_once, lying, rows, samples, started

from in_process import run_here
from servers.process import free_port
from servers.s3 import S3, refusing_server, s3_server
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import GPU_SAMPLES, JOBS, REJECTS, TABLES
from tachograph.lake import delta as delta_module
from tachograph.lake.delta import Lake
from tachograph.lake.describe import describe_nodes, describe_tables
from tachograph.lake.ingest import ingest
from tachograph.lake.store import ObjectStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def told(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of somebody who uses the server."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


def objects(s3: S3, prefix: str) -> dict[str, int]:
    """{name: bytes} of the Parquet files under a prefix, as the server itself says."""
    query = urllib.parse.urlencode({"list-type": 2, "prefix": prefix})
    with urllib.request.urlopen(f"{s3.endpoint}/{s3.bucket}?{query}", timeout=10) as answer:
        said = answer.read().decode()
    found = {}
    for entry in said.split("<Contents>")[1:]:
        name = entry.split("<Key>")[1].split("</Key>")[0]
        if name.endswith(".parquet"):
            found[urllib.parse.unquote(name)] = int(entry.split("<Size>")[1].split("</Size>")[0])
    return found


def test_a_bucket_gives_the_answers_of_a_folder(s3: S3, tmp_path: Path) -> None:
    chunks = [accounting(1), recording(1), recording(1, power_w=300.0, start_s=300, end_s=900)]
    lakes = [Lake.create(str(tmp_path / "lake")), Lake.create(s3.lake("same"))]
    for lake in lakes:
        for step in (lambda lake: ingest(lake, chunks, now=NOW), analyzed, compacted):
            step(lake)
    here, there = lakes
    assert computed(there) == computed(here)
    assert [rows(there, table) for table in TABLES.values() if table is not REJECTS] == [
        rows(here, table) for table in TABLES.values() if table is not REJECTS
    ]
    assert rows(there, REJECTS)[-1][1:4] == ("compact", "2026-03-02", "gpu_samples")
    assert describe_nodes(there).equals(describe_nodes(here))
    assert describe_tables(there, TABLES.values()) == describe_tables(here, TABLES.values())
    assert ingest(there, chunks, now=NOW).chunks_known == len(chunks)


def test_what_was_written_in_vain_is_taken_away(s3: S3) -> None:
    lake = Lake.create(s3.lake("vain"))
    lake.append(GPU_SAMPLES, samples(seconds=[0]), app_id="a")
    before = lake.files(GPU_SAMPLES)
    lake.append(GPU_SAMPLES, samples(seconds=[10]), app_id="b")
    assert lake.replace(
        GPU_SAMPLES, before, [(before[0].day, samples(seconds=[0]).with_columns(seq=pl.lit(1)))]
    )
    there = objects(s3, "vain/")
    row = samples(seconds=[20]).with_columns(seq=pl.lit(1))
    assert not lake.replace(GPU_SAMPLES, before, [(before[0].day, row)])  # it is not there any more
    assert objects(s3, "vain/") == there


def test_a_log_is_read_once_for_each_commit(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, other = Lake.create(s3.lake("logs")), Lake(s3.lake("logs"))
    other.append(GPU_SAMPLES, samples(seconds=[0]), app_id="a")
    reads: list[str] = []

    class CountedTable(DeltaTable):
        def __init__(self, location: str, **options: Any) -> None:
            reads.append(location)
            super().__init__(location, **options)

    monkeypatch.setattr(delta_module, "DeltaTable", CountedTable)
    assert len(rows(lake)) == len(rows(lake)) == 1
    assert (lake.version(JOBS), len(reads)) == (-1, 1)
    other.append(GPU_SAMPLES, samples(seconds=[10]), app_id="b")
    reads.clear()
    assert len(rows(lake)) == len(rows(lake)) == 2
    assert len(reads) == 1


WRITE = f"""
import sys
import lake_rows
from tachograph.lake.delta import Lake
from tachograph.catalog.tables import GPU_SAMPLES
lake = Lake.create(sys.argv[1])
own = sys.argv[2]
{WAIT}
landed = 0
for place in range(int(sys.argv[3])):
    second = 10 * place + 5 * (own == "b")
    landed += not lake.append(GPU_SAMPLES, lake_rows.samples(own, seconds=[second]), app_id=f"{{own}}-{{place}}").known
    landed += not lake.append(GPU_SAMPLES, lake_rows.samples("both", seconds=[place]), app_id=f"both-{{place}}").known
print(landed)
"""


def test_two_writers_lose_nothing_and_repeat_nothing(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an environment must not be able to switch off.
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    many, where = 5, s3.lake("race")
    processes = [started(WRITE, where, own, str(many)) for own in ("a", "b")]
    landed = sum(int(out.splitlines()[-1]) for out in at_once(processes))
    lake = Lake.open(where)
    assert landed == 3 * many
    assert lake.version(GPU_SAMPLES) == 3 * many
    assert lying(lake) == len(rows(lake)) == 3 * many
    stamped = lake.scan(GPU_SAMPLES).collect().get_column("seq").to_list()
    assert sorted(stamped) == list(range(1, 3 * many + 1))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return run_here(arguments, Path.cwd(), os.environ.copy())


SAMPLES = "timestamp,hostname,gpu_id,nersc_ldms_dcgm_gpu_utilization\n" + "".join(
    f"{1772366400 + 10 * place},n1,0,50\n" for place in range(30)
)
ACCOUNTING = (
    "JobID|JobIDRaw|Cluster|Partition|User|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES|JobName\n"
    "1|1|c|gpu|ada|2026-03-01T12:00:00|2026-03-01T12:00:00|2026-03-01T12:05:00|00:05:00|COMPLETED|1|n1|gres/gpu=1|x\n"
)


def test_every_command_works_in_a_bucket(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("samples.csv").write_text(SAMPLES)
    Path("jobs.txt").write_text(ACCOUNTING)
    lake = s3.lake("commands")
    # The others find it in tachograph.toml.
    assert command("init", "--lake", f"{lake}/").returncode == 0
    for arguments, said in (
        (("ingest", "ldms", "samples.csv"), f"30 gpu_samples committed to {lake}"),
        (("ingest", "sacct", "jobs.txt"), "1 job, 1 allocation committed to"),
        (("ingest", "ldms", "samples.csv"), "1 of 1 chunk was already in the lake"),
        (("analyze",), "1 job summarized"),
        (("lake",), "gpu_samples"),
        (("jobs",), "ada"),
        (("job", "1"), "Job 1"),
        (("lake", "compact", "--vacuum-hours", "0"), "nothing to compact"),
    ):
        done = command(*arguments)
        assert (done.returncode, done.stderr.count("tachograph: ")) == (0, 0), done.stderr
        assert said in done.stdout, done.stdout


def logged_bytes(lake: Lake) -> dict[str, int]:
    """{name: bytes} of the files of samples, as the log of the lake says."""
    return {f"vacuum/gpu_samples/{file.path}": file.size for file in lake.files(GPU_SAMPLES)}


def test_vacuum_takes_away_what_was_replaced(s3: S3) -> None:
    lake = Lake.create(s3.lake("vacuum"))
    for place in range(4):
        lake.append(GPU_SAMPLES, samples(seconds=[place]), app_id=f"{place}")
    before = rows(lake)
    assert logged_bytes(lake) == objects(s3, "vacuum/")
    assert command("lake", "compact", "--lake", lake.location).returncode == 0
    assert len(objects(s3, "vacuum/gpu_samples/day")) == 5
    vacuum = command("lake", "compact", "--lake", lake.location, "--vacuum-hours", "0")
    assert vacuum.returncode == 0
    assert len(objects(s3, "vacuum/gpu_samples/day")) == 1
    assert logged_bytes(lake) == objects(s3, "vacuum/")
    assert rows(lake) == before


def one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Assert that it is a lake's error in one line that names the parts."""
    assert done.returncode == 5, done
    [line] = done.stderr.splitlines()
    for part in ("tachograph: s3://", *parts, "; "):
        assert part in line
    assert len(line) < 200
    assert done.stdout == ""


def test_a_bucket_without_a_lake_is_named(s3: S3) -> None:
    one_line(
        command("jobs", "--lake", s3.lake("nowhere")),
        f"{s3.lake('nowhere')}: there is no lake",
        "--lake",
    )


@pytest.mark.parametrize("opened", [Lake.open, Lake.create], ids=["read", "write"])
def test_what_is_wrong_with_a_store_is_told(
    opened: Callable[[str], Lake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        LakeError, match=r"^s3://no-such-bucket/lake: no such bucket; create it, or name"
    ):
        opened("s3://no-such-bucket/lake")
    for code, said in (
        ("AccessDenied", "not permitted by the object store; request"),
        (
            "InvalidAccessKeyId",
            "the object store does not know the access key; set AWS_ACCESS_KEY_ID and",
        ),
        (
            "SignatureDoesNotMatch",
            "the secret access key is wrong; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        ("ExpiredToken", "the credentials have expired; get"),
    ):
        with refusing_server(tmp_path, code) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
            with pytest.raises(LakeError, match=f"^s3://telemetry/lake: {said}"):
                opened(server.lake())


def test_a_store_that_is_down_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    begin = time.monotonic()
    one_line(
        command("lake", "--lake", "s3://telemetry/lake"),
        "the object store does not respond",
        "AWS_ENDPOINT_URL",
    )
    assert time.monotonic() - begin < 60


def test_http_must_be_allowed(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    one_line(command("lake", "--lake", s3.lake()), "AWS_ALLOW_HTTP=true")


def test_half_of_the_credentials_is_none(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    one_line(command("lake", "--lake", s3.lake()), "requires credentials", "AWS_ACCESS_KEY_ID")


def test_an_object_that_is_gone_is_named(s3: S3) -> None:
    lake = Lake.create(s3.lake("gone"))
    lake.append(JOBS, JOBS.empty().drop("seq"), app_id="empty")
    lake.append(GPU_SAMPLES, samples(seconds=[0]), app_id="a")
    [file] = lake.files(GPU_SAMPLES)
    ObjectStore().delete(lake.uri(GPU_SAMPLES), file.path)
    with pytest.raises(
        LakeError, match="a file of the lake is missing from the object store; restore it"
    ):
        describe_nodes(lake)


def test_an_address_of_another_kind_is_no_lake() -> None:
    with pytest.raises(
        LakeError,
        match=r"http://host/lake: http:// holds no lake; name a folder, or s3://BUCKET/PATH",
    ):
        Lake.open("http://host/lake")


def test_a_folder_may_be_written_as_an_address(tmp_path: Path) -> None:
    lake = Lake.create(f"file://{tmp_path}/lake/")
    lake.append(GPU_SAMPLES, samples(seconds=[0]), app_id="a")
    assert lake.location == f"{tmp_path}/lake"
    assert rows(Lake.open(str(tmp_path / "lake"))) == rows(lake)
