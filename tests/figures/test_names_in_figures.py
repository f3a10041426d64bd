"""Names that users chose, in every figure that shows some: no exception, no warning, a label
that can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from tachograph.annexes.lab.figures import radar, style
from tachograph.annexes.lab.figures.names import NO_NAME, drawn_name

NAMES = ("$x^{2$", "$\\frac{a}$", "_hidden", "__", "", "  ", "a\nb\tc", "\x1b[2J", "\u202egnp.exe", "训练", "🚀",
         "<script>", "&amp;", "%s{0}", "x" * 100_000)  # fmt: skip
_AXES = ("sm_active", "tensor_active", "dram_active", "gr_engine_active", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s",
         "fp64_active", "tensor_dfma_active")  # fmt: skip


def jobs(names: Sequence[str]) -> pl.DataFrame:
    means = {f"{name}_mean": 0.3 for name in (*_AXES, "gpu_util")}
    return pl.DataFrame(
        [
            {"job_key": str(place), "job_id": str(place), "display_id": name, "user": name, "account": name,
             "partition": name, "workload": "idle", "gpu_hours": 1.0 + place, **means}
            for place, name in enumerate(names)
        ]
    )  # fmt: skip


def texts(figure: Figure) -> Iterator[str]:
    for one in figure.findobj(Text):
        yield one.get_text()


@pytest.mark.parametrize("names", [NAMES[:12], NAMES[-1:]], ids=["twelve", "long"])
def test_radar(names: Sequence[str], tmp_path: Path) -> None:
    figure = radar.draw(radar.compute(jobs(names), by="user"))
    style.save(figure, tmp_path, "radar", ["svg"])
    assert {drawn_name(name, most=24) for name in names} <= set(texts(figure))


def test_labels() -> None:
    assert [drawn_name(name) for name in ("", " ", None)] == [NO_NAME] * 3
    assert drawn_name("_x") == " _x"
    assert drawn_name("训\x1b") == "\\u8bad\\x1b"
    assert drawn_name("$x$") == "$x$"
    assert len(drawn_name("x" * 100_000)) == 40
