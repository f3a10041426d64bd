"""Reports in the format of Nsight Compute itself, read by its library in a child process.

The library reads a truncated file without an error, and adds launches without metrics, so it is given whole parts only.
The layout is documented (Nsight Compute, Customization Guide, "Report File Format"): a magic number, a header, then
blocks of a header and its entries, every part after its length as 32 bits, little endian; headers are protobuf
messages.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TypeGuard

import msgspec

from tachograph.catalog.chunks import Reject
from tachograph.catalog.errors import InputError
from tachograph.catalog.processes import python_command
from tachograph.nsight.launches import (
    DEVICE_ATTRIBUTE,
    Chip,
    Launch,
    LaunchMetrics,
    NcuReport,
    RuleResult,
    capability_of,
    size_from_metrics,
)
from tachograph.nsight.ncu_rep_child import LENGTH, NO_LIBRARY, ActionRecord

MAGIC = b"NVR\0"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # of compressed reports, *.ncu-repz
FORMAT_MIN = 7  # earlier ones the library takes for empty
NOT_A_KERNEL = "not a kernel"
NO_METRICS = "no metrics"
DAMAGED = "damaged"  # neither name nor metrics: what the library makes of bytes that it cannot read
_WORKLOADS = {1: "a range", 2: "a command list", 3: "a graph", 4: "a subgrid schedule"}  # WorkloadType_* of the library
_LOGGED_ERROR = re.compile(rb"^[EF]\d{4} [^\]]*\] (.*)$", re.MULTILINE)  # as the library logs, after place and time
_LOG_BYTES_MAX = 1 << 20
_EXTRA = "pip install 'tachograph[nsight]', or export it: ncu -i {file} --page raw --csv > {csv}"
_EXPORT = "export it with the Nsight Compute that wrote it: ncu -i {file} --page raw --csv > {csv}"


def read_ncu_rep(path: Path) -> NcuReport:
    """Return the kernels that a report holds, in its order, with every metric that has a number.

    Values are the stored ones: base units, percentages 0..100. Of a metric with instances (one per SM, per line of
    source) the value of the whole alone. What Nsight Compute measured of ranges, graphs and command lists is no kernel
    and counted under `rejects`. Attributes of the device make the chip and are not among the metrics.
    A damaged file gives its undamaged part, and `problems` records the damage.

    Errors: InputError where there is no such file, none to be read, nothing in it, another kind of file, one of a
    Nsight Compute too old for the library, or no library.
    """
    if find_spec("ncu_report") is None:
        raise InputError("a .ncu-rep file needs the library of Nsight Compute", where=str(path), do=_do(_EXTRA, path))
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as problem:
        raise InputError(problem.strerror or str(problem), where=str(path), do="name a readable file") from None


def _read(path: Path, file: IO[bytes]) -> NcuReport:
    plan = _layout(path, file)
    broken = plan is not None and plan.whole_bytes < os.fstat(file.fileno()).st_size
    known = _ChildOutput(path)
    with tempfile.TemporaryDirectory(prefix="tachograph-") as folder:
        # the library recognises a compressed report by its name alone, and takes no name that is not UTF-8
        named = Path(folder) / ("report.ncu-repz" if plan is None else "report.ncu-rep")
        if plan is not None and broken:
            _copy_whole_part(file, plan, named)
        else:
            named.symlink_to(path.resolve())
        problems = _run_child(named, known)
    if plan is not None and broken:
        whole = f"{plan.results} of the {plan.promised} results announced up to there are whole"
        lost = whole if plan.promised else "no result is announced up to there"
        problems.insert(0, f"the file is cut off or damaged from byte {plan.whole_bytes} on: {lost}")
    if not problems:
        problems += _lack(known, plan)
    return NcuReport(str(path), tuple(known.launches), tuple(known.rejects.values()), tuple(problems))


def _lack(output: _ChildOutput, plan: NcuRepLayout | None) -> list[str]:
    """Return what is missing where no error was reported."""
    if DAMAGED in output.rejects:
        return [f"{output.rejects[DAMAGED].count} of its {output.results} results are damaged"]
    if plan is not None and output.results < plan.results:
        return [f"the library of Nsight Compute finds {output.results} of its {plan.results} results"]
    if not output.results:
        return [f"no results in it; if there should be some: {_do(_EXPORT, output.path)}"]
    return []


def _layout(path: Path, file: IO[bytes]) -> NcuRepLayout | None:
    """Return the layout of the file; None: it is compressed."""
    magic = file.read(len(MAGIC))
    if magic == ZSTD_MAGIC:
        return None
    if not magic:
        raise InputError("the file is empty", where=str(path), do="profile or copy it again")
    if magic != MAGIC:
        raise InputError("no report of Nsight Compute", where=str(path), do="name files written by ncu -o")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        plan = layout(content)
    if plan.version is not None and plan.version < FORMAT_MIN:
        what = f"its format, {plan.version}, is older than what the library of Nsight Compute reads ({FORMAT_MIN})"
        raise InputError(what, where=str(path), do=_do(_EXPORT, path))
    return plan


def _copy_whole_part(file: IO[bytes], plan: NcuRepLayout, to: Path) -> None:
    with to.open("wb") as out:
        file.seek(0)
        left = plan.whole_bytes
        while left and (part := file.read(min(left, 1 << 20))):
            out.write(part)
            left -= len(part)
        out.write(plan.rest)


def _run_child(report: Path, output: _ChildOutput) -> list[str]:
    """Fill `output` and return what went wrong, as text."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            python_command("tachograph.nsight.ncu_rep_child", str(report)),
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
        what = f"the library of Nsight Compute does not load: {text.decode(errors='replace').strip()}"
        raise InputError(what, where=str(output.path), do=_do(_EXTRA, output.path))
    if code < 0:
        return [f"the library that reads it died ({_signal(-code)}): the file is damaged, or memory is short"]
    logged = [line.decode(errors="replace") for line in _LOGGED_ERROR.findall(text)]
    if code:
        last = text.decode(errors="replace").strip().rpartition("\n")[2]
        return [f"the library that reads it failed: {last}"]
    return [f"parts of it are damaged, their metrics are missing: {logged[0]}"] if logged else []


def _frames(stream: IO[bytes]) -> Iterator[ActionRecord]:
    """Yield the records of the child, up to the first that is not whole."""
    decoder = msgspec.msgpack.Decoder(ActionRecord)
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        frame = stream.read(length)
        if not length or len(frame) < length:
            return
        yield decoder.decode(frame)


@dataclass(slots=True)
class _ChildOutput:
    """What was read of one file so far."""

    path: Path
    results: int = 0
    launches: list[Launch] = field(default_factory=list)
    rejects: dict[str, Reject] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)  # of metrics among the values of a launch
    _chips: dict[tuple[object, ...], Chip] = field(default_factory=dict)
    _rules: dict[RuleResult, RuleResult] = field(default_factory=dict)

    def take(self, found: ActionRecord) -> None:
        """Add one result: a launch, or a reason why it is none."""
        number, self.results = self.results, self.results + 1
        if found.names is not None:
            self._names = [sys.intern(name) for name in found.names]
            metrics = [name for name in self._names if not name.startswith(DEVICE_ATTRIBUTE)]
            self._places = {name: place for place, name in enumerate(metrics)}
        values = {name: value for name, value in zip(self._names, found.values, strict=True) if _is_number(value)}
        if found.workload is not None:
            self._reject(NOT_A_KERNEL, f"{found.kernel}: {_WORKLOADS.get(found.workload, 'another workload')}")
        elif not values:
            self._reject(NO_METRICS if found.kernel else DAMAGED, found.kernel)
        else:
            self.launches.append(self._launch(found, number, values))

    def _launch(self, found: ActionRecord, number: int, values: dict[str, float]) -> Launch:
        attributes = {name: value for name, value in values.items() if name.startswith(DEVICE_ATTRIBUTE)}
        return Launch(
            kernel=sys.intern(found.kernel),
            metrics=LaunchMetrics(self._places, array("d", [values.get(name, math.nan) for name in self._places])),
            chip=self._chip(found.device, attributes),
            report=str(self.path),
            number=number,
            grid=size_from_metrics(values, "launch__grid_dim_"),
            block=size_from_metrics(values, "launch__block_dim_"),
            ranges=tuple(found.ranges),
            rules=tuple(self._rules.setdefault(said, said) for said in found.rules),
        )

    def _chip(self, name: str | None, attributes: dict[str, float]) -> Chip:
        """Return the chip, the same object for all launches on it."""
        key = (name, *attributes.items())
        if key not in self._chips:
            known = {attribute.removeprefix(DEVICE_ATTRIBUTE): value for attribute, value in attributes.items()}
            self._chips[key] = Chip(name, capability_of(known), known)
        return self._chips[key]

    def _reject(self, reason: str, example: str) -> None:
        before = self.rejects.get(reason, Reject(reason, None, 0, example or None))
        self.rejects[reason] = Reject(reason, None, before.count + 1, before.example)


def _is_number(value: float | None) -> TypeGuard[float]:
    """Whether there is a value; a ratio of nothing to nothing is stored as NaN."""
    return value is not None and math.isfinite(value)


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


_VERSION = 1  # field of the file's header
_SOURCES, _RESULTS, _PAYLOAD_BYTES, _RANGE_RESULTS = 1, 2, 5, 7  # fields of a block's header
_VARINT_BITS_MAX = 64


@dataclass(frozen=True, slots=True)
class NcuRepLayout:
    """What a file holds by its own headers, up to the place from which on they no longer fit together.

    `version`: of the format, None: unknown. `results`: whole results; `promised`: those that the headers announce.
    `whole_bytes`: length of the part in which every block is whole. `rest`: bytes that make the whole results of the
    block after it a block of its own. An undamaged file: `whole_bytes` is its length, `rest` is empty.
    """

    version: int | None
    results: int
    promised: int
    whole_bytes: int
    rest: bytes = b""


def layout(report: bytes | mmap.mmap) -> NcuRepLayout:
    """Return the layout of a report that begins with MAGIC.

    >>> layout(MAGIC + b"\\x02\\0\\0\\0\\x08\\x07")
    NcuRepLayout(version=7, results=0, promised=0, whole_bytes=10, rest=b'')
    >>> layout(MAGIC + b"\\x02\\0\\0").version is None
    True
    """
    view = memoryview(report)
    head = _part(view, len(MAGIC))
    if head is None:
        return NcuRepLayout(None, 0, 0, 0)
    version = _numbers(head).get(_VERSION)
    at, results = len(MAGIC) + LENGTH.size + len(head), 0
    while (block := _part(view, at)) is not None:
        counts = _numbers(block)
        announced = counts.get(_RESULTS, 0)
        first = at + LENGTH.size + len(block)
        end = first + counts.get(_PAYLOAD_BYTES, 0)
        entries, whole_to = _entries(view, first, min(end, len(view)), counts.get(_SOURCES, 0) + announced)
        whole = max(0, entries - counts.get(_SOURCES, 0))
        if end > len(view) or whole < announced:
            rest = _block(block, counts, entries, bytes(view[first:whole_to]))
            return NcuRepLayout(version, results + whole, results + announced, at, rest)
        at, results = end, results + announced
    return NcuRepLayout(version, results, results, at)


def _entries(view: memoryview, at: int, end: int, count: int) -> tuple[int, int]:
    """Return how many of `count` entries from `at` on are whole before `end`, and where the last of these ends."""
    for number in range(count):
        if at + LENGTH.size > end:
            return number, at
        (length,) = LENGTH.unpack_from(view, at)
        if at + LENGTH.size + length > end:
            return number, at
        at += LENGTH.size + length
    return count, at


def _block(head: bytes, counts: dict[int, int], entries: int, payload: bytes) -> bytes:
    """Return a block of the first entries of another: its sources, then its results.

    Of a repeated field, the last counts: the numbers that are no longer valid are set again behind the header.
    """
    sources = min(entries, counts.get(_SOURCES, 0))
    again = {_SOURCES: sources, _RESULTS: entries - sources, _PAYLOAD_BYTES: len(payload), _RANGE_RESULTS: 0}
    head += b"".join(_field(number, value) for number, value in again.items())
    return LENGTH.pack(len(head)) + head + payload


def _part(view: memoryview, at: int) -> bytes | None:
    """Return the part that begins with its length at `at`; None: the file ends before it does."""
    if at + LENGTH.size > len(view):
        return None
    (length,) = LENGTH.unpack_from(view, at)
    at += LENGTH.size
    return bytes(view[at : at + length]) if at + length <= len(view) else None


def _numbers(message: bytes) -> dict[int, int]:
    """Return the whole numbers of a protobuf message by their field, as far as it can be read."""
    return dict(_fields(message))


def _fields(message: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 1:
                at += 8
            case 2:
                length, at = _varint(message, at)
                at += length
            case 5:
                at += 4
            case _:
                return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, at


def _field(number: int, value: int) -> bytes:
    return bytes([number << 3]) + _encoded(value)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
