"""The requests of docs/api.md, sent by curl to a real server with a real token."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from servers.process import program
from servers.web import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
pytestmark = pytest.mark.slow


def requests() -> list[str]:
    """The commands of the blocks of shell, continued lines joined."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def programs() -> list[str]:
    """The programs in Python."""
    return re.findall(
        r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_the_requests_of_the_page_are_answered(demo: Path, tmp_path: Path) -> None:
    program("curl", package="curl")
    folder = tmp_path / "demo"
    shutil.copytree(demo, folder)
    tokens = folder / "serve.tokens"
    with (folder / "tachograph.toml").open("a", encoding="utf-8") as file:
        file.write(f'\n[serve]\ntoken_file = "{tokens}"\n')
    words = ["serve", "token", "create", "--role", "support", "--user", "ann", "--expires", "1d"]
    made = subprocess.run(
        [sys.executable, "-m", "tachograph", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    (folder / "TOKEN").write_text(made.stdout.strip().splitlines()[-1], encoding="utf-8")
    assert len(requests()) > 5
    with serving(folder) as server:
        for request in requests():
            command = request.replace("http://127.0.0.1:8265", server.address).replace(
                "curl -s", "curl -sS --fail --retry 60 --retry-delay 1"
            )
            done = subprocess.run(
                command, shell=True, cwd=folder, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            assert len(done.stdout) > 2 or " -o " in command, command
        (example,) = programs()
        example = example.replace("http://127.0.0.1:8265", server.address).replace(
            "limit=1000", "limit=1"
        )
        example += (
            "\nprint(len(parts), jobs.height, jobs['state'].unique().to_list(), "
            "jobs['job_key'].n_unique())"
        )
        done = subprocess.run(
            [sys.executable, "-c", example], cwd=folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        parts, jobs, states, different = re.findall(
            r"(\d+) (\d+) (\[.*?\]) (\d+)$", done.stdout.strip()
        )[0]
        assert int(parts) == int(jobs) == int(different) > 1
        assert states == "['FAILED']"
    assert (folder / "minutes.parquet").read_bytes()[:4] == b"PAR1"
