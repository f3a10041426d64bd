"""`tachograph ingest PATH...`: files of any kind in one command; a wrong time zone is corrected."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from in_process import run_here
from tachograph.catalog.tables import ALLOCATIONS, JOBS
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.sources.recognition import source_of

SACCT = Path(__file__).parents[1] / "slurm" / "recorded" / "26.05.5"
PAGE = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",modelName="NVIDIA A100-SXM4-40GB",Hostname="gpu01"} 40
"""
HOSTILE = "a;$(touch owned) \x1b[2J"
HEADER = "JobID|JobIDRaw|Cluster|Partition|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES"
FIRST = datetime(2026, 4, 20, 3, 10, tzinfo=UTC)


def ingest(folder: Path, *words: str) -> CompletedProcess[str]:
    return run_here(["ingest", *words], folder, {})


def write_samples(file: Path, starts: Iterable[datetime]) -> None:
    """Samples of ten minutes from each start on, every 30 s, of one GPU of n1."""
    times = [start + timedelta(seconds=30 * tick) for start in starts for tick in range(20)]
    rows = pl.DataFrame({"t": times, "node": "n1", "gpu": 0, "gpu_util": 0.8})
    rows.write_parquet(file)


def write_jobs(file: Path, starts: Iterable[datetime], zone_name: str) -> None:
    """Records of jobs of ten minutes, their times on the clocks of a zone."""
    lines = [HEADER]
    for number, start in enumerate(starts, start=1):
        first, last = (
            f"{moment.astimezone(ZoneInfo(zone_name)):%Y-%m-%dT%H:%M:%S}"
            for moment in (start, start + timedelta(minutes=10))
        )
        lines.append(
            f"{number}|{number}|c|gpu|{first}|{first}|{last}|00:10:00|COMPLETED|1|n1|gres/gpu=1"
        )
    file.write_text("\n".join(lines) + "\n")


def accounting(lake: Path) -> Mapping[str, list[str]]:
    """Rows of jobs and allocations as they count, without the versions of the table."""
    opened = Lake.create(str(lake))
    return {
        table.name: sorted(map(str, opened.latest(table).drop("seq").rows()))
        for table in (JOBS, ALLOCATIONS)
    }


def test_a_folder_of_all_kinds_is_read_in_one_command(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "telemetry" / "pages").mkdir(parents=True)
    (data / "sacct.json").write_bytes((SACCT / "sacct.json").read_bytes())
    (data / "squeue.json").write_bytes((SACCT / "squeue.json").read_bytes())
    (data / "telemetry" / "pages" / "gpu01.prom").write_text(PAGE)
    write_samples(data / "telemetry" / "day.parquet", [FIRST])
    (data / "notes").write_text("to do: nothing\n")
    (data / f"{HOSTILE}.json").write_text('{"a": 1}')
    (data / ".hidden").write_text("x")
    done = ingest(tmp_path, "data", "--lake", "mine")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    headings = [line for line in lines if line.endswith(" file")]
    assert headings == [
        "ldms: 1 file",
        "dcgm-exporter: 1 file",
        "sacct: 1 file",
        "allocation-map: 1 file",
    ]
    assert "59 rows read; 18 jobs, 41 steps, 16 allocations committed to mine" in lines
    (unknown,) = [line for line in lines if line.startswith("not recognised")]
    assert unknown == "not recognised: 2 files: a;$(touch owned) \\x1b[2J.json, notes"
    assert not (tmp_path / "owned").exists()
    again = ingest(tmp_path, "--lake", "mine", "data")
    assert "18 jobs" not in again.stdout
    assert not (tmp_path / "tachograph-lake").exists()


def test_json_names_the_sources_and_what_was_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "page").write_text(PAGE)
    (tmp_path / "notes").write_text("to do: nothing\n")
    done = json.loads(ingest(tmp_path, "page", "notes", "--json").stdout)
    assert done["files"] == {"dcgm-exporter": 1}
    assert done["not_recognised"] == ["notes"]
    assert done["sources"]["dcgm-exporter"]["rows"]["gpu_samples"] == 1


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["./none"], 4, "no such file or folder"),
        (["nonsense"], 2, "no such file or folder, and unknown source 'nonsense'; use one of: "),
        (["notes"], 4, ""),
        (["notes", "--instead-of", "UTC"], 2, "--instead-of needs --time-zone"),
        (["notes", "--time-zone", "UTC", "--instead-of", "Mars"], 2, "unknown time zone 'Mars'"),
        (["cut.parquet"], 4, "damaged Parquet"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, words: list[str], code: int, what: str
) -> None:
    (tmp_path / "notes").write_text("to do: nothing\n")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    done = ingest(tmp_path, *words)
    assert done.returncode == code
    assert what in done.stderr


OWN = "timestamp,hostname,dev,SM [%],frame buffer [MiB]\n2026-04-20 03:10:00,n1,0,50,100\n"
QUERY = "timestamp, index, utilization.gpu [%]\n2026/04/20 03:10:00.000, 0, 50 %\n"
DMON = """\
#Date       Time        gpu    pwr  gtemp
#YYYYMMDD   HH:MM:SS    Idx      W      C
 20260420   03:10:00      0    120     40
"""


@pytest.mark.parametrize(
    ("text", "source"),
    [(OWN, None), (OWN + QUERY, None), (QUERY, "nvidia-smi"), (DMON, "nvidia-smi")],
    ids=["own", "fields below", "query", "dmon"],
)
def test_units_in_brackets_are_no_sign_of_nvidia_smi(
    tmp_path: Path, text: str, source: str | None
) -> None:
    file = tmp_path / "gpus.csv"
    file.write_text(text)
    assert source_of(file) == source
    if source is None:
        done = ingest(tmp_path, file.name)
        assert "not recognised: 1 file: gpus.csv" in done.stdout
        assert "tachograph ingest table --suggest" in done.stdout


def test_where_no_file_names_the_gpu_model_it_can_be_configured(tmp_path: Path) -> None:
    write_samples(tmp_path / "day.parquet", [FIRST])
    (tmp_path / "page").write_text(PAGE)  # names the model of its GPU
    done = ingest(tmp_path, "day.parquet", "page")
    assert "GPU model: not recorded for 1 GPU" in done.stdout
    _, _, models = done.stdout.partition("under [nodes] in tachograph.toml: ")
    assert models == 'models = { "n1" = "H100" }\n'
    (tmp_path / "tachograph.toml").write_text(f"[nodes]\n{models}")
    assert "GPU model" not in ingest(tmp_path, "day.parquet").stdout


def test_the_proposed_command_corrects_the_zone_of_a_lake(tmp_path: Path) -> None:
    """The lake is then as if it had been read in the right zone; and back, and forth again."""
    data = tmp_path / f"my {HOSTILE}"
    data.mkdir()
    minutes = (0, 71, 170, 249, 401, 473, 590, 700)  # no shift of half an hour fits several
    starts = [FIRST + timedelta(minutes=minute) for minute in minutes]
    write_samples(data / "samples.parquet", starts)
    write_jobs(data / "sacct.txt", starts, "Asia/Kolkata")
    before = ingest(tmp_path, data.name, "--lake", "mine")
    (proposal,) = [line for line in before.stdout.splitlines() if line.startswith("time zone")]
    assert proposal.startswith("time zone: 8 of 8 jobs start with GPU work if their times are of")
    assert "Asia/Kolkata, 1 if of UTC" in proposal
    ingest(tmp_path, data.name, "--lake", "right", "--time-zone", "Asia/Kolkata")
    wrong = accounting(tmp_path / "mine")
    right = accounting(tmp_path / "right")
    assert wrong != right
    command = shlex.split(proposal.partition("to correct it: ")[2])
    assert command[:2] == ["tachograph", "ingest"]
    assert not (tmp_path / "tachograph.toml").exists()
    words = [word.replace("\\x1b", "\x1b") for word in command[2:]]
    corrected = ingest(tmp_path, *words)
    assert corrected.returncode == 0, corrected.stderr
    assert "time zone" not in corrected.stdout
    assert accounting(tmp_path / "mine") == right
    for zone_name, instead, expected in (
        ("UTC", "Asia/Kolkata", wrong),
        ("Asia/Kolkata", "UTC", right),
    ):
        ingest(
            tmp_path, data.name, "--lake", "mine", "--time-zone", zone_name, "--instead-of", instead
        )
        assert accounting(tmp_path / "mine") == expected
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("source", [(), ("sacct",)], ids=["paths", "source"])
@pytest.mark.parametrize("is_configured", [True, False], ids=["configured", "option"])
def test_jobs_are_not_read_a_second_time_in_another_zone(
    tmp_path: Path, source: tuple[str, ...], is_configured: bool
) -> None:
    """Nothing is doubled, and the printed command replaces what was read before."""
    file, lake = "my jobs.txt", ("--lake", "mine")
    write_jobs(
        tmp_path / file, [FIRST + timedelta(hours=5 * job) for job in range(9)], "Asia/Tokyo"
    )
    ingest(tmp_path, *source, file, *lake)
    before = accounting(tmp_path / "mine")
    (tmp_path / "tachograph.toml").write_text('[site]\ntime_zone = "Asia/Tokyo"\n')
    zone = () if is_configured else ("--time-zone", "Asia/Tokyo")
    done = ingest(tmp_path, *source, file, *lake, *zone)
    assert done.returncode == 4
    assert accounting(tmp_path / "mine") == before
    (line,) = done.stderr.splitlines()
    assert "9 of 9 jobs are in the lake with all times 9 h later, as of the time zone UTC" in line
    _, _, command = line.partition("to replace them: ")
    assert command.startswith(
        f"tachograph ingest '{file}' --time-zone Asia/Tokyo --instead-of UTC --lake mine"
    )
    assert ingest(tmp_path, *shlex.split(command)[2:]).returncode == 0
    ingest(tmp_path, *source, file, "--lake", "right")
    assert accounting(tmp_path / "mine") == accounting(tmp_path / "right") != before
    assert ingest(tmp_path, *source, file, *lake).returncode == 0


def test_times_that_are_instants_stay(tmp_path: Path) -> None:
    """`sacct --json` has seconds since 1970: a zone changes nothing."""
    (tmp_path / "sacct.json").write_bytes((SACCT / "sacct.json").read_bytes())
    ingest(tmp_path, "sacct.json", "--lake", "mine")
    before = accounting(tmp_path / "mine")
    zones = ("--time-zone", "Asia/Tokyo", "--instead-of", "UTC")
    done = ingest(tmp_path, "sacct.json", "--lake", "mine", *zones)
    assert "removed what was read in UTC: nothing" in done.stderr
    assert accounting(tmp_path / "mine") == before


@pytest.mark.recorded
def test_recordings_of_nersc_in_one_command(recorded: Path, tmp_path: Path) -> None:
    done = ingest(tmp_path, str(recorded / "nersc_perlmutter"))
    assert "time zone: 8 of 8 jobs" in done.stdout
    assert "America/Los_Angeles, 0 if of UTC" in done.stdout
    assert "whole nodes: 5 of 5 jobs of gpu_regular" in done.stdout
    assert 'exclusive = ["gpu_regular"]' in done.stdout


@pytest.mark.recorded
def test_what_the_data_propose_is_adopted_where_it_is_asked_for(
    recorded: Path, tmp_path: Path
) -> None:
    """Jobs of whole nodes have their GPUs then; those of shared ones stay ambiguous."""
    done = ingest(tmp_path, str(recorded / "nersc_perlmutter"), "--adopt")
    text = (tmp_path / "tachograph.toml").read_text()
    assert 'time_zone = "America/Los_Angeles"' in text
    assert 'exclusive = ["gpu_regular"]' in text
    assert "America/Los_Angeles, 0 if of UTC; corrected" in done.stdout
    assert "for later commands" not in done.stdout
    run_here(["analyze"], tmp_path, {})
    summaries = read_summaries(Lake.create(str(tmp_path / "tachograph-lake")))
    jobs = summaries.filter(pl.col("start").dt.year() == 2026).to_dicts()
    assert {job["job_id"]: job["gpus"] for job in jobs if job["attribution"] == "whole_node"} == {
        "51566986": 16,
        "51569946": 16,
        "51570026": 8,
        "51613962": 8,
        "51911473": 8,
    }
    assert {job["job_id"] for job in jobs if job["attribution"] == "ambiguous"} == {
        "51567294",
        "51569945",
        "51906088",
    }
    before = text
    ingest(tmp_path, str(recorded / "nersc_perlmutter"), "--adopt")
    assert (tmp_path / "tachograph.toml").read_text() == before


def test_the_demo_read_in_one_command_is_as_with_its_configuration(
    demo: Path, tmp_path: Path
) -> None:
    done = ingest(tmp_path, str(demo / "cluster"), "--adopt", "--trusted")
    assert done.returncode == 0, done.stderr
    assert "time_zone = Europe/Berlin" in done.stderr
    assert "not recognised: 7 files: devices.csv" in done.stdout
    assert run_here(["analyze"], tmp_path, {}).returncode == 0
    columns = ("job_key", "start", "attribution", "gpus", "samples", "gpu_util_mean")
    read, configured = (
        read_summaries(Lake.open(str(lake)), columns).sort("job_key").drop("seq", strict=False)
        for lake in (tmp_path / "tachograph-lake", demo / "lake")
    )
    assert read.equals(configured)


def test_without_accounting_no_zone_is_proposed(tmp_path: Path) -> None:
    """In which zone an earlier run read that of the lake is not known."""
    starts = [FIRST + timedelta(minutes=47 * place + 19 * place**2) for place in range(8)]
    data = tmp_path / "data"
    data.mkdir()
    write_samples(data / "day.parquet", starts)
    write_jobs(tmp_path / "jobs.txt", starts, "Asia/Tokyo")
    both = ingest(tmp_path, "data", "jobs.txt", "--trusted")
    assert "tachograph ingest jobs.txt --time-zone Asia/Tokyo --instead-of UTC" in both.stdout
    assert "then, for later commands" in both.stdout
    assert "time zone:" not in ingest(tmp_path, "data").stdout


def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = ingest(tmp_path, "./empty")
    assert (done.returncode, done.stdout) == (4, "")
    assert "empty: there are no files" in done.stderr


def test_what_is_adopted_is_not_written_through_a_link(tmp_path: Path) -> None:
    starts = [FIRST + timedelta(minutes=47 * place + 19 * place**2) for place in range(8)]
    write_samples(tmp_path / "day.parquet", starts)
    write_jobs(tmp_path / "jobs.txt", starts, "Asia/Tokyo")
    (tmp_path / "tachograph.toml").symlink_to(tmp_path / "elsewhere")
    done = ingest(tmp_path, "day.parquet", "jobs.txt", "--trusted", "--adopt")
    assert "times are of Asia/Tokyo" in done.stdout
    assert "; corrected" in done.stdout
    assert not (tmp_path / "elsewhere").exists()
