"""Templates and styles of all pages; text from users is always escaped."""

from __future__ import annotations

import re

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tachograph.catalog.columns import local_time
from tachograph.catalog.units import capitalized, gpu_hours_text, printable_lines, text

STATIC = ("tachograph.report", "static")  # styles and scripts of pages, served or in files
_PERCENT = re.compile(r"(?<=\d) (?=%)")
_CODE = re.compile("`([^`]+)`")


def environment(package: str = "tachograph.report") -> Environment:
    """Return a Jinja environment with the templates of a package, then those of reports.

    Pages in files include styles and scripts as templates. Undefined variables are errors.
    """
    packages = dict.fromkeys((package, "tachograph.report"))
    made = Environment(
        loader=ChoiceLoader([*map(PackageLoader, packages), PackageLoader(*STATIC)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=unbroken,
    )
    made.filters.update(
        quantity=text,
        gpu_hours=gpu_hours_text,
        local_time=local_time,
        capitalize_first=capitalized,
        with_code=with_code,
    )
    return made


def with_code(sentence: str) -> Markup:
    """Return a sentence as HTML, in which what stands between backticks is code.

    >>> with_code("run `tachograph jobs`, <b>")
    Markup('run <code>tachograph jobs</code>, &lt;b&gt;')
    """
    escaped = str(escape(unbroken(sentence)))  # of Markup, sub would escape the tags
    return Markup(_CODE.sub(r"<code>\1</code>", escaped))


def unbroken(value: object) -> object:
    r"""Return printable text with non-breaking spaces between numbers and percent signs.

    >>> unbroken("56 % of 3 GPUs"), unbroken(0.56)
    ('56\xa0% of 3 GPUs', 0.56)
    >>> unbroken("name\x1b[31m")
    'name\\x1b[31m'
    """
    if type(value) is not str:  # not Markup: drawings
        return value
    # Most of the thousands of texts of a page are plain.
    shown = value if value.isascii() and value.isprintable() else printable_lines(value)
    return _PERCENT.sub("\N{NO-BREAK SPACE}", shown) if "%" in shown else shown
