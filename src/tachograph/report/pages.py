"""Templates and styles of all pages; text from users is always escaped."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from tachograph.catalog.columns import local_time
from tachograph.catalog.units import capitalized, gpu_hours_text, printable_lines, text

_PERCENT = re.compile(r"(?<=\d) (?=%)")


def environment(package: str = "tachograph.report") -> Environment:
    """Return a Jinja environment with the templates of a package, then those of reports.

    Undefined variables are errors.
    """
    packages = dict.fromkeys((package, "tachograph.report"))
    made = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=unbroken,
    )
    made.filters.update(
        quantity=text, gpu_hours=gpu_hours_text, local_time=local_time, capitalize_first=capitalized
    )
    return made


def style_sheet(name: str = "page") -> Path:
    """Return a style sheet: `page` is shared by all pages; `study` and `kernels` are for theirs."""
    return Path(__file__).parent / "templates" / f"{name}.css"


def unbroken(value: object) -> object:
    r"""Return printable text with non-breaking spaces between numbers and percent signs.

    >>> unbroken("56 % of 3 GPUs"), unbroken(0.56)
    ('56\xa0% of 3 GPUs', 0.56)
    >>> unbroken("name\x1b[31m")
    'name\\x1b[31m'
    """
    if type(value) is not str:  # not Markup: drawings
        return value
    return _PERCENT.sub("\N{NO-BREAK SPACE}", printable_lines(value))
