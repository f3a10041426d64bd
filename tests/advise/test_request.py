"""Job scripts are read as sbatch reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.units import slurm_duration
from tachograph.judge.advice.request import (
    JobRequest,
    memory_mib,
    name_pattern,
    read_script,
    time_limit_s,
)


@pytest.mark.parametrize(
    ("lines", "gpus", "nodes"),
    [
        (("--gpus=4",), 4, None),
        (("-G 4",), 4, None),
        (("-G4",), 4, None),
        (("--gpus=a100:3",), 3, None),
        (("--gpus=a100:3,h100:1",), 4, None),
        (("--gpus-per-node=4", "-N 3"), 12, 3),
        (("--gpus-per-node=h100:2", "--nodes=2-4"), 4, 2),
        (("--gres=gpu:2",), 2, None),
        (("--gres=gpu:a100:2,nvme:1", "-N2"), 4, 2),
        (("--gres=gpu",), 1, None),
        (("--gpus-per-task=1", "-n 8"), 8, None),
        (("--gpus-per-task=1", "--ntasks-per-node=4", "-N2"), 8, 2),
        (("--tres-per-task=gres/gpu:2", "-n 3"), 6, None),
        (("--gres=nvme:1",), None, None),
        (("--gpus=2 --gpus=4",), 4, None),
        (("--gpus=many",), None, None),
        ((), None, None),
    ],
)
def test_gpus_of_every_option(lines: tuple[str, ...], gpus: int | None, nodes: int | None) -> None:
    script = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines) + "srun ./md\n"
    made = read_script(script)
    assert (made.gpus, made.nodes, made.command) == (gpus, nodes, "srun ./md")
    assert bool(made.unread) == (lines == ("--gpus=many",))


@pytest.mark.parametrize(
    ("lines", "mib", "option"),
    [
        (("--mem=64G",), 65536.0, "mem"),
        (("--mem=500",), 500.0, "mem"),
        (("--mem=0",), None, "mem"),
        (("--mem-per-cpu=2G", "-n 4", "-c 8"), 65536.0, "mem-per-cpu"),
        (("--mem-per-gpu=32G", "--gpus=4", "-N 2"), 65536.0, "mem-per-gpu"),
        (("--mem-per-gpu=32G",), None, "mem-per-gpu"),
        (("--mem-per-gpu=32G", "--gpus=1", "--mem=1G"), 1024.0, "mem"),
        (("--mem=lots",), None, "mem"),
    ],
)
def test_memory_of_a_node(lines: tuple[str, ...], mib: float | None, option: str) -> None:
    made = read_script("".join(f"#SBATCH {line}\n" for line in lines))
    assert (made.mem_mib, made.memory_option) == (mib, option)


def test_options_behind_the_first_command_do_not_count() -> None:
    made = read_script(
        "#!/bin/bash\n# a comment\n\n#SBATCH -J one -t 10 # of a test "
        "--gpus=8\nhostname\n#SBATCH -G 4\n"
    )
    assert (made.name, made.timelimit_s, made.gpus, made.command) == (
        "one",
        600.0,
        None,
        "hostname",
    )
    assert read_script(" #SBATCH --gpus=4\n").gpus is None, "sbatch takes it for a comment"
    assert read_script("#SBATCH --job-name='a b' --partition=\"gpu\"\n", name="x.sh").name == "a b"
    assert read_script("srun true\n", name="x.sh").name == "x.sh"


def test_component_with_gpus_of_a_heterogeneous_job() -> None:
    made = read_script("#SBATCH -n 1 -t 5\n#SBATCH hetjob\n#SBATCH --gpus=4 -t 60\n")
    assert (made.gpus, made.timelimit_s) == (4, 3600.0)


@given(st.integers(0, 10**7))
def test_time_is_read_as_it_is_written(seconds: int) -> None:
    assert time_limit_s(slurm_duration(seconds)) == seconds


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["#SBATCH", "--gpus", "=", ":", "-N", "9" * 30, "\n", " ", "'"]))
)
def test_no_script_is_too_strange(script: str | list[str]) -> None:
    written = script if isinstance(script, str) else "".join(script)
    assert isinstance(read_script(written), JobRequest)
    assert isinstance(
        read_script(f"#SBATCH --gpus={written}\n#SBATCH --mem={written} -t {written}"), JobRequest
    )
    memory_mib(written)
    assert name_pattern(name_pattern(written)) == name_pattern(written)


def test_patterns_join_numbers_dates_and_hashes_alone() -> None:
    assert name_pattern("train_7") == name_pattern("train_12") == "train_#"
    assert name_pattern("eval-2025-03-04T10:00") == name_pattern("eval-2024-12-31T23:59")
    assert name_pattern("run.deadbeef01") == name_pattern("run.0123abcd")
    assert len({name_pattern(name) for name in ("train", "trains", "eval", "feedback")}) == 4
