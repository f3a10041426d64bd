"""What all pages are made with."""

from __future__ import annotations

from markupsafe import Markup

from tachograph.report.pages import environment, unbroken


def test_no_line_parts_a_percent_sign_from_its_number() -> None:
    page = environment().from_string("{{ sentence }} {{ drawn }} {{ count }} {{ user }}")
    shown = page.render(
        sentence="in 56 % of 7.5 % cases", drawn=Markup("<b>3 %</b>"), count=4, user="<i>9 %"
    )
    assert shown == "in 56\xa0% of 7.5\xa0% cases <b>3 %</b> 4 &lt;i&gt;9\xa0%"


def test_other_text_stays() -> None:
    for value in ("a % b", "%", "5%", "5  %", "", None, 0.5):
        assert unbroken(value) == value
