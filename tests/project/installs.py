"""Installs the wheel into empty environments with the locked versions, and runs its commands there.

    python3.13 tests/project/installs.py WHEEL [--extras core all] [--keep FOLDER] [--sizes]

Needs a package registry and no other package than pip: the interpreter that runs it is the one
that is tested. An environment holds Tachograph with one extra ("core": none) and what that
requires, each at its locked version (LOCKS) and checked against its hashes there. The core runs
the demo and reports it; an extra adds its commands; commands whose extra is missing must name it.
No database and no GPU is needed: the program then has to name what its library did not reach.
Prints a line per environment; `--sizes` adds what each package takes there. Ends with 1 if a
command failed.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import hmac
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Files with versions and hashes; of a package in several of them the first counts.
LOCKS = ("requirements/run.txt", "research/gpu-day/pm-sampling.txt", "requirements/dev.txt")
DEMO = "tachograph-demo"
PANDAS = "python -c 'import tachograph as t; t.to_pandas(t.open().jobs()).info()'"
DATABASE = "export postgresql --to postgresql://127.0.0.1:1/none"  # where nothing listens
SLURM_KEY = b"a key of Slurm's tokens, for this test alone"
# {extra: a command that does not run without it}
NEEDS = {
    "watch": "watch",
    "serve": "serve",
    "lab": "study",
    "mcp": "mcp",
    "share": "share kernels report.ncu-rep",
    "pm-sampling": "watch --once --source pm-sampling",
    "dask": "analyze --workers 1",
    "postgresql": DATABASE,
    "pandas": PANDAS,
    "jwt": "serve --listen 127.0.0.1:0 --config slurm.toml",
}
# {environment: the extras that are installed in it}
BRINGS = {
    "core": (),
    "watch": ("watch",),
    "serve": ("serve", "lab"),
    "lab": ("lab",),
    "all": ("watch", "serve", "lab"),
    "share": ("share",),
    "mcp": ("mcp", "serve", "lab"),
    "dask": ("dask",),
    "postgresql": ("postgresql",),
    "pandas": ("pandas",),
    "jwt": ("jwt", "serve", "lab"),
    "pm-sampling": ("pm-sampling",),
}
# {environment: what pip is asked for, where its name alone does not bring all of it}
REQUESTED = {"core": "", "jwt": "[jwt,serve]"}


@dataclass(frozen=True)
class ExtraProof:
    """A command that works with an extra alone.

    prints: regular expression of what it prints, on stdout or stderr.
    exit_codes: those with which it may end.
    sends: what it reads on stdin.
    """

    command: str
    prints: str
    exit_codes: tuple[int, ...] = (0,)
    sends: str = ""


_ASKED = (
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "installs", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
)
# {extra: its command; those of the server are tried by requests}
PROOFS = {
    "watch": ExtraProof("watch --once --simulate 4", "GPU"),
    "lab": ExtraProof("study --figure spatial_imbalance --format svg", "spatial_imbalance"),
    "share": ExtraProof("share kernels report.ncu-rep", "axpy"),
    "mcp": ExtraProof(
        "mcp",
        "find_jobs",
        sends="".join(f"{json.dumps({'jsonrpc': '2.0', **message})}\n" for message in _ASKED),
    ),
    "dask": ExtraProof("analyze --full --workers 2", r"\d+ jobs summarized"),
    "postgresql": ExtraProof(DATABASE, "Connection refused", exit_codes=(7,)),
    "pandas": ExtraProof(PANDAS, r"pandas\S*DataFrame"),
    # without a GPU the library loads, and names the driver
    "pm-sampling": ExtraProof(NEEDS["pm-sampling"], "GPU|CUDA does not start", (0, 4)),
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
    target = f"{wheel}{REQUESTED.get(extra, f'[{extra}]')}"
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
    """Return the lines of each package in the first of LOCKS that has it: versions, hashes."""
    packages: dict[str, list[str]] = {}
    for lock in LOCKS:
        packages = _locked_in(REPOSITORY / lock) | packages
    return packages


def _locked_in(lock: Path) -> dict[str, list[str]]:
    packages: dict[str, list[str]] = {}
    name = ""
    for line in lock.read_text().splitlines():
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
        problems += proves(program, home, ExtraProof("demo --quiet", ""))
        count += 1
        write_inputs(folder)
    for command in CORE if extra == "core" else ():
        problems += proves(program, folder, ExtraProof(command, ""))
        count += 1
    for name in BRINGS[extra]:
        if name in PROOFS:
            problems += proves(program, folder, PROOFS[name])
            count += 1
    if "serve" in BRINGS[extra]:
        problems += serves_a_page(program, folder)
        count += 1
    if "jwt" in BRINGS[extra]:
        problems += accepts_a_token(program, folder)
        count += 1
    for name, command in NEEDS.items():
        # without `serve` the server does not come to miss what checks signatures
        if name not in BRINGS[extra] and (name != "jwt" or "serve" in BRINGS[extra]):
            problems += names_the_extra(program, folder, command, name)
            count += 1
    return problems, count


def proves(program: Path, folder: Path, proof: ExtraProof) -> list[str]:
    """Return the command with what it printed, if it did not do what it should."""
    done = run(program, folder, proof.command, sends=proof.sends)
    printed = done.stdout + done.stderr
    if done.returncode in proof.exit_codes and re.search(proof.prints, printed):
        return []
    return [f"{proof.command}: exit code {done.returncode}, {printed.strip()[-300:]}"]


def names_the_extra(program: Path, folder: Path, command: str, extra: str) -> list[str]:
    """Return the command with its errors unless it failed by one line that names the extra."""
    done = run(program, folder, command)
    lines = [line for line in done.stderr.splitlines() if f"tachograph[{extra}]" in line]
    is_traceback = "Traceback" in done.stderr and not command.startswith("python ")
    if done.returncode and len(lines) == 1 and not is_traceback:
        return []
    return [f"{command}: exit code {done.returncode}, {done.stderr.strip()[-300:]}"]


def write_inputs(folder: Path) -> None:
    """Write what commands read: kernels as Nsight Compute exports and stores them, a server."""
    script = REPOSITORY / "tests/nsight_reports.py"
    subprocess.run([sys.executable, script, folder / "raw.csv"], check=True, capture_output=True)
    stored = (
        "import sys; from pathlib import Path; from made_report import MadeLaunch, write; "
        "launch = MadeLaunch('axpy', metrics={'gpu__time_duration.sum': 1000.0}); "
        "write(Path(sys.argv[1]), [launch])"
    )
    subprocess.run(
        [sys.executable, "-c", stored, folder.absolute() / "report.ncu-rep"],
        check=True,
        cwd=REPOSITORY / "tests",
    )
    key = folder / "slurm.key"
    key.touch(mode=0o600)
    key.write_bytes(SLURM_KEY)
    (folder / "slurm.toml").write_text(f'lake = "lake"\n[serve]\nslurm_jwt_key = "{key.name}"\n')


def run(
    program: Path, folder: Path, command: str, *, sends: str = ""
) -> subprocess.CompletedProcess[str]:
    """Return how a command ended and what it printed."""
    return subprocess.run(
        words(program, command),
        cwd=folder,
        env=environment(folder),
        input=sends,
        capture_output=True,
        text=True,
        timeout=900,
    )


def words(program: Path, command: str) -> list[str]:
    """Return the words that start a command: of the program, or of Python beside it."""
    first, *others = shlex.split(command)
    if first == "python":
        return [str(program.with_name("python")), *others]
    return [str(program), first, *others]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a user who has set none."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "TZ": "UTC", "COLUMNS": "100"}


def serves_a_page(program: Path, folder: Path) -> list[str]:
    """Return what failed when the pages are served and one is read."""
    with served(program, folder) as link:
        cookies = urllib.request.HTTPCookieProcessor()  # the link logs in
        return page_problems(urllib.request.build_opener(cookies), link)


def accepts_a_token(program: Path, folder: Path) -> list[str]:
    """Return what failed when a user reads a page by a token of Slurm."""
    with served(program, folder, "--config slurm.toml") as link:
        opener = urllib.request.build_opener()
        opener.addheaders = [("X-SLURM-USER-TOKEN", slurm_token("user000"))]
        return page_problems(opener, f"{link.partition('/login')[0]}/jobs")


def slurm_token(user: str) -> str:
    """Return a token as `scontrol token` prints it: a JSON web token, signed by HS256."""
    claims = {"exp": int(time.time()) + 600, "sun": user}
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    signed = b".".join(map(_encoded, parts))
    signature = hmac.digest(SLURM_KEY, signed, hashlib.sha256)
    return (signed + b"." + _encoded(signature)).decode()


def _encoded(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


@contextmanager
def served(program: Path, folder: Path, options: str = "") -> Iterator[str]:
    """Serve the pages inside the block; yield the link, empty if the server ended without one."""
    with subprocess.Popen(
        words(program, f"serve --listen 127.0.0.1:0 {options}"),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        links = (re.search(r"http://\S+", line) for line in server.stdout)
        try:
            yield next((link[0] for link in links if link), "")
        finally:
            server.terminate()


def page_problems(opener: urllib.request.OpenerDirector, link: str) -> list[str]:
    """Return what failed when a page is read."""
    try:
        with opener.open(link, timeout=60) as answer:
            page = answer.read().decode()
    except (urllib.error.URLError, ValueError) as problem:
        return [f"serve {link}: {problem}"]
    return [] if "<title>" in page else [f"serve {link}: {page[:100]}"]


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
