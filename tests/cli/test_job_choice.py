"""`tachograph job` without an id, with one, with several."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from tachograph.cli import main

UNUSED, HUNG = "1000316", "1000360"


def printed(capsys: pytest.CaptureFixture[str], demo: Path, *words: str) -> str:
    assert (
        main([*words, "--lake", str(demo / "lake"), "--config", str(demo / "tachograph.toml")]) == 0
    )
    return capsys.readouterr().out


def test_without_an_id_it_is_the_callers_last_job(
    capsys: pytest.CaptureFixture[str], demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = json.loads(printed(capsys, demo, "jobs", "--user", "user036", "--json"))
    last = max(jobs, key=lambda job: str(job["start"]))
    monkeypatch.setenv("LOGNAME", "user036")
    assert json.loads(printed(capsys, demo, "job", "--json"))["job_key"] == last["job_key"]
    monkeypatch.setenv("LOGNAME", "stranger")
    lake = ["--lake", str(demo / "lake"), "--config", str(demo / "tachograph.toml")]
    assert main(["job", *lake]) == 2
    assert "stranger has none in the lake" in capsys.readouterr().err


def test_several_are_compared_with_what_differs_most_first(
    capsys: pytest.CaptureFixture[str], demo: Path
) -> None:
    text = printed(capsys, demo, "job", UNUSED, HUNG)
    both = json.loads(printed(capsys, demo, "job", UNUSED, HUNG, "--json"))
    assert [report["display_id"] for report in both] == [UNUSED, HUNG]
    hours = [report["gpu_hours"] for report in both]
    (row,) = [line.split() for line in text.splitlines() if line.startswith("GPU-hours")]
    assert [float(row[1]), float(row[3])] == [pytest.approx(value, abs=0.051) for value in hours]
    assert float(row[5]) == pytest.approx(100 * (1 - min(hours) / max(hours)), abs=0.51)
    shares = [float(line.split()[-2]) for line in text.splitlines() if line.endswith(" %")]
    assert len(shares) > 10
    assert shares == sorted(shares, reverse=True)
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize(
    "form", [["--html", "page.html"], ["--ticket"], ["--steps"], ["--checks"], ["--ranks", "dump"]]
)
def test_several_have_no_page_and_no_ticket(
    capsys: pytest.CaptureFixture[str], demo: Path, form: list[str]
) -> None:
    assert main(["job", UNUSED, HUNG, *form, "--lake", str(demo / "lake")]) == 2
    assert "name one job" in capsys.readouterr().err


def test_the_rank_that_a_hang_waits_for_is_beside_the_culprit_by_counters(
    capsys: pytest.CaptureFixture[str], demo: Path, tmp_path: Path
) -> None:
    counts = {0: 1234, 1: 1233, 2: 1236}  # GPU 1 hangs
    ranks = [{"rank": gpu, "host": "10.0.0.1", "nvml_dev": gpu, "collective_counts": {"AllReduce": n}}
             for gpu, n in counts.items()]  # fmt: skip
    answer = tmp_path / "ras.json"
    answer.write_text(json.dumps({"communicators": [{"hash": "0x1f", "ranks": ranks}]}))
    sentence = (
        "2 others waited for rank 1 (nid000015 GPU 1), which did not join operation 1,234 of "
        "AllReduce in communicator 0x1f."
    )
    answers = [str(answer), str(tmp_path / "absent")]
    report = json.loads(printed(capsys, demo, "job", HUNG, "--json", "--ranks", *answers))
    assert report["culprit"]["node"] is None
    assert report["ranks"] == {
        "sentence": f"{sentence} {answers[1]} is not read: it is no file of at most 64 MiB.",
        "ranks": [{"rank": 1, "node": "nid000015", "gpu": 1, "label": "rank 1 (nid000015 GPU 1)"}],
        "agreement": "ranks",
        "comparison": "Counters name no GPU.",
    }
    text = printed(capsys, demo, "job", HUNG, "--ranks", str(answer))
    assert f"Ranks {sentence} Counters name no GPU. " in " ".join(text.split())
    assert main(["job", HUNG, "--ranks", answers[1], "--lake", str(demo / "lake")]) == 4
    assert f"{answers[1]} is not read: " in capsys.readouterr().err


def test_a_job_without_work_says_so_though_a_part_was_not_measured(
    capsys: pytest.CaptureFixture[str], demo: Path
) -> None:
    text = " ".join(printed(capsys, demo, "job", "1000170").split())
    assert (
        "GPU utilisation was 0 % in every sample, though not all of its GPU time was measured"
        in text
    )
    assert "Check that the program was built for GPUs" in text
    assert "profiler" not in text


def _on_terminal(words: list[str], lines: int) -> list[str]:
    """Return what a command prints on a terminal of 80 columns."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    command = [sys.executable, "-m", "tachograph", *words]
    with subprocess.Popen(
        command, env=environment | {"TERM": "xterm"}, stdin=terminal, stdout=terminal
    ) as process:
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # Linux: the end of a terminal that nobody writes to
            while part := os.read(reader, 65536):
                shown += part
        assert process.wait(60) == 0
    os.close(reader)
    return shown.decode().splitlines()


def test_on_a_low_terminal_the_headline_stays_visible(demo: Path) -> None:
    lake = ["--lake", str(demo / "lake"), "--config", str(demo / "tachograph.toml")]
    short = _on_terminal(["job", UNUSED, *lake], 24)
    assert len(short) <= 22
    assert any("1 of 8 GPUs used" in line for line in short[:3])
    last = re.sub(r"\x1b\[\d*m", " ", " ".join(short[-4:]))
    assert f"tachograph job {UNUSED} --lake {lake[1]} --full" in " ".join(last.split())
    assert len(_on_terminal(["job", UNUSED, "--full", *lake], 24)) > 24


def test_a_plain_listing_has_the_callers_jobs_first_and_exports_have_not(
    capsys: pytest.CaptureFixture[str], demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters, an order, and JSON leave the order as it is documented."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LOGNAME", "user036")
    own = json.loads(printed(capsys, demo, "jobs", "--user", "user036", "--json"))
    count = len(own)
    limit = ["--limit", str(count + 1)]
    lines = printed(capsys, demo, "jobs", *limit).splitlines()
    ids = [line.split()[0] for line in lines[1 : count + 2]]
    newest = json.loads(printed(capsys, demo, "jobs", "--limit", "1", "--json"))
    assert ids == [*(job["display_id"] for job in own), newest[0]["display_id"]]
    assert "jobs of user036 first, newest first" in lines[count + 2]
    assert newest[0]["user"] != "user036"
    every = printed(capsys, demo, "jobs").splitlines()  # without a limit all are read at once
    assert [line.split()[0] for line in every[1 : count + 2]] == ids
    for words in (["--sort", "-start"], ["--worst"], ["--in-study"]):
        assert "user036 first" not in printed(capsys, demo, "jobs", *words, *limit)
