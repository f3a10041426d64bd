"""InfluxDB's line protocol: its points, and those of cc-metric-collector as a page of an exporter.

Sources: InfluxDB, "Line protocol reference"; ClusterCockpit/cc-lib, ccMessage and sinks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.sources.exposition import ESCAPES

COLLECTOR_PREFIX = "cc:"  # before its metrics, whose names, such as mem_total, may be anybody's
_POINT = re.compile(r"((?:\\.|[^\\ ])+) ((?:\"(?:\\.|[^\"\\])*\"|\\.|[^\\\" ])+)(?: (\d+))?\s*")
_PAIR = re.compile(r"((?:\\.|[^\\,=])+)=(\"(?:\\.|[^\"\\])*\"|(?:\\.|[^\\,])*)")
_ESCAPED = re.compile(r"\\(.)")
_WHOLE = re.compile(r"(-?\d+)[iu]", re.ASCII)
_COLLECTOR_LINE = re.compile(
    r"^[\w:.-]+,(?=\S*\bhostname=)"
    r"(?=\S*\btype=(?:node|accelerator|hwthread|core|socket|memoryDomain)\b)\S+ value=",
    re.MULTILINE,
)
_NO_WORD = re.compile(r"[^a-zA-Z0-9_]")
_INDEX = re.compile(r"\d{1,4}", re.ASCII)
# Milliseconds of a time by its digits; sinks write seconds by default.
_PER_MS = {13: 1, 16: 1_000, 19: 1_000_000}


@dataclass(frozen=True, slots=True)
class LinePoint:
    """A point. Fields: as text without quotes, and without the `i` of a whole number."""

    measurement: str
    tags: Mapping[str, str]
    fields: Mapping[str, str]
    stamp: str | None


def read_point(line: str) -> LinePoint | None:
    """Return the point of a line; None if it is none.

    >>> point = read_point('cpu,host=n\\\\ 1 busy=3i,name="a b" 17')
    >>> point.measurement, point.tags, point.fields, point.stamp
    ('cpu', {'host': 'n 1'}, {'busy': '3', 'name': 'a b'}, '17')
    """
    parts = _POINT.fullmatch(line)
    if parts is None:
        return None
    measurement, _, tags = parts[1].partition(",")
    return LinePoint(measurement, _pairs(tags), _pairs(parts[2]), parts[3])


def _pairs(text: str) -> dict[str, str]:
    return {name: _plain(value) for name, value in _PAIR.findall(text)}


def _plain(value: str) -> str:
    return _WHOLE.sub(r"\1", _ESCAPED.sub(r"\1", value.strip('"')))


def is_collector_text(head: str) -> bool:
    """Return whether cc-metric-collector wrote a text, by its tags."""
    return _COLLECTOR_LINE.search(head) is not None


def collector_page(text: str) -> bytes:
    r"""Return points of cc-metric-collector in Prometheus' format; other lines stay unreadable.

    The unit, where it is a tag, ends the name: sites may change it.

    >>> collector_page("mem_total,hostname=n1,type=node,unit=kB value=8i 1700000000\n")
    b'cc:mem_total:kB{hostname="n1",type="node"} 8 1700000000000\n'
    """
    return "\n".join(map(_page_line, text.split("\n"))).encode()


def _page_line(line: str) -> str:
    point = read_point(line.strip())
    if point is None:
        return f"? {line}" if line.strip() else ""
    labels = {_word(name): value for name, value in point.tags.items()}
    names = [_word(point.measurement), _word(labels.pop("unit", ""))]
    if labels.get("type") == "accelerator":
        device = labels.pop("type_id", "")
        labels[_device_label(device)] = device
    if labels.get("stype") == "network":
        labels["interface"] = labels.pop("stype_id", "")
    block = ",".join(f'{name}="{value.translate(ESCAPES)}"' for name, value in labels.items())
    # Events and logs have no value.
    value = point.fields.get("value", "NaN")
    stamp = "" if point.stamp is None else f" {_milliseconds(point.stamp)}"
    return f"{COLLECTOR_PREFIX}{':'.join(filter(None, names))}{{{block}}} {value}{stamp}"


def _word(text: str) -> str:
    return _NO_WORD.sub("_", text)


def _device_label(device: str) -> str:
    """Return what an accelerator is called by: index, PCI address or UUID."""
    if _INDEX.fullmatch(device):
        return "gpu"
    return "pci_bus_id" if ":" in device else "uuid"


def _milliseconds(stamp: str) -> int:
    per_ms = _PER_MS.get(len(stamp))
    return int(stamp[:30]) * 1000 if per_ms is None else int(stamp) // per_ms
