"""Comments as their readers take them: the fields that jobstats reads, and two real programs.

The contract is written from what jobstats' `jobstats.py` and `output_formatters.py` read
(PrincetonUniversity/jobstats, 2026-06).
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from madelake import fill, held, job, summarized, utc
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.report.job_comment import comment_json, comment_text

NOW = datetime(2027, 1, 1, tzinfo=UTC)
GIB = 2**30


def comments_of(lake: Lake) -> dict[str, tuple[dict[str, Any], str]]:
    """{job id: row of job_summaries, comment} of the jobs that have ended."""
    configuration = Configuration()
    return {
        row["job_id"]: (
            row,
            comment_text(
                comment_json(read_job(lake, row["job_key"], now=NOW, configuration=configuration))
            ),
        )
        for row in read_summaries(lake).to_dicts()
        if row["end"] is not None
    }


def contents(comment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(comment[4:])))
    return found


def assert_accepted(summary: dict[str, Any]) -> None:
    """Fail where jobstats, Job Defense Shield or reportseff would end with an error."""
    assert type(summary["gpus"]) is int
    assert summary["nodes"]
    for node in summary["nodes"].values():
        # jobstats formats these of every node, and divides by CPUs and memory.
        assert type(node["cpus"]) is int
        assert node["cpus"] > 0
        assert type(node["total_memory"]) is type(node["used_memory"]) is int
        assert node["total_memory"] > 0
        # reportseff reads a node's CPU time where the run time is known.
        if summary.get("total_time", 0):
            assert node["total_time"] >= 0
        names = [set(values) for key, values in node.items() if key.startswith("gpu_")]
        assert all(keys == names[0] for keys in names)
        memory = {"gpu_total_memory", "gpu_used_memory"} & set(node)
        assert len(memory) in (0, 2)
        assert not memory or "gpu_utilization" in node
        for percent in node.get("gpu_utilization", {}).values():
            assert 0 <= percent <= 100
        for name, size in node.get("gpu_total_memory", {}).items():
            assert size > 0
            assert 0 <= node["gpu_used_memory"][name] <= size


def test_every_comment_of_the_demo_has_what_jobstats_reads(demo: Path) -> None:
    kinds: Counter[str] = Counter()
    for row, comment in comments_of(Lake.open(str(demo / "lake"))).values():
        if len(comment) <= 10:  # jobstats takes no shorter one for data
            kinds[comment] += 1
            empty = row["attribution"] == "ambiguous" or row["elapsed_s"] < 60
            assert empty, row["job_id"]
            continue
        summary = contents(comment)
        assert_accepted(summary)
        nodes = summary["nodes"].values()
        kinds["several nodes" if len(nodes) > 1 else "one node"] += 1
        assert len(nodes) == row["nodes"]
        assert sum(node["cpus"] for node in nodes) == row["cpus"]
        used_s = sum(node["total_time"] for node in nodes)
        assert used_s == pytest.approx(row["cpu_time_s"], abs=0.1 * len(nodes))
        requested = sum(node["total_memory"] for node in nodes)
        assert requested == pytest.approx(row["mem_requested_mib"] * 2**20, abs=len(nodes))
    assert kinds["several nodes"] == 25
    assert kinds["JS1:None"] > 0 < kinds["JS1:Short"]


_MODEL = {"model": "NVIDIA A100-SXM4-80GB", "hbm_mib": 81920.0}
_HOST = {"cpus": 32, "cpu_time_s": 14400.0, "mem_requested_mib": 65536.0}
# {job: nodes it ran on}; of "mig" and "no-cpu" see below; "short" ran 30 s
_JOBS = {"1": ["n1"], "2": ["n1", "n2"], "3": ["m1"], "4": ["n1"], "5": ["n2"]}
_HOURS = {"1": 0, "2": 2, "3": 0, "4": 4, "5": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], str]]:
    """Comments of jobs on one node, on two, on a MIG slice, without CPU time, and of 30 s."""
    lake = Lake.create(str(tmp_path_factory.mktemp("consumers") / "lake"))
    devices = [
        {"t": utc(1), "node": node, "gpu": gpu, **_MODEL} for node in ("n1", "n2") for gpu in (0, 1)
    ]
    devices.append({"t": utc(1), "node": "m1", "gpu": 0, "mig": 7, "model": _MODEL["model"]})
    devices[-1]["hbm_mib"] = 10240.0
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("jobs", "steps", "allocations", "gpu_samples")
    }
    for name, nodes in _JOBS.items():
        start = utc(1, _HOURS[name])
        end = start + timedelta(seconds=30 if name == "5" else 3600)
        mig = 7 if name == "3" else None
        gpus = (0,) if mig else (0, 1)
        host = {**_HOST, "cpu_time_s": None} if name == "4" else _HOST
        facts = {"cluster": "c", "user": f"user{name}", "partition": "gpu", "name": "train"}
        facts["node_list"] = ",".join(nodes)
        tables["jobs"].append(
            job(name, start, end, **facts, **host, nodes=len(nodes), gpus=len(gpus) * len(nodes))
        )
        tables["steps"].append(
            {"cluster": "c", "job_id": name, "step": "0", "start": start, "end": end}
            | {"nodes": len(nodes), "tasks": len(nodes), "max_rss_mib": 16384.0}
        )
        for node in nodes:
            tables["allocations"] += held(name, node, gpus, start, end, mig=mig, cluster="c")
            for second in range(0, int((end - start).total_seconds()), 30):
                for gpu in gpus:
                    sample = {"t": start + timedelta(seconds=second), "node": node, "gpu": gpu}
                    busy = "gr_engine_active" if mig else "gpu_util"
                    sample |= {"mig": mig, busy: 0.5 * gpu + 0.25, "hbm_used_mib": 5120.0}
                    tables["gpu_samples"].append(sample)
    fill(lake, {"devices": devices}, chunk="devices")
    fill(lake, tables)
    summarized(lake)
    return comments_of(lake)


def test_what_each_case_says(made: dict[str, tuple[dict[str, Any], str]]) -> None:
    assert made["5"][1] == "JS1:Short"
    of = {name: contents(comment) for name, (_, comment) in made.items() if name != "5"}
    for summary in of.values():
        assert_accepted(summary)
    assert of["1"]["nodes"] == {
        "n1": {
            "cpus": 32,
            "total_time": 14400.0,
            "total_memory": 64 * GIB,
            "used_memory": 16 * GIB,
            "gpu_utilization": {"0": 25.0, "1": 75.0},
            "gpu_total_memory": {"0": 80 * GIB, "1": 80 * GIB},
            "gpu_used_memory": {"0": 5 * GIB, "1": 5 * GIB},
        }
    }
    assert "host_values" not in of["1"]["tachograph"]
    assert of["2"]["tachograph"]["host_values"] == "split evenly"
    halves = [
        (node["cpus"], node["total_time"], node["total_memory"] // GIB, node["used_memory"] // GIB)
        for node in of["2"]["nodes"].values()
    ]
    assert halves == [(16, 7200.0, 32, 16)] * 2
    assert of["3"]["nodes"]["m1"]["gpu_utilization"] == {"0:7": 25.0}  # of the graphics engine
    assert of["3"]["nodes"]["m1"]["gpu_total_memory"] == {"0:7": 10 * GIB}
    assert "total_time" not in of["4"]
    assert "total_time" not in of["4"]["nodes"]["n1"]


_SACCT = """#!{python} -S
import json, sys
rows = json.load(open({rows!r}))
words = sys.argv[1:]
if "--helpformat" in words:
    sys.exit(print(*rows[0]))
short = {{"-o": "--format", "-j": "--jobs"}}
options = dict(word.split("=", 1) for word in words if "=" in word)
options |= {{short[word]: words[at + 1] for at, word in enumerate(words) if word in short}}
fields = {{name.lower(): name for name in rows[0]}}
between = options.get("--delimiter", "|")
for row in rows:
    if row["JobID"] in options.get("--jobs", row["JobID"]).split(","):
        line = between.join(row[fields[name.lower()]] for name in options["--format"].split(","))
        print(line + (between if "--parsable" in words else ""))
"""


@pytest.fixture
def site(made: dict[str, tuple[dict[str, Any], str]], tmp_path: Path) -> Path:
    """A folder with programs called sacct and scontrol, which know these jobs."""
    rows = []
    for row, comment in made.values():
        seconds = int(row["elapsed_s"])
        rows.append(
            {
                "JobID": row["job_id"], "JobIDRaw": row["job_id"], "User": row["user"],
                "Cluster": "c", "Account": "a", "Partition": "gpu", "QOS": "normal",
                "CPUTimeRAW": str(32 * seconds), "ElapsedRaw": str(seconds),
                "Elapsed": f"{timedelta(seconds=seconds)}".zfill(8), "Timelimit": "02:00:00",
                "TimelimitRaw": "120", "NNodes": str(row["nodes"]), "NCPUS": "32",
                "AllocCPUS": "32", "TotalCPU": "00:00:00", "NTasks": "1", "MaxRSS": "0",
                "TRESUsageOutAve": "", "ReqMem": "64G", "State": "COMPLETED", "JobName": "train",
                "AllocTRES": f"cpu=32,gres/gpu={row['gpus']},mem=64G,node={row['nodes']}",
                **{name: f"{row[name.lower()].timestamp():.0f}" for name in ("Start", "End")},
                "Submit": "1000000000", "Eligible": "1000000000", "AdminComment": comment,
            }
        )  # fmt: skip
    answers = tmp_path / "jobs.json"
    answers.write_text(json.dumps(rows))
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sacct").write_text(
        _SACCT.format(python=os.path.realpath(sys.executable), rows=str(answers))
    )
    (bin_ / "scontrol").write_text("#!/bin/sh\n")
    for file in bin_.iterdir():
        file.chmod(0o755)
    return tmp_path


def run_program(name: str, site: Path, *words: str) -> str:
    """What an installed program prints, with the site's Slurm before all others."""
    installed = Path(sys.executable).parent / name
    if not installed.exists():
        pytest.skip(f"{name} is not installed")
    environment = {**os.environ, "PATH": f"{site / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [installed, *words],
        cwd=site,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_reportseff_reads_the_comments(site: Path) -> None:
    columns = "jobid,cpueff,memeff,gpueff,gpumem"
    printed = run_program("reportseff", site, "--no-color", f"--format={columns}", *"12345")
    rows = [re.sub("%", "", line).split() for line in printed.splitlines()[1:]]
    # CPU: 14,400 s of 32 CPUs for an hour.
    assert rows[:3] == [
        ["1", "12.5", "25.0", "50.0", "6.2"],
        ["2", "12.5", "50.0", "50.0", "6.2"],
        ["3", "12.5", "25.0", "25.0", "50.0"],
    ]
    assert rows[3][2:] == ["25.0", "50.0", "6.2"]
    assert rows[4][3:] == ["---", "---"]


CONFIGURATION = """
violation-logs-path: {folder}/violations
email-files-path: {folder}/mails
email-method: simple
email-domain-name: "@example.org"
workday-method: always
verbose: True
admin-emails: [a@example.org]
sender: a@example.org
reply-to: a@example.org
report-emails: [a@example.org]
low-gpu-efficiency-1: &limits
  {{cluster: c, partitions: ["*"], eff_thres_pct: 100, eff_target_pct: 100,
    absolute_thres_hours: 0}}
low-cpu-efficiency-1: *limits
excess-cpu-memory-1:
  {{cluster: c, partitions: ["*"], tb_hours_threshold: 0, ratio_threshold: 1, cores_per_node: 128,
    mean_ratio_threshold: 1, median_ratio_threshold: 1}}
zero-util-gpu-hours-1:
  {{cluster: c, partitions: ["*"], gpu_hours_threshold_user: 0, gpu_hours_threshold_admin: 0}}
"""


def test_job_defense_shield_reads_the_comments(site: Path) -> None:
    (site / "violations").mkdir()
    (site / "config.yaml").write_text(CONFIGURATION.format(folder=site))
    alerts = ("low-gpu-efficiency", "low-cpu-efficiency", "excess-cpu-memory")
    words = [f"--{name}" for name in (*alerts, "zero-util-gpu-hours")]
    printed = run_program("job_defense_shield", site, *words)
    assert "5 jobs in the cleaned dataframe" in printed
    for title, users in (
        ("Low GPU Efficiencies", {"user1": "50", "user2": "50", "user3": "25", "user4": "50"}),
        ("Low CPU Efficiencies", {"user1": "12", "user2": "12", "user3": "12"}),
    ):
        report = printed.partition(title)[2].partition("Cluster:")[0]
        lines = [line.split() for line in report.splitlines() if "user" in line]
        assert {words[1]: words[4] for words in lines} == users
    # A node without CPU time is what the program names, and leaves out.
    assert re.findall(
        r"Warning: JSON probably missing keys in cpu_efficiency.* (\d) c", printed
    ) == ["4"]
