"""What the search box leads to: the page of what was named, else all that is called so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.annexes.serve.search import KINDS, SearchParameters, found, only_place, place
from tachograph.annexes.serve.snapshot import View
from tachograph.api.pages import Document

_MOST = 20  # of a kind

PARAMETERS = SearchParameters


def content(view: View, parameters: SearchParameters) -> Mapping[str, Any] | Document:
    """Return what was found, or the way to the page of what was named."""
    text = parameters.q.strip()
    named = only_place(view, text) if text else "jobs"
    if named is not None:
        return Document.elsewhere(named)
    names = found(view, text, parameters.kind)
    kinds = {kind: names.filter(kind=kind).get_column("name") for kind in KINDS}
    return {
        "text": text,
        "kinds": {kind: of_kind for kind, of_kind in kinds.items() if of_kind.len()},
        "most": _MOST,
        "place": place,
    }
