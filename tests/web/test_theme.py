"""The colours that a person chooses beside those of the system."""

from __future__ import annotations

import re
from importlib.resources import files

from starlette.testclient import TestClient

from tachograph.report.pages import STATIC

SAME_SITE = {"sec-fetch-site": "same-origin"}


def choose(client: TestClient, theme: str, back: str = "/jobs?user=a%26b") -> tuple[int, str]:
    form = {"theme": theme, "next": back}
    answer = client.post("/theme", data=form, headers=SAME_SITE, follow_redirects=False)
    return answer.status_code, answer.headers.get("location", "")


def test_chosen_colours_stay_and_the_page_is_shown_again(admin: TestClient) -> None:
    assert "data-theme" not in admin.get("/jobs").text
    for theme in ("dark", "light"):
        assert choose(admin, theme) == (303, "/jobs?user=a%26b")
        assert f'<html lang="en" data-theme="{theme}">' in admin.get("/jobs").text
        assert f'value="{theme}" aria-pressed="true"' in admin.get("/jobs?user=a%26b").text
    assert 'name="next" value="/jobs?user=a%26b"' in admin.get("/jobs?user=a%26b").text
    assert choose(admin, "system")[0] == 303
    assert "data-theme" not in admin.get("/jobs").text


def test_they_lead_nowhere_else_and_are_no_markup(admin: TestClient) -> None:
    assert choose(admin, "dark", "https://other.example/") == (303, "/")
    assert choose(admin, '"><script>')[0] == 400
    admin.cookies.clear()
    admin.cookies.set("tachograph_theme", '"><script>')
    page = admin.get("/jobs").text
    admin.cookies.clear()
    assert "data-theme" not in page
    other = {"sec-fetch-site": "cross-site"}
    assert admin.post("/theme", data={"theme": "dark"}, headers=other).status_code == 403


def test_dark_is_one_set_of_colours_whoever_chose_it() -> None:
    style = (files(STATIC[0]) / STATIC[1] / "page.css").read_text()
    dark = re.findall(r":root:where\([^{]*\{([^}]*--paper[^}]*)\}", style)
    both = [sorted(re.findall(r"--[a-z0-9]+: #[0-9a-f]{6}", block)) for block in dark]
    assert len(both) == 2
    assert both[0] == both[1]
    assert len(both[0]) > 10
