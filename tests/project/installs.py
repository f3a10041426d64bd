"""Installs the wheel into empty environments with the locked versions, and runs its commands there.

    python3.13 tests/project/installs.py WHEEL [--extras core all] [--keep FOLDER] [--sizes]

Needs a package registry and no other package than pip: the interpreter that runs it is the one
that is tested. An environment holds Tachograph with one extra ("core": none) and what that
requires, each at its version in requirements/ and checked against its hashes there. The core runs
the demo and reports it; an extra adds its commands; commands whose extra is missing must name it.
Prints a line per environment; `--sizes` adds what each package takes there. Ends with 1 if a
command failed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = "tachograph-demo"
# {extra: a command that does not run without it}
NEEDS = {
    "watch": "watch",
    "serve": "serve",
    "lab": "study",
    "mcp": "mcp",
    "share": "share kernels report.ncu-rep",
    "pm-sampling": "watch --once --source pm-sampling",
    "dask": "analyze --workers 1",
    "postgresql": "export postgresql --to postgresql://127.0.0.1:1/none",
}
# {extra: the commands that it brings; serve is tried by a request}
BRINGS = {
    "core": (),
    "watch": ("watch",),
    "serve": ("serve", "lab"),
    "lab": ("lab",),
    "all": ("watch", "serve", "lab"),
}
TRIED = {
    "watch": "watch --once --simulate 4",
    "lab": "study --figure spatial_imbalance --format svg",
}
CORE = (
    "jobs --limit 3",
    "jobs --json",
    "job 1000360",
    "seff 1000360",
    "waste",
    "lake",
    "lab rules list",
    "export csv --to tables",
    "share kernels raw.csv",
    "share colocate --runs 1",
)


def main() -> int:
    """Print a line per environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extras", nargs="+", choices=BRINGS, default=list(BRINGS))
    parser.add_argument("--keep", type=Path, help="folder for the environments, which stay")
    parser.add_argument("--sizes", action="store_true", help="MiB of each package")
    options = parser.parse_args()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        home = folder / "home"
        home.mkdir(exist_ok=True)
        for extra in options.extras:
            begin = time.monotonic()
            program = install(options.wheel.resolve(), folder / extra, extra)
            problems, commands = try_commands(program, home, extra)
            failures += problems
            sizes = package_sizes(folder / extra)
            line = {
                "python": platform.python_version(),
                "extra": extra,
                "packages": len(sizes),
                "mib": round(sum(sizes.values()), 1),
                "commands": commands,
                "failed": problems,
                "seconds": round(time.monotonic() - begin),
            }
            write(json.dumps(line))
            if options.sizes:
                print_sizes(sizes)
    return 1 if failures else 0


def install(wheel: Path, folder: Path, extra: str) -> Path:
    """Return the program of a fresh environment with Tachograph and one extra."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    locked = locked_packages()
    constraints = folder / "constraints.txt"
    versions = [line for lines in locked.values() for line in lines if not line.startswith(" ")]
    pins = [version.rstrip("\\ ") for version in versions]
    constraints.write_text("".join(f"{pin}\n" for pin in pins))
    target = str(wheel) if extra == "core" else f"{wheel}[{extra}]"
    report = folder / "report.json"
    subprocess.run(
        [*pip, "install", "--dry-run", "--report", report, "-c", constraints, target], check=True
    )
    names = [
        canonical(item["metadata"]["name"]) for item in json.loads(report.read_text())["install"]
    ]
    quick = ["--no-compile"]  # bytecode of modules that no command imports takes a minute
    lock = folder / "lock.txt"
    lock.write_text(
        "".join(f"{line}\n" for name in names if name != "tachograph" for line in locked[name])
    )
    subprocess.run(
        [*pip, "install", "--require-hashes", "--no-deps", *quick, "-r", lock], check=True
    )
    subprocess.run([*pip, "install", "--no-deps", "--no-index", *quick, wheel], check=True)
    subprocess.run([*pip, "check"], check=True, stdout=subprocess.DEVNULL)
    return folder / "bin/tachograph"


def locked_packages() -> dict[str, list[str]]:
    """Return the lines of each package in requirements/run.txt: versions, markers and hashes."""
    packages: dict[str, list[str]] = {}
    name = ""
    for line in (REPOSITORY / "requirements/run.txt").read_text().splitlines():
        if not line.startswith((" ", "#")):
            name = canonical(line.partition("==")[0])
        packages.setdefault(name, []).append(line)
    return packages


def canonical(name: str) -> str:
    """Return a name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def try_commands(program: Path, home: Path, extra: str) -> tuple[list[str], int]:
    """Return what failed, and the number of commands that ran."""
    problems = []
    folder = home / DEMO
    count = 0
    if not folder.exists():
        problems += succeeds(program, home, "demo --quiet")
        count += 1
        write_inputs(folder)
    commands = CORE if extra == "core" else [TRIED[name] for name in BRINGS[extra] if name in TRIED]
    for command in commands:
        problems += succeeds(program, folder, command)
        count += 1
    if "serve" in BRINGS[extra]:
        problems += serves_a_page(program, folder)
        count += 1
    for name, command in NEEDS.items():
        if name not in BRINGS[extra]:
            problems += names_the_extra(program, folder, command, name)
            count += 1
    return problems, count


def succeeds(program: Path, folder: Path, command: str) -> list[str]:
    """Return the command with its errors if it failed."""
    done = run(program, folder, command)
    return [f"{command}: {done.stderr.strip()[-300:]}"] if done.returncode else []


def names_the_extra(program: Path, folder: Path, command: str, extra: str) -> list[str]:
    """Return the command with its errors unless it failed by one line that names the extra."""
    done = run(program, folder, command)
    lines = [line for line in done.stderr.splitlines() if f"tachograph[{extra}]" in line]
    if done.returncode and len(lines) == 1 and "Traceback" not in done.stderr:
        return []
    return [f"{command}: exit code {done.returncode}, {done.stderr.strip()[-300:]}"]


def write_inputs(folder: Path) -> None:
    """Write kernels as Nsight Compute exports them, and an empty report of it."""
    made = REPOSITORY / "tests/nsight_reports.py"
    subprocess.run([sys.executable, made, folder / "raw.csv"], check=True, capture_output=True)
    (folder / "report.ncu-rep").write_bytes(b"NVR\0")


def run(program: Path, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Return how a command ended and what it printed."""
    return subprocess.run(
        words(program, command),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=900,
    )


def words(program: Path, command: str) -> list[str]:
    """Return the words that start a command."""
    return [str(program), *shlex.split(command)]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a user who has set none."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "TZ": "UTC", "COLUMNS": "100"}


def serves_a_page(program: Path, folder: Path) -> list[str]:
    """Return what failed when the pages are served and one is read."""
    with subprocess.Popen(
        [program, "serve", "--listen", "127.0.0.1:0"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        line = ""
        try:
            while not (address := re.search(r"http://\S+", line)):
                line = server.stdout.readline()
                if not line:
                    return ["serve: ended without an address"]
            cookies = urllib.request.HTTPCookieProcessor()  # the link logs in
            with urllib.request.build_opener(cookies).open(address[0], timeout=60) as answer:
                page = answer.read().decode()
        except urllib.error.URLError as problem:
            return [f"serve: {problem}"]
        finally:
            server.terminate()
    return [] if "<title>" in page else [f"serve: {page[:100]}"]


def package_sizes(folder: Path) -> dict[str, float]:
    """Return the MiB on disk of each package of an environment, without compiled bytecode."""
    sizes: dict[str, float] = {}
    for record in folder.glob("lib/python3*/site-packages/*.dist-info/RECORD"):
        name = canonical(record.parent.name.partition("-")[0])
        if name in {"pip", "setuptools"}:  # of the environment itself
            continue
        with record.open(newline="") as rows:
            sizes[name] = sum(int(size) for _, _, size in csv.reader(rows) if size) / 2**20
    return sizes


def print_sizes(sizes: Mapping[str, float], least: float = 1.0) -> None:
    """Print the packages of at least one MiB, largest first."""
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size >= least:
            write(f"    {name:<20}{size:7.1f}")


def write(line: str) -> None:
    """Write a line at once: an environment takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
