"""What a machine without network needs for the day: wheels of its Python, this package, and the day
itself.

    python research/gpu-day/day_pack.py --python-version 3.12

Wheels are those of the locks, with their hashes, and only those that measuring needs: the rest is
for the analysis, on another machine. DIR gets `wheels/`, the kernels of the bench as machine code,
so that no compiler is needed, and for PM sampling `wheels-pm/`: cupti-python needs another version
of cuda-bindings. Beside it are two archives: `gpu-day.tar` and `gpu-day-pm.tar`.
"""

from __future__ import annotations

import argparse
import re
import shutil
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
MOST_MIB = 55  # of an archive
# what measuring needs, of the lock that runs everything, and of that for development
_RUN = (
    "markdown-it-py",
    "mdurl",
    "msgspec",
    "numpy",
    "nvidia-ml-py",
    "pygments",
    "rich",
    "typing-extensions",
)
_CUDA = ("cuda-bindings", "cuda-core", "cuda-pathfinder")
_SHARED = ("numpy",)  # of both sets of wheels the same version
_ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_SOURCES = ("src", "research", "Makefile", "LICENSE")
_PM_WHEELS = "wheels-pm"


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


def compile_for(architectures: Sequence[str], folder: Path) -> None:
    """Write the kernels of the bench as machine code. Errors: TachographError without NVRTC."""
    from microbench.cuda_device import compile_kernels, cubin_name

    folder.mkdir(parents=True, exist_ok=True)
    for arch in architectures:
        (folder / cubin_name(arch)).write_bytes(compile_kernels(arch).image)


def bundle(pack: Path, target: Path) -> list[Path]:
    """Write the archives: sources, wheels and kernels in one, wheels of PM sampling in another."""
    of_pm = target.with_name(f"{target.stem}-pm{target.suffix}")
    with tarfile.open(target, "w") as archive:
        for name in _SOURCES:
            archive.add(REPOSITORY / name, f"gpu-day/{name}", filter=_kept)
        for cubin in sorted((pack / "kernels").glob("*.cubin")):
            archive.add(cubin, f"gpu-day/research/microbench/{cubin.name}", filter=_kept)
        _add_wheels(archive, pack, "wheels")
    with tarfile.open(of_pm, "w") as archive:
        _add_wheels(archive, pack, _PM_WHEELS)
    return [target, of_pm]


def _add_wheels(archive: tarfile.TarFile, pack: Path, name: str) -> None:
    if (pack / name).is_dir():
        archive.add(pack / name, f"gpu-day/dist/gpu-day/{name}", filter=_kept)


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
    parser.add_argument("--out", type=Path, default=PACK, metavar="DIR")
    arguments = parser.parse_args()
    python, platforms = arguments.python_version, arguments.platform or _PLATFORMS
    requirements = REPOSITORY / "requirements"
    run, dev = ((requirements / f"{name}.txt").read_text("utf-8") for name in ("run", "dev"))
    of_pm = (HERE / "pm-sampling.txt").read_text("utf-8")
    usual = [*locked(run, python=python, only=_RUN), *locked(dev, python=python, only=_CUDA)]
    for name, wanted in (
        ("wheels", usual),
        (_PM_WHEELS, list(locked(of_pm, python=python, without=_SHARED))),
    ):
        shutil.rmtree(arguments.out / name, ignore_errors=True)  # nothing of an earlier pack
        download(wanted, arguments.out / name, python=python, platforms=platforms)
    sys.path.insert(0, str(REPOSITORY / "research"))
    compile_for(_ARCHITECTURES, arguments.out / "kernels")
    large = False
    for file in bundle(arguments.out, arguments.out.with_name(f"{arguments.out.name}.tar")):
        size = file.stat().st_size / _MIB
        large |= size > MOST_MIB
        sys.stdout.write(f"{size:7.1f} MiB  {file.name}\n")
    if large:
        sys.stderr.write(f"an archive is larger than {MOST_MIB} MiB: leave out some wheels\n")
    return int(large)


if __name__ == "__main__":
    raise SystemExit(main())
