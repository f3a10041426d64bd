"""What was meant: the names closest to a misspelt one, and why a document does not fit its type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin

Fields = Callable[[Any], Mapping[str, Any]]
_KINDS: Mapping[str, str] = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "a table of names and values",
    "str": "text",
}
_NEAR = 0.7  # share of letters in the same order: 0.75 if two of four changed places
_PREFIX = 2  # letters that are enough for the beginning of a name
_COMPARED = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def did_you_mean(
    name: str,
    known: Iterable[str] | Mapping[str, str],
    *,
    otherwise: str = "",
    form: str = "{}",
    most: int = 1,
) -> str:
    """Return the known names closest to `name` as a question; `otherwise` where none is near.

    Near is a name that begins with it, and one of which it is a misspelling.

    `known`: the names, or {name: replacement}. `form`: format of a name. `most`: limit of names.

    >>> did_you_mean("limt", ["limit", "sort"], form="--{}"), did_you_mean("x", ["limit"], otherwise="see --help")
    ('did you mean --limit?', 'see --help')
    """
    import difflib  # only where something is misspelt: the help of the program imports this module

    names = known if isinstance(known, Mapping) else {entry: entry for entry in known}
    written = {entry.lower(): names[entry] for entry in reversed(list(names))}
    spellings = list(reversed(written))
    close = difflib.get_close_matches(name.lower(), spellings, n=most, cutoff=_NEAR)
    if not close and len(name) >= _PREFIX:
        close = [spelling for spelling in spellings if spelling.startswith(name.lower())][:most]
    suggestions = dict.fromkeys(form.format(written[entry]) for entry in close)
    return f"did you mean {' or '.join(suggestions)}?" if close else otherwise


def fields_of(kind: Any) -> Mapping[str, Any]:
    """Return {name as written: type} of the fields of a struct; {} for any other type."""
    from msgspec.structs import fields

    if not hasattr(kind, "__struct_fields__"):
        return {}
    return {field.encode_name: field.type for field in fields(kind)}


def explain_misfit(message: str, kind: Any, *, fields: Fields = fields_of) -> tuple[str, str]:
    """Return why a document does not fit `kind`, in words, and what to write, or "".

    message: of msgspec's ValidationError. fields: those of a struct that may be written.

    >>> explain_misfit("Expected `int`, got `str` - at `$.port`", None)
    ('port must be a whole number, not text', '')
    >>> explain_misfit("Expected `array` of length >= 2 - at `$.job`", None)
    ('job must be a list of at least 2 entries', '')
    >>> explain_misfit("Object contains unknown field `a` - at `$.b[0]`", None)
    ("b[0]: unknown field 'a'", '')
    """
    what, _, path = message.partition(" - at ")
    path = path.strip("`$.")
    subject, prefix = (path, f"{path}: ") if path else ("it", "")
    inner = _type_at(kind, path, fields)
    if unknown := re.search(r"unknown field `(.+)`", what):
        names = list(fields(inner))
        listed = f"use one of: {', '.join(names)}" if names else ""
        do = did_you_mean(unknown[1], names, otherwise=listed)
        return f"{prefix}unknown field {unknown[1]!r}", do
    if missing := re.search(r"missing required field `(.+)`", what):
        return f"{subject} needs '{missing[1]}'", ""
    if invalid := re.search(r"Invalid enum value (.+)", what):
        choices = ", ".join(map(str, get_args(inner)))
        return f"{subject} cannot be {invalid[1]}", f"use one of: {choices}" if choices else ""
    expected = re.fullmatch(r"Expected `(.+?)`(?: (.+?))?(?:, got `(.+)`)?", what)
    if expected is None:
        return f"{prefix}{what}".replace("`", "'"), ""
    kinds = [_KINDS.get(name, name) for name in expected[1].split(" | ") if name != "null"]
    written = "a decimal number" if expected[3] == "float" else _KINDS.get(expected[3], expected[3])
    other = f", not {written}" if written else ""
    return f"{subject} must be {' or '.join(kinds)}{_limit(expected[1], expected[2])}{other}", ""


def _limit(kind: str, written: str | None) -> str:
    """Return a limit of msgspec in words, with a space before it."""
    match = re.fullmatch(r"(of length )?([<>]=?) (\S+)", written or "")
    if match is None:
        return f" {written}" if written else ""
    unit = "" if not match[1] else " entries" if kind == "array" else " characters"
    return f" of {_COMPARED[match[2]]} {match[3]}{unit}"


def _type_at(kind: Any, path: str, fields: Fields) -> Any:
    """Return the type of the value at a path such as `policy[0].action`; None if not known."""
    for part in ["", *re.findall(r"[\w-]+(?=[.\[]|$)|\[", path)]:
        if part == "[":
            kind = next((inner for inner in get_args(kind)[::-1] if inner is not ...), None)
        elif part:
            kind = fields(kind).get(part)
        while get_origin(kind) is Annotated or type(None) in get_args(kind):
            kind = get_args(kind)[0]
    return kind
