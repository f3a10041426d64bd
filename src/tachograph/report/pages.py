"""What all pages are made with: the templates of this folder, in which everything that users write is escaped."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment() -> Environment:
    """Return a new environment of the templates; a name that a template does not get is an error."""
    return Environment(
        loader=PackageLoader("tachograph.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
