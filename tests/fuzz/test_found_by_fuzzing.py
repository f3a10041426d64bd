"""What `make fuzz` found once: each of these bytes broke a reader, with something else than one
line to its user.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fuzz_targets import MAPPING, Target, targets

from own_time import own_seconds
from tachograph.catalog.errors import TachographError

DIGITS = b"9" * 5000
DEEP = b"[" * 30_000
ROW = b'{"timestamp": 1776204532000, "hostname": "n1", "gpu_id": 0, "fb_used": %s}'
ANSWER = (
    b'{"status":"success","data":{"resultType":"vector","result":[{"metric":%s,"value":[7,"0"]}]}}'
)
NVTX = (
    b'"ID","Kernel Name","thread Domain:Push/Pop_Range:PL_Type","Section Name","Metric Name","Metric Unit",'
    b'"Metric Value"\n"0","k","%s","GPU Speed Of Light Throughput","Duration","second","1"\n'
)
GRID = (
    b'"ID","Kernel Name","launch__grid_dim_x","launch__grid_dim_y","launch__grid_dim_z"\n"","","Gblock","",""\n'
    b'"0","k","1e308","1","1"\n'
)
FOUND = {
    "bytes that are no text": ("ldms json", b'{"":"","":"","":[""],"":"","\x97"'),
    "the same, in a proposal": ("table suggest", b'{"":"","":"","":"\xff"'),
    "a number with too many digits": ("table json", b"[" + ROW % DIGITS + b', {"": "\\ud800"}]'),
    "half a surrogate pair as a value": ("ldms json", b"[" + ROW % b'"\\ud800"' + b"]"),
    "half a surrogate pair among numbers": (
        "table json",
        b"[" + ROW % b"1" + b"," + ROW % b'"\\uDC00"' + b"]",
    ),
    "half a surrogate pair as a name": ("ldms json", b'[{"\\ud800": 1, "\\ud801": []}]'),
    "half a surrogate pair in a line": ("table suggest", b'{"a": 1}\n{"a": "\\ud800"}\n'),
    "half a surrogate pair in bytes": ("ldms json", b"[" + ROW % b'"\xed\xa0\x80"' + b"]"),
    "a year that Python does not have": (
        "ldms json",
        b'[{"timestamp": "-0001-01-01 00:00:00", "hostname": "n1", "gpu_id": 0, "fb_used": 1}]',
    ),
    "a mark of a header alone": ("nvidia-smi", b"#"),
    "a heading of spaces": ("nvidia-smi without header", b"a" + b" " * 60_000 + b"b, 1, x\n"),
    "digits in a mapping": ("mapping", b"table = " + DIGITS),
    "brackets in a mapping": ("mapping", b"columns = " + DEEP),
    "digits in the configuration": ("configuration", b"lake = " + DIGITS),
    "brackets in the configuration": ("configuration", b"lake = " + DEEP),
    "a map with two kinds of separators": ("allocation-map", b"job_id,node,;gpu,,,\n2,,,,,"),
    "a map with blanks in quotes": ("allocation-map", b'job_id,node," gpu"\n1,n1,0\n'),
    "labels that are no texts": ("prometheus answers", ANSWER % b'{"a": 8}'),
    "labels in bytes that are no text": ("prometheus answers", ANSWER % b'{"a": "\xed\xa0\x80"}'),
    "labels that are none": ("prometheus answers", ANSWER % b"0.5"),
    "an answer of brackets": ("prometheus answers", b'{"a":' * 30_000),
    "an export of brackets": ("prometheus answers", b'{"metric":' + b'{"a":' * 30_000),
    "seconds without end": (
        "ldms json",
        b'{"1": [{"Floored Relative Time": 1e16, "fb_used": 1}, {"Floored Relative Time": 0}]}',
    ),
    "an expression of brackets": ("mapping", MAPPING.replace(b"(nid", b"(" * 3000 + b"nid")),
    "an expression repeated too often": (
        "mapping",
        MAPPING.replace(b"(nid", b"a{99999999999}(nid"),
    ),
    "a map whose header breaks off": ("allocation-map", b"job_id,node,gpu\x0c;;;;;\n1;;;;;\n"),
    "a header of many names": ("table csv", b"n1," * 9_900 + b"\n"),
    "a summary whose rows end before their number": (
        "nsight details",
        b'"Kernel Name",e,"Metric Name",M,"Metric Value","",,"Invocations",""\n"0""",,d,,',
    ),
    "ranges of many quotes": ("nsight details", NVTX % (b'""' * 40_000)),
    "ranges of many colons": ("nsight details", NVTX % (b'""' + b":" * 60_000)),
    "instances far behind a number": (
        "nsight details",
        NVTX.replace(b'"1"', b'"1' + b" " * 60_000 + b'x (1)"') % b"",
    ),
    "a metric that overflows with its unit": (
        "nsight details",
        NVTX.replace(b'"1"', b'"1e308"') % b"",
    ),
    "a metric whose name is no text": (
        "nsight raw",
        b'"ID","Kernel Name","sm__a\xdb"\n"","","%"\n"0","k","x"\n',
    ),
    "a device whose name is no text": (
        "nsight raw",
        b'"ID","Kernel Name","Device","sm__a"\n"","","",""\n0,k,\xdb,1\n',
    ),
    "a grid that is no number of blocks": (
        "nsight raw",
        GRID,
    ),
    "digits in a calibration": ("calibration", b"gpu = " + DIGITS),
    "brackets in a calibration": ("calibration", b"gpu = " + DEEP),
    "a name of many brackets": (
        "table suggest",
        b'[{"timestamp": 1, "nid": "n1", "byt' + b"[" * 60_000 + b'": 1}]',
    ),
}


@pytest.fixture(scope="module")
def readers() -> dict[str, Target]:
    return {target.name: target for target in targets(Path(os.devnull))}


@pytest.mark.parametrize("case", FOUND)
def test_it_is_read_or_refused_in_one_line_and_at_once(
    case: str, readers: dict[str, Target], tmp_path: Path
) -> None:
    name, content = FOUND[case]
    path = tmp_path / f"found{readers[name].suffix}"
    path.write_bytes(content)
    printed = []

    def read() -> None:
        try:
            readers[name].read(path, True)
        except TachographError as problem:
            printed.append(str(problem))

    assert own_seconds(read, enough=2) < 2
    assert all("\n" not in one and len(one) < 1000 for one in printed)
