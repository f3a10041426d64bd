"""Reports in the format of Nsight Compute itself, read by its library in a child process.

Of a file that is cut off or damaged, the library reads the whole results before the damage, and
adds results without name and metrics.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tachograph.annexes.share.nsight.launches import LaunchReader, NcuReport
from tachograph.annexes.share.nsight.ncu_rep_child import NO_LIBRARY, NcuActionRecord
from tachograph.catalog.errors import InputError
from tachograph.catalog.processes import python_command

MAGIC = b"NVR\0"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # of compressed reports, *.ncu-repz
NOT_A_KERNEL = "not a kernel, but a range, a graph or a command list"
NO_METRICS = "no metrics"
DAMAGED = "damaged: the file may be cut off"
# As the library logs, after place and time.
_LOGGED_ERROR = re.compile(r"^[EF]\d{4} [^\]]*\] (.*)$", re.MULTILINE)
_LOG_BYTES_MAX = 1 << 20


def read_ncu_rep(path: Path, *, compressed: bool = False) -> NcuReport:
    """Return the kernels that a report holds, in its order, with every metric that has a number.

    Values are the stored ones: base units, percentages 0..100. Of a metric with instances (one per
    SM, per line of source) the value of the whole alone. What Nsight Compute measured of ranges,
    graphs and command lists is no kernel and counted under `rejects`. Attributes of the device make
    the chip and are not among the metrics. A damaged file gives what the library finds in it, and
    `problems` records the damage.

    Errors: InputError where the library is missing.
    """
    content = _ReportContent(str(path))
    with tempfile.TemporaryDirectory(prefix="tachograph-") as folder:
        # The library recognises a compressed report by its name alone, and takes no name that is
        # not UTF-8.
        link = Path(folder) / ("report.ncu-repz" if compressed else "report.ncu-rep")
        link.symlink_to(path.resolve())
        code, log = _run_child(link, content)
    export = f"ncu -i {shlex.quote(path.name)} --page raw --csv > {shlex.quote(f'{path.stem}.csv')}"
    if code == NO_LIBRARY:
        raise InputError(
            f"the library of Nsight Compute does not load: {log.strip()}",
            where=str(path),
            do=f"pip install 'tachograph[share]', or export it: {export}",
        )
    problems = []
    logged = _LOGGED_ERROR.search(log)
    if code < 0:
        died = f"the library that reads it died ({signal.strsignal(-code)})"
        problems.append(f"{died}: the file is damaged, or memory is short")
    elif code:
        problems.append(f"the library that reads it failed: {log.strip().rpartition(chr(10))[2]}")
    elif logged is not None:
        problems.append(f"parts of it are damaged, their metrics are missing: {logged[1]}")
    elif not content.results:
        exported = f"export it with the Nsight Compute that wrote it: {export}"
        problems.append(f"it contains no results; if it should: {exported}")
    return NcuReport(str(path), tuple(content.launches), content.rejects.rejects(), tuple(problems))


def _run_child(report: Path, content: _ReportContent) -> tuple[int, str]:
    """Fill `content`; return the exit code and what the library wrote."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            python_command("tachograph.annexes.share.nsight.ncu_rep_child", str(report)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,  # not a pipe: the library may write more than a pipe holds
        )
        with child:
            for record in _records(child.stdout or ()):
                content.take(record)
        log.seek(0)
        return child.returncode, log.read(_LOG_BYTES_MAX).decode(errors="replace")


def _records(lines: Iterable[bytes]) -> Iterator[NcuActionRecord]:
    """Yield the records of the child, up to the first that is not whole."""
    decoder = msgspec.json.Decoder(NcuActionRecord)
    for line in lines:
        if line.endswith(b"\n"):
            yield decoder.decode(line)


@dataclass(slots=True)
class _ReportContent(LaunchReader):
    """Launches and rejects of a file so far; `results`: their number."""

    results: int = 0
    _names: list[str] = field(default_factory=list)

    def take(self, record: NcuActionRecord) -> None:
        """Add one result: a launch, or the reason for rejecting it."""
        number, self.results = self.results, self.results + 1
        if record.names is not None:
            self._names = list(map(sys.intern, record.names))
        values = zip(self._names, record.values, strict=True)
        metrics = {name: value for name, value in values if value is not None}
        if not record.is_kernel:
            self.rejects.add(NOT_A_KERNEL, None, record.kernel)
        elif not metrics:
            self.rejects.add(NO_METRICS if record.kernel else DAMAGED, None, record.kernel)
        else:
            device = record.device or None
            self.add(record.kernel, number, metrics, device=device, ranges=record.ranges)
