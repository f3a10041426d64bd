"""Names that users chose, in every figure that shows some: no exception, no warning, a label
that can be read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from study_of import study_of

from tachograph.annexes.lab.figures import arithmetic_intensity, style
from tachograph.annexes.lab.figures.arithmetic_intensity import MOST_MODELS
from tachograph.annexes.lab.figures.style import NO_NAME, drawn_name

NAMES = ("$x^{2$", "$\\frac{a}$", "_hidden", "__", "", "  ", "a\nb\tc", "\x1b[2J", "\u202egnp.exe", "训练", "🚀",
         "<script>", "&amp;", "%s{0}", "x" * 100_000)  # fmt: skip


def texts(figure: Figure) -> Iterator[str]:
    for text in figure.findobj(Text):
        yield text.get_text()


@pytest.mark.parametrize("third", range(3))
def test_models(third: int) -> None:
    """Models come from tables of a site; as many as there are lines have a legend."""
    names = NAMES[third::3]
    assert len(names) <= MOST_MODELS
    jobs = [{"gpu_model": name, "intensity_histogram": [1] * 128} for name in names]
    figure = arithmetic_intensity.draw(arithmetic_intensity.compute(study_of(*jobs)))
    style.render(figure, ["svg"])
    labels = {text.removesuffix(" (no ridge: peaks not known)") for text in texts(figure)}
    assert {drawn_name(name) for name in names} <= labels


def test_labels() -> None:
    assert [drawn_name(name) for name in ("", " ", None)] == [NO_NAME] * 3
    assert drawn_name("_x") == " _x"
    assert drawn_name("训\x1b") == "\\u8bad\\x1b"
    assert drawn_name("$x$") == "$x$"
    assert len(drawn_name("x" * 100_000)) == 40
