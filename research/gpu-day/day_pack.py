"""What a machine without network needs for the day: wheels of its Python, this package, and the day
itself.

    python research/gpu-day/day_pack.py --python-version 3.12

Wheels are those of the locks, with their hashes. DIR gets `wheels/` and, for PM sampling,
`wheels-pm/`: cupti-python needs another version of cuda-bindings. Beside it `gpu-day.tar` has all
of it and the sources; --part-mib cuts it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PACK = REPOSITORY / "dist" / "gpu-day"
# pip matches the tag of a wheel exactly: all of a glibc of 2.28 and older
_PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
    *(f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")),
)
_MIB = 1 << 20
# of the development lock: what the bench needs beside the packages that run everything
_CUDA = ("cuda-bindings", "cuda-core", "cuda-pathfinder", "nvidia-cuda-nvrtc-cu12")
_SOURCES = ("src", "research", "Makefile", "LICENSE")


def locked(
    text: str, *, python: str, without: Sequence[str] = (), only: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the requirements of a lock that a Linux with this Python needs, without markers, with
    their hashes.

    pip evaluates markers for the Python that runs it, which is another one.

    >>> lock = "a==1 ; python_full_version >= '3.12' \\\\\\n    --hash=sha256:0\\nb==2 \\\\\\n    --hash=sha256:1\\n"
    >>> [one.split()[0] for one in locked(lock, python="3.12", without=["b"])]
    ['a==1']
    >>> [one.split()[0] for one in locked(lock, python="3.11")]
    ['b==2']
    """
    from packaging.requirements import Requirement

    environment = {
        "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
        "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    }  # fmt: skip
    for one in re.sub(r"\\\n", " ", text).splitlines():
        words, *hashes = re.split(r"\s+(?=--hash=)", one.strip())
        if not words or words.startswith("#"):
            continue
        found = Requirement(words)
        if found.name in without or (only and found.name not in only):
            continue
        if found.marker is None or found.marker.evaluate(environment):
            yield " ".join([f"{found.name}{found.specifier}", *hashes])


def download(
    requirements: Sequence[str], target: Path, *, python: str, platforms: Sequence[str]
) -> None:
    """Put the wheels of all requirements into a folder; what is there and right is not fetched
    again.

    Errors: CalledProcessError where a wheel is missing, or has another hash.
    """
    target.mkdir(parents=True, exist_ok=True)
    lock = target / "requirements.txt"
    lock.write_text("".join(f"{one}\n" for one in requirements), encoding="utf-8")
    words = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--implementation", "cp"]
    words += [
        "--python-version",
        python,
        *(word for one in platforms for word in ("--platform", one)),
    ]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    subprocess.run([*pip, *words, "--dest", str(target), "--requirement", str(lock)], check=True)


def unpack(pack: Path) -> None:
    """Unpack the wheels of a pack into `site` and `site-pm` beside them, unless that was done."""
    for wheels, site in (("wheels", "site"), ("wheels-pm", "site-pm")):
        if not (pack / wheels).is_dir() or (pack / site).is_dir():
            continue
        new = pack / f"{site}.new"
        for wheel in sorted((pack / wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    member.filename = installed(member.filename)
                    if member.filename:
                        archive.extract(member, new)
        if new.is_dir():
            new.rename(pack / site)


def installed(name: str) -> str:
    """Return where a file of a wheel lies when it is installed; empty for one that is no module.

    >>> installed("a/b.py"), installed("a-1.data/purelib/c.py"), installed("a-1.data/scripts/run")
    ('a/b.py', 'c.py', '')
    """
    found = re.match(r"[^/]+\.data/(\w+)/(.*)", name)
    if found is None:
        return name
    return found[2] if found[1] in ("purelib", "platlib") else ""


def bundle(pack: Path, target: Path, part_mib: int) -> list[Path]:
    """Write sources and wheels into an archive, or its parts `NAME.00`, `NAME.01` ...; return
    the files.
    """
    with tarfile.open(target, "w") as archive:
        for name in _SOURCES:
            archive.add(REPOSITORY / name, f"gpu-day/{name}", filter=_kept)
        for name in ("wheels", "wheels-pm"):
            if (pack / name).is_dir():
                archive.add(pack / name, f"gpu-day/dist/gpu-day/{name}", filter=_kept)
    for old in target.parent.glob(f"{target.name}.[0-9][0-9]"):
        old.unlink()
    if not part_mib:
        return [target]
    parts: list[Path] = []
    with target.open("rb") as whole:
        while content := whole.read(part_mib * _MIB):
            parts.append(target.with_name(f"{target.name}.{len(parts):02d}"))
            parts[-1].write_bytes(content)
    target.unlink()
    return parts


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in member.name:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> int:
    """Make the pack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python-version", default="3.12", metavar="X.Y", help="Python of that machine (3.12)"
    )
    parser.add_argument(
        "--platform",
        action="append",
        default=[],
        help="of its wheels; repeatable (manylinux, x86_64)",
    )
    parser.add_argument(
        "--without", default="", metavar="NAMES", help="packages that the machine has, with commas"
    )
    parser.add_argument("--out", type=Path, default=PACK, metavar="DIR")
    parser.add_argument(
        "--part-mib", type=int, default=0, metavar="N", help="cut the archive into parts of N MiB"
    )
    arguments = parser.parse_args()
    python, platforms = arguments.python_version, arguments.platform or _PLATFORMS
    without = [name for name in arguments.without.split(",") if name]
    run, dev = (
        (REPOSITORY / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
        for name in ("run", "dev")
    )
    usual = [*locked(run, python=python, without=[*without, "flit-core"])]
    usual += locked(dev, python=python, without=without, only=_CUDA)
    download(usual, arguments.out / "wheels", python=python, platforms=platforms)
    of_pm = (HERE / "pm-sampling.txt").read_text(encoding="utf-8")
    download(
        list(locked(of_pm, python=python)),
        arguments.out / "wheels-pm",
        python=python,
        platforms=platforms,
    )
    target = arguments.out.with_name(f"{arguments.out.name}.tar")
    for file in bundle(arguments.out, target, arguments.part_mib):
        sys.stdout.write(f"{file.stat().st_size / _MIB:7.1f} MiB  {file.name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
