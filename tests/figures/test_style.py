from __future__ import annotations

from io import BytesIO

import matplotlib.image
import pytest

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.registry import FORMATS


@pytest.mark.parametrize("width", [style.COLUMN_IN, style.PAGE_IN])
def test_nothing_is_cut_off_at_the_border(width: float) -> None:
    with style.style():
        figure, (axes,) = style.new_figure(width, 2.0)
        axes.set_yticks([0, 1], ["memory temperature", "Ärger with low letters gjpqy"])
        axes.set_title("to the right", loc="right")
    drawing = style.render(figure, ["png"])["png"]
    drawn = matplotlib.image.imread(BytesIO(drawing))[..., :3]
    assert drawn.min() < 0.5
    for border in (drawn[:, :3], drawn[:, -3:], drawn[:3], drawn[-3:]):
        assert border.min() > 0.9


def test_every_format_has_the_same_figure_twice() -> None:
    with style.style():
        figure, (axes,) = style.new_figure(style.COLUMN_IN, 2.0)
        axes.plot([0, 1], [1, 0])
    once = style.render(figure)
    assert once == style.render(figure)
    assert once["pdf"].startswith(b"%PDF")
    assert b"/FontFile2" in once["pdf"]
    assert b"<text" not in once["svg"]


def test_a_figure_is_drawn_once_per_format() -> None:
    with style.style():
        figure, _ = style.new_figure(style.COLUMN_IN, 2.0)
    draws: list[object] = []
    figure.canvas.mpl_connect("draw_event", draws.append)
    style.render(figure)
    assert len(draws) == len(FORMATS)


def test_a_label_that_is_added_later_gets_its_space() -> None:
    with style.style():
        figure, (axes,) = style.new_figure(style.COLUMN_IN, 2.0)
        figure.draw_without_rendering()
        before = axes.bbox.x0
        axes.set_yticks([0, 1], ["memory temperature", "GPU temperature"])
        figure.draw_without_rendering()
    assert axes.bbox.x0 > before
    assert figure.get_tightbbox().x0 > 0


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.02, 40.0, ["0.03", "0.1", "0.3", "1", "3", "10", "30"]),
        (0.9, 4.0, ["1", "1.5", "2", "3"]),
        (0.5, 2e6, ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000"]),
    ],
)
def test_logarithmic_axes_have_ticks_at_round_numbers(
    low: float, high: float, ticks: list[str]
) -> None:
    with style.style():
        figure, (axes,) = style.new_figure(style.COLUMN_IN, 2.0)
        style.log_axis(axes, "x", low, high)
        figure.draw_without_rendering()
    shown = [
        label.get_text()
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= place <= high
    ]
    assert shown == ticks
