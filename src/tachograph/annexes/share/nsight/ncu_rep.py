"""Reports in the format of Nsight Compute itself, read by its library in a child process.

Of a file that is cut off or damaged, the library reads the whole results before the damage, and
adds results without name and metrics.
"""

from __future__ import annotations

import math
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import msgspec

from tachograph.annexes.share.nsight.launches import (
    DEVICE_ATTRIBUTE,
    Chip,
    Launch,
    NcuReport,
    RejectCounter,
    capability_of,
    size_from_metrics,
)
from tachograph.annexes.share.nsight.ncu_rep_child import LENGTH, NO_LIBRARY, NcuActionRecord
from tachograph.catalog.errors import InputError, unreadable
from tachograph.catalog.processes import python_command

MAGIC = b"NVR\0"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # of compressed reports, *.ncu-repz
NOT_A_KERNEL = "not a kernel"
NO_METRICS = "no metrics"
DAMAGED = "damaged"
# WorkloadType_* of the library.
_WORKLOADS = {1: "a range", 2: "a command list", 3: "a graph", 4: "a subgrid schedule"}
# As the library logs, after place and time.
_LOGGED_ERROR = re.compile(rb"^[EF]\d{4} [^\]]*\] (.*)$", re.MULTILINE)
_LOG_BYTES_MAX = 1 << 20
_EXTRA = "pip install 'tachograph[share]', or export it: ncu -i {file} --page raw --csv > {csv}"
_EXPORT = "export it with the Nsight Compute that wrote it: ncu -i {file} --page raw --csv > {csv}"


def read_ncu_rep(path: Path) -> NcuReport:
    """Return the kernels that a report holds, in its order, with every metric that has a number.

    Values are the stored ones: base units, percentages 0..100. Of a metric with instances (one per
    SM, per line of source) the value of the whole alone. What Nsight Compute measured of ranges,
    graphs and command lists is no kernel and counted under `rejects`. Attributes of the device make
    the chip and are not among the metrics. A damaged file gives what the library finds in it, and
    `problems` records the damage.

    Errors: InputError for a missing or unreadable file, another kind of file, or a missing library.
    """
    if find_spec("ncu_report") is None:
        raise InputError(
            "a .ncu-rep file needs the library of Nsight Compute",
            where=str(path),
            do=_do(_EXTRA, path),
        )
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as problem:
        raise unreadable(problem, path) from None
    if magic not in (MAGIC, ZSTD_MAGIC):
        raise InputError(
            "not a report of Nsight Compute", where=str(path), do="name files written by ncu -o"
        )
    output = _ChildOutput(path)
    with tempfile.TemporaryDirectory(prefix="tachograph-") as folder:
        # the library recognises a compressed report by its name alone, and takes no name that is
        # not UTF-8
        link = Path(folder) / ("report.ncu-rep" if magic == MAGIC else "report.ncu-repz")
        link.symlink_to(path.resolve())
        problems = _run_child(link, output) or list(_lack(output))
    return NcuReport(str(path), tuple(output.launches), output.rejects.rejects(), tuple(problems))


def _lack(output: _ChildOutput) -> Iterator[str]:
    """Yield data missing without an error message."""
    if output.damaged:
        yield (
            f"{output.damaged} of its {output.results} results are damaged: the file may be "
            "cut off; copy it again"
        )
    elif not output.results:
        yield f"it contains no results; if it should: {_do(_EXPORT, output.path)}"


def _run_child(report: Path, output: _ChildOutput) -> list[str]:
    """Fill `output`; return the error text."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            python_command("tachograph.annexes.share.nsight.ncu_rep_child", str(report)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,  # not a pipe: the library may write more than a pipe holds
        )
        with child:
            if child.stdout is None:  # a pipe was requested
                return []
            for each in _frames(child.stdout):
                output.take(each)
        log.seek(0)
        text = log.read(_LOG_BYTES_MAX)
    code = child.returncode
    if code == NO_LIBRARY:
        what = (
            f"the library of Nsight Compute does not load: {text.decode(errors='replace').strip()}"
        )
        raise InputError(what, where=str(output.path), do=_do(_EXTRA, output.path))
    if code < 0:
        return [
            (
                f"the library that reads it died ({_signal(-code)}): the file is damaged, or "
                "memory is short"
            )
        ]
    logged = [line.decode(errors="replace") for line in _LOGGED_ERROR.findall(text)]
    if code:
        last = text.decode(errors="replace").strip().rpartition("\n")[2]
        return [f"the library that reads it failed: {last}"]
    return [f"parts of it are damaged, their metrics are missing: {logged[0]}"] if logged else []


def _frames(stream: IO[bytes]) -> Iterator[NcuActionRecord]:
    """Yield the records of the child, up to the first that is not whole."""
    decoder = msgspec.msgpack.Decoder(NcuActionRecord)
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        frame = stream.read(length)
        if not length or len(frame) < length:
            return
        yield decoder.decode(frame)


@dataclass(slots=True)
class _ChildOutput:
    """Records of a file read so far."""

    path: Path
    results: int = 0
    # Results without name and metrics: what the library makes of bytes that it cannot read.
    damaged: int = 0
    launches: list[Launch] = field(default_factory=list)
    rejects: RejectCounter = field(default_factory=RejectCounter)
    _names: list[str] = field(default_factory=list)
    _chips: dict[tuple[object, ...], Chip] = field(default_factory=dict)

    def take(self, record: NcuActionRecord) -> None:
        """Add one result: a launch, or the reason for rejecting it."""
        number, self.results = self.results, self.results + 1
        if record.names is not None:
            self._names = list(map(sys.intern, record.names))
        metrics: dict[str, float] = {}
        attributes: dict[str, float] = {}
        for name, value in zip(self._names, record.values, strict=True):
            # 0 / 0 is stored as NaN.
            if value is None or not math.isfinite(value):
                continue
            if name.startswith(DEVICE_ATTRIBUTE):
                attributes[name.removeprefix(DEVICE_ATTRIBUTE)] = value
            else:
                metrics[name] = value
        if record.workload is not None:
            workload = _WORKLOADS.get(record.workload, "another workload")
            self.rejects.add(NOT_A_KERNEL, None, f"{record.kernel}: {workload}")
        elif metrics or attributes:
            self.launches.append(self._launch(record, number, metrics, attributes))
        else:
            self.damaged += not record.kernel
            self.rejects.add(NO_METRICS if record.kernel else DAMAGED, None, record.kernel)

    def _launch(
        self,
        record: NcuActionRecord,
        number: int,
        metrics: dict[str, float],
        attributes: dict[str, float],
    ) -> Launch:
        """Return the launch of a result; launches on one GPU have the same chip."""
        chip = Chip(record.device, capability_of(attributes), attributes)
        return Launch(
            kernel=sys.intern(record.kernel),
            metrics=metrics,
            chip=self._chips.setdefault((record.device, *attributes.items()), chip),
            report=str(self.path),
            number=number,
            grid=size_from_metrics(metrics, "launch__grid_dim_"),
            block=size_from_metrics(metrics, "launch__block_dim_"),
            ranges=tuple(record.ranges),
        )


def _signal(number: int) -> str:
    """Return a signal as text.

    >>> _signal(11)
    'signal 11, SIGSEGV'
    """
    try:
        return f"signal {number}, {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


def _do(advice: str, path: Path) -> str:
    return advice.format(file=shlex.quote(path.name), csv=shlex.quote(f"{path.stem}.csv"))
