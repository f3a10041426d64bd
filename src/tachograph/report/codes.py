"""The names of everything that is looked for, as far as the program knows them; a site's own rules are in its lake."""

from __future__ import annotations

from tachograph import advice


def known_codes() -> tuple[str, ...]:
    """Return codes of findings, those of advice first.

    >>> "hung" in known_codes()
    True
    """
    return tuple(dict.fromkeys(advice.CODES))
