from __future__ import annotations

from collections.abc import Sequence

import pytest
from study_of import study_of

from tachograph.annexes.lab.figures import correlation as figure
from tachograph.annexes.lab.figures.numbers import FigureNumbers, Study

UTIL = (0.1, 0.2, 0.2, 0.9, 0.5, None)
POWER = (100.0, 150.0, 200.0, 400.0, 120.0, 300.0)
TX = (9.0, 8.0, 8.0, 1.0, None, None)
RX = (5.0, 6.0, 7.0, 1.0, 2.0, None)


def study(**columns: Sequence[float | None]) -> Study:
    rows = zip(*columns.values(), strict=True)
    return study_of(
        *({f"{name}_mean": value for name, value in zip(columns, row, strict=True)} for row in rows)
    )


def made() -> FigureNumbers:
    return figure.compute(
        study(
            gpu_util=UTIL,
            power_w=POWER,
            pcie_tx_bytes_per_s=TX,
            pcie_rx_bytes_per_s=RX,
            tensor_active=(0.0,) * 6,
            mem_temp_c=(50.0, 60.0, None, None, None, None),
        )
    )


def ranks(values: Sequence[float]) -> list[float]:
    """Return 1 + how many are smaller + half of how many others are equal."""
    return [1 + sum(v < w for v in values) + (sum(v == w for v in values) - 1) / 2 for w in values]


def rho(first: Sequence[float | None], second: Sequence[float | None]) -> float:
    both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    x, y = (ranks(values) for values in zip(*both, strict=True))
    mean = (len(both) + 1) / 2
    spread = (sum((a - mean) ** 2 for a in x) * sum((b - mean) ** 2 for b in y)) ** 0.5
    return float(sum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True)) / spread)


def test_pairs_are_those_of_plain_ranks() -> None:
    numbers = made()
    values = {
        "gpu_util": UTIL,
        "power_w": POWER,
        "pcie_tx_bytes_per_s": TX,
        "pcie_rx_bytes_per_s": RX,
    }
    rows = numbers.tables["pairs"].to_dicts()
    assert len(rows) == 6
    for row in rows:
        first, second = values[row["counter"]], values[row["other"]]
        assert row["rho"] == pytest.approx(rho(first, second))
        assert row["jobs"] == sum(
            a is not None and b is not None for a, b in zip(first, second, strict=True)
        )
    counters = numbers.tables["counters"].to_dicts()
    assert [row["counter"] for row in counters] == [
        "gpu_util",
        "pcie_tx_bytes_per_s",  # -1: the sign does not count
        "pcie_rx_bytes_per_s",  # as close as power, and before it in the catalogue
        "power_w",
    ]
    assert [row["jobs"] for row in counters] == [5, 4, 5, 6]
    assert numbers.facts["constant"] == "tensor_active"
    assert numbers.facts["too_few_jobs"] == "mem_temp_c"


def test_what_is_said() -> None:
    assert figure.sentences(made()) == (
        (
            "Utilisation correlates most closely with PCIe TX (−1.00), PCIe RX "
            f"(−{-rho(UTIL, RX):.2f}) and "
            f"power ({rho(UTIL, POWER):.2f}): Spearman's rho over 4 to 5 jobs."
        ),
        "|rho| with utilisation is at least 0.7 for 1 of 3 other counters.",
        f"PCIe TX and RX have a rho of {rho(TX, RX):.2f} (4 jobs).",
    )


def test_strong_pairs_are_written_and_left_out_counters_named() -> None:
    drawn = figure.draw(made())
    texts = [text.get_text() for text in drawn.axes[0].texts]
    strong = [row["rho"] for row in made().tables["pairs"].to_dicts() if abs(row["rho"]) >= 0.7]
    assert sorted(text for text in texts if text != "–") == sorted(
        f"{r:.2f}".replace("-", "−") for r in strong
    )
    assert (
        drawn.get_supxlabel()
        == "Numbers: |rho| of at least 0.7; –: other cells of -0.1 and below.\n"
        + (
            (
                "left out: tensor activity (the same in all jobs), memory temperature (in fewer "
                "than 3 jobs)"
            ).replace("),", ");")
        )
    )


def test_nothing_to_draw() -> None:
    three = (0.1, 0.2, 0.3)
    for made_up, why in (
        (study_of(), "no jobs"),
        (study(gpu_util=(0.5, 0.6), power_w=(1.0, 2.0)), "fewer than 3 jobs"),
        (study(power_w=three), "not measured: gpu_util (mean)"),
        (study(gpu_util=(0.5,) * 3, power_w=three), "utilisation is the same in all jobs"),
        (
            study(gpu_util=(0.5, 0.6, None), power_w=three),
            "utilisation measured in fewer than 3 jobs",
        ),
        (study(gpu_util=three, power_w=(1.0,) * 3), "no other counter that differs between jobs"),
    ):
        numbers = figure.compute(made_up)
        assert not numbers.tables
        assert numbers.missing["pairs"] == why
        assert figure.sentences(numbers) == ()
