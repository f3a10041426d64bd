"""The recipes of CONTRIBUTING.md, followed in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TESTS = REPOSITORY / "tests"
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")

UNCOMPILED = {"NUMBA_DISABLE_JIT": "1"}  # a copy has no compiled code yet, and compiling takes longer than these jobs
FULL_POWER = '''"""full_power: the GPUs drew nearly all the power they may."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from tachograph.judge.classes.inputs import Form, JobClass, needs_of
from tachograph.judge.finding import Answer, Finding


def _judge(job_class: JobClass, form: Form) -> Iterator[tuple[int, Finding]]:
    power = form.series.of("power")
    for place, (begin, end) in enumerate(pairwise(form.series.offset.tolist())):
        known = power[begin:end][~np.isnan(power[begin:end])]
        verdict: Answer = "insufficient" if not known.size else "yes" if np.median(known) >= 0.95 else "no"
        needs = () if known.size else needs_of(form, job_class.gpu)
        yield place, Finding("full_power", "fact", job_class.title, "Seen.", kind="class", verdict=verdict, needs=needs)


FULL_POWER = JobClass("full_power", "fact", "At full power", _judge, gpu=("power",), host=())
'''
COLD = {
    "name": "Cold GPU", "description": "The GPU stayed cold.", "criterion": "Its highest temperature is low.",
    "false_positives": ["A room that is cold."], "cures": ["Look whether the program uses the GPU."],
    "rules": [{
        "name": "Cold GPU", "type": "bool", "tag": "cold_gpu", "level": "gpu", "severity": "note",
        "parameter": ["cold_c"],
        "rule_terms": [{"highest": "SelectMetric(gpu_temp_c_peak, OverAll)"}, {"alert": "highest < cold_c"}],
        "output": "alert", "template": "It never reached {cold_c} degrees.",
    }],
}  # fmt: skip


def recipe(title: str) -> str:
    """The section called `title`."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    assert found, f"CONTRIBUTING.md has no section {title!r}"
    return found[1]


def code(section: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package to change."""
    shutil.copytree(
        REPOSITORY / "src" / "tachograph", tmp_path / "tachograph", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "tachograph"


def add_to_end_of_tuple(file: Path, name: str, row: str) -> None:
    text = file.read_text(encoding="utf-8")
    begin = text.index(f"\n{name}")
    end = text.index("\n)", begin) + 1
    file.write_text(text[:end] + row + text[end:], encoding="utf-8")


def replace(file: Path, changes: Mapping[str, str]) -> None:
    """Put other words in place of some that stand there once."""
    text = file.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


def python(package: Path, *arguments: str, **more: str) -> str:
    """What a program prints that takes the changed package, and the made-up jobs of these tests."""
    folders = (package.parent, TESTS, TESTS / "classes")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))} | more
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_row_adds_a_counter(package: Path) -> None:
    (row,) = code(recipe("A counter"))
    add_to_end_of_tuple(package / "counters.py", "COUNTERS", row)
    listed = json.loads(python(package, "-m", "tachograph", "counters", "--json"))
    assert [counter["dcgm_id"] for counter in listed if counter["name"] == "hbm_reserved_mib"] == [253]
    columns = python(
        package,
        "-c",
        "from tachograph.catalog.tables import GPU_SAMPLES; from tachograph.catalog.tables import JOB_SUMMARIES\n"
        "print(*GPU_SAMPLES.schema, *JOB_SUMMARIES.schema)",
    ).split()
    assert {"hbm_reserved_mib", "hbm_reserved_mib_mean", "hbm_reserved_mib_max"} <= set(columns)
    known = python(
        package,
        "-c",
        "from tachograph.catalog.counters import outside_names; print(outside_names()['DCGM_FI_DEV_FB_RESERVED'])",
    )
    assert known.strip() == "('hbm_reserved_mib', 'MiB')"


def test_one_file_and_one_line_add_a_command(package: Path) -> None:
    file, line = code(recipe("A command"))
    (package / "cli" / "hello.py").write_text(file, encoding="utf-8")
    add_to_end_of_tuple(package / "cli" / "registry.py", "COMMANDS", line)
    assert python(package, "-m", "tachograph", "hello", "you") == "hello you\n"
    assert re.search(r"^  hello +greet somebody$", python(package, "-m", "tachograph", "--help"), re.MULTILINE)
    assert "Greet somebody." in python(package, "-m", "tachograph", "hello", "--help")


def test_one_file_and_one_line_add_a_class(package: Path) -> None:
    (package / "classes" / "full_power.py").write_text(FULL_POWER, encoding="utf-8")
    replace(
        package / "classes" / "__init__.py",
        {
            "from tachograph.judge.classes.inputs import Form": "from tachograph.judge.classes.verdicts.full_power import FULL_POWER\n"  # noqa: E501
            "from tachograph.judge.classes.inputs import Form",
            "IDLE_GPUS, STABLE)": "IDLE_GPUS, STABLE, FULL_POWER)",
        },
    )
    code = (
        "from made_jobs import WORKING, gpu_minutes, phases, verdicts\n"
        "from tachograph.catalog.codes import known_codes\n"
        "assert 'full_power' in known_codes()\n"
        "found = [verdicts(gpu_minutes(phases((30, WORKING | {'power_w': watts})))) for watts in (399.0, 200.0)]\n"
        "print(*(told['full_power'].verdict for told in found), verdicts()['full_power'].needs)"
    )
    assert python(package, "-c", code, **UNCOMPILED).strip() == "yes no ('power_w',)"


def test_a_file_of_the_catalogue_and_a_line_for_its_parameter_add_a_rule(package: Path) -> None:
    catalogue = package / "rules" / "catalogue"
    (catalogue / "cold.json").write_text(json.dumps(COLD), encoding="utf-8")
    with (catalogue / "parameters.toml").open("a", encoding="utf-8") as file:
        file.write('\n[cold_gpu]\ncold_c = { default = 35.0, unit = "C", meaning = "highest temperature below it" }\n')
    listed = json.loads(python(package, "-m", "tachograph", "rules", "list", "--json"))
    (rule,) = (rule for rule in (listed["rules"] if isinstance(listed, dict) else listed) if rule["rule"] == "cold_gpu")
    assert "gpu_temp_c" in rule["needs"]


def test_a_row_and_its_condition_add_a_workload_class(package: Path) -> None:
    """Between compute-active and memory-active."""
    workload = package / "workload"
    replace(
        workload / "classes.py",
        {
            '    WorkloadClass("memory-active"': '    WorkloadClass("half-active", "half_active",'
            ' "mixed", "SM >= 40",\n'
            '                  {"sm": (0.4, 1)}, (0.45, 0, 0.2, 0.8, 0, 0)),\n    WorkloadClass("memory-active"'
        },
    )
    replace(
        workload / "kernel.py",
        {
            "tuple[int, int, int, int, int, int, int, int, int, int, int]": "tuple[int, ...]",
            "        _least(dram, MEMORY_ACTIVE),": "        _least(sm, 0.4),\n        _least(dram, MEMORY_ACTIVE),",
            "        place = _first(found[10], 10, place)": "        place = _first(found[11], 11, place)\n"
            "        place = _first(found[10], 10, place)",
        },
    )
    replace(
        workload / "rules.py",
        {'    (_at("dram", MEMORY_ACTIVE),),': '    (_at("sm", 0.4),),\n    (_at("dram", MEMORY_ACTIVE),),'},
    )  # fmt: skip
    code = (
        "import numpy as np\n"
        "from tachograph.workload import CLASSES, Reading, Settings, classify\n"
        "from tachograph.judge.workload.kernel import classify_arrays\n"
        "known = dict(tensor_active=0, dram_active=0.1, gr_engine_active=0.5, fp64_active=0, tensor_dfma_active=0,\n"
        "             pcie_tx_bytes_per_s=0, pcie_rx_bytes_per_s=0)\n"
        "for sm in (0.45, 0.35):\n"
        "    values = {name: np.array([value], np.float32) for name, value in (known | {'sm_active': sm}).items()}\n"
        "    print(classify(Reading(**known, sm_active=sm)).name, CLASSES[classify_arrays(values, 1, Settings())[0]])"
    )
    told = python(package, "-c", code, **UNCOMPILED).splitlines()
    assert told == ["half-active half-active", "mixed / moderate mixed / moderate"]


def test_an_expression_and_a_column_add_a_score(package: Path) -> None:
    replace(
        package / "scores" / "telemetry.py",
        {
            "scored = rows.with_columns(": "scored = rows.with_columns(score_sm=_limited(1 - pl.col('sm')),",
        },
    )
    replace(
        package / "summarize" / "schema.py",
        {
            '"score_gpumem", "score_gpumem_normalized")': '"score_gpumem", "score_gpumem_normalized", "score_sm")',
            '        _f("score_gpumem_normalized"': '        _f("score_sm", "percent", "SMs at rest.", null),\n'
            '        _f("score_gpumem_normalized"',
        },
    )
    code = (
        "import polars as pl\n"
        "from jobframes import frame, gpus, summary\n"
        "from tachograph import scores\n"
        "from tachograph.catalog.config import Scores\n"
        "from tachograph.catalog.tables import JOB_SUMMARIES\n"
        "of = gpus({'sm_active_mean': 0.2}, {'sm_active_mean': 0.4, 'dram_active_mean': 0.1}, {})\n"
        "scored = scores.judge(frame(JOB_SUMMARIES, [summary()]), of, Scores())\n"
        "print(scored.gpus['score_sm'].round(3).to_list(), scored.jobs['score_sm'].round(3).to_list())"
    )
    assert python(package, "-c", code).strip() == "[80.0, 60.0, None] [60.0]"  # of a job: of GPUs that tell both


def test_a_name_and_a_share_of_a_minute_add_a_cause(package: Path) -> None:
    replace(
        package / "summarize" / "schema.py",
        {'"cold_start", "idle", "imbalance")': '"cold_start", "half", "idle", "imbalance")'},
    )
    replace(
        package / "waste" / "ledger.py",
        {
            '        "idle": idle_s,\n': '        "half": others * rest * scale / 2,\n        "idle": idle_s,\n',
            '        "energy_idle": ': '        "energy_half": pl.lit(0.0),\n        "energy_idle": ',
        },
    )
    code = (
        "from jobframes import frame, gpus, minutes, summary\n"
        "from tachograph import waste\n"
        "from tachograph.pipeline.timelines import timelines_of\n"
        "from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES\n"
        "job = frame(JOB_SUMMARIES, [summary(gpus=1, elapsed_s=3600.0)])\n"
        "of, never = timelines_of(minutes([1.0] * 60), idle_util=0.1), gpus({'gpu_util_max': 1.0})\n"
        "found = waste.judge(job, never, of, frame(FINDINGS, []), idle_util=0.1, idle_minutes=9)\n"
        "print(found['gpu_hours_half'].item(), found.select(waste.productive()).item())"
    )
    assert python(package, "-c", code, **UNCOMPILED).strip() == "0.5 0.5"


def test_a_row_adds_a_label_of_nsight_compute(package: Path) -> None:
    row = '        "Replayed Instructions": "smsp__inst_replayed.sum",'
    replace(package / "nsight" / "catalogue.py", {'    "instruction": {': f'    "instruction": {{\n{row}'})
    code = (
        "from tachograph.nsight.metrics import metric_of\n"
        "print(metric_of('Instruction Statistics', 'Replayed Instructions'))"
    )
    assert python(package, "-c", code).strip() == "smsp__inst_replayed.sum"


def test_a_name_adds_a_pipeline_to_the_estimator(package: Path) -> None:
    replace(package / "interference" / "demand.py", {'"uniform", "xu")': '"uniform", "xu", "ray")'})
    code = (
        "from tachograph.sharing.demand import H100_NVL, Demand\n"
        "from tachograph.sharing.estimate import estimate\n"
        "from tachograph.sharing.estimate import matrix\n"
        "rays = Demand(name='rays', cycles={'issue': 0.1, 'ray': 0.75}, irregular=0.0, seconds=1.0)\n"
        "member = estimate([rays, rays], gpu=H100_NVL).members[0]\n"
        "print(member.binding, member.slowdown, matrix([rays], gpu=H100_NVL).slowdown)"
    )
    assert python(package, "-c", code, **UNCOMPILED).strip() == "ray 1.5 [[1.5]]"


def test_a_function_and_a_row_add_a_policy(package: Path) -> None:
    policies = package / "interference" / "day" / "policies.py"
    replace(
        policies,
        {
            "def oracle(": "def trusting(known: Known) -> Permits:\n"
            '    """All may share."""\n'
            "    return Permits(known.expected > 0, known.expected)\n\n\ndef oracle("
        },
    )
    add_to_end_of_tuple(policies, "POLICIES", '    Policy("trusting", "whoever fits", trusting),\n')
    replace(
        package / "cli" / "interference_day.py",
        {'_POLICIES = ("exclusive",': '_POLICIES = ("trusting", "exclusive",'},
    )
    code = (
        "import numpy as np\n"
        "from tachograph.catalog.config import Interference\n"
        "from day.jobs import Seen\n"
        "from day.schedule import POLICIES, Known, permitted\n"
        "seen = [Seen(name, (), size, 'memory', 0.9) for name, size in (('a', 40.0), ('b', 40.0), ('c', 80.0))]\n"
        "slow = np.full((3, 3), 2.0)\n"
        "known = Known(seen=seen, expected=slow, safe=slow < 1, true=slow, settings=Interference())\n"
        "(policy,) = [one for one in POLICIES if one.code == 'trusting']\n"
        "print(permitted(policy, known, hbm_bytes=100.0).may.astype(int).tolist())"
    )
    assert python(package, "-c", code).strip() == "[[1, 1, 0], [1, 1, 0], [0, 0, 0]]"
    assert "trusting" in python(package, "-m", "tachograph", "interference", "day", "--help")


@pytest.mark.parametrize(
    "title",
    [
        *("A counter", "A device", "A source", "A piece of advice", "A job class", "A rule of the catalogue"),
        *("A workload class, a limit of health", "A score", "A cause of the ledger"),
        *("A figure", "A label of Nsight Compute", "A resource of the estimator", "A policy of the simulated day"),
        *("A micro-benchmark", "A reporter", "A command"),
    ],
)
def test_a_recipe_is_short_and_its_files_exist(title: str) -> None:
    section = recipe(title)
    steps = re.findall(r"^\d+\. ", section, re.MULTILINE)
    assert len(steps) <= 10
    named = re.findall(r"`(src/tachograph/[\w/.]+)`", section)
    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
