"""Tables of host counters by a mapping: units, counters as they count, and what is proposed for
them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.tables import NODE_SAMPLES
from tachograph.lake.conform import conform
from tachograph.sources.table import read_file
from tachograph.sources.table.mapping import load
from tachograph.sources.table.suggest import suggest

NOW = datetime(2026, 11, 1, tzinfo=UTC)
MAPPING = """
table = "node_samples"
time.column = "time"
node.column = "host"
[columns]
jiffies = { to = "cpu_user_s", unit = "jiffy" }
sys_ms = { to = "cpu_system_s", unit = "ms" }
total = { to = "memory_total_mib", unit = "KiB" }
rx = { to = "network_rx_bytes", unit = "MiB" }
read = { to = "fs_read_bytes", unit = "GB" }
load = "load_average"
"""


def _rows(file: Path, mapping: str) -> list[dict[str, Any]]:
    toml = file.with_suffix(".toml")
    toml.write_text(mapping)
    (chunk,) = read_file(file, load(toml))
    (part,) = chunk.parts
    assert part.table == "node_samples"
    frame = conform(part.frame, NODE_SAMPLES, now=NOW, units=part.units).frame
    return frame.select(
        column for column in frame.get_columns() if column.null_count() < frame.height
    ).to_dicts()


def test_units_are_those_of_the_mapping_or_of_the_cell(tmp_path: Path) -> None:
    """Jiffies and milliseconds to seconds, multiples of bytes to bytes; a unit behind a number
    wins.
    """
    file = tmp_path / "n.csv"
    file.write_text(
        "time,host,jiffies,sys_ms,total,rx,read,load\n"
        "1741082400,n1.example.org,1234,5500,263706624,2,3,1.5\n"
        "1741082430,n1.example.org,300 s,7 s,N/A,512 KiB,3.5,-\n"
    )
    one, other = _rows(file, MAPPING)
    assert one["node"] == "n1"
    assert one["cpu_user_s"] == pytest.approx(12.34)
    assert one["cpu_system_s"] == pytest.approx(5.5)
    assert one["memory_total_mib"] == pytest.approx(263706624 / 1024)
    assert (one["network_rx_bytes"], one["fs_read_bytes"], one["load_average"]) == (
        2 * 1024**2,
        3e9,
        1.5,
    )
    assert (other["cpu_user_s"], other["cpu_system_s"]) == (300, 7)
    assert (other["memory_total_mib"], other["load_average"]) == (None, None)
    assert (other["network_rx_bytes"], other["fs_read_bytes"]) == (512 * 1024, 3.5e9)


def test_a_proposal_can_be_used_as_it_is(tmp_path: Path) -> None:
    """What is proposed for a table of nodes reads it; units come from the names."""
    file = tmp_path / "host.csv"
    file.write_text(
        "date,hostname,CPU user (jiffies),cpu.system_ms,MemTotal,mem_available_mib,bytes "
        "recv,tx_bytes,fan\n"
        "2025-03-04 10:00:00,n1,100,2000,1048576,300,5,6,900\n"
        "2025-03-04 10:00:00,n2,10,20,1048576,300,1,2,901\n"
        "2025-03-04 10:01:00,n1,200,3000,1048576,200,7,8,902\n"
    )
    proposed = suggest(file).text
    assert "# not recognised: fan" in proposed
    first, second, third = _rows(file, proposed)
    assert (first["cpu_user_s"], first["cpu_system_s"], first["memory_total_mib"]) == (
        1.0,
        2.0,
        1024.0,
    )
    assert (
        first["memory_available_mib"],
        first["network_rx_bytes"],
        first["network_tx_bytes"],
    ) == (300, 5, 6)
    assert (second["node"], second["cpu_user_s"], third["cpu_user_s"]) == ("n2", 0.1, 2.0)


def test_percentages_are_not_proposed_for_counters(tmp_path: Path) -> None:
    """Called like the time, but falling."""
    file = tmp_path / "host.csv"
    values = (93, 20, 50, 7)
    lines = [f"{1741082400 + 9 * step},n1,{value},{value}" for step, value in enumerate(values)]
    file.write_text("\n".join(["time,host,cpu_user,load1", *lines]))
    proposed = suggest(file).text
    assert '"load1" = "load_average"' in proposed
    assert "cpu_user_s" not in proposed
    assert "cpu_user (it decreases, so it is not a counter)" in proposed
