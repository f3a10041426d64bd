"""The documentation that a server has: no link of a page leads nowhere; and what does."""

from __future__ import annotations

import re
from urllib.parse import urldefrag, urljoin

from starlette.testclient import TestClient

_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(address: str, text: str) -> set[str]:
    """Return the pages of this server that a page links to, by their whole addresses."""
    targets = _LINK.findall(_CODE.sub("", text))
    return {urldefrag(urljoin(address, target)).url for target in targets if ":" not in target}


def test_every_link_of_every_page_leads_to_a_page(admin: TestClient) -> None:
    first = "/llms.txt"
    waiting, broken, texts = [(first, "")], [], {}
    while waiting:
        address, source = waiting.pop()
        answer = admin.get(address)
        if answer.status_code != 200:
            broken.append(f"{source}: {address}")
            continue
        texts[address] = answer.text
        if answer.headers["content-type"].startswith("text/markdown"):
            unread = links(address, answer.text) - texts.keys() - {link for link, _ in waiting}
            waiting += [(link, address) for link in sorted(unread)]
    assert broken == []
    assert len(texts) > 50
    assert "/docs/index.md" not in texts  # nothing links to it, so it is read here
    assert links("/docs/index.md", admin.get("/docs/index.md").text) <= texts.keys()


def test_files_of_the_sources_are_named(admin: TestClient) -> None:
    page = admin.get("/docs/attribution.md").text
    assert "`contrib/slurm/gpu-map.sh`" in page
    assert "contrib/slurm/gpu-map.sh` of the sources" not in page
    page = admin.get("/docs/install.md").text
    assert "first page (`README.md` of the sources)" in page


def test_an_address_without_a_page_is_named_and_leads_back(admin: TestClient) -> None:
    answer = admin.get("/nothing/here", headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "No page /nothing/here." in answer.text
    assert '<a href="/">Start</a>' in answer.text
    assert admin.get("/docs/absent.md").status_code == 404
