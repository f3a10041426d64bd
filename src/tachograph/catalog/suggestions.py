"""The names closest to a misspelt one, as the question at the end of an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def did_you_mean(
    name: str,
    known: Iterable[str] | Mapping[str, str],
    *,
    otherwise: str = "",
    form: str = "{}",
    most: int = 1,
) -> str:
    """Return the known names closest to `name` as a question; `otherwise` where none is close.

    `known`: the names, or {name: replacement}. `form`: format of a name. `most`: limit of names.

    >>> did_you_mean("limt", ["limit", "sort"], form="--{}"), did_you_mean("x", ["limit"], otherwise="see --help")
    ('did you mean --limit?', 'see --help')
    """
    import difflib  # only where something is misspelt: the help of the program imports this module

    names = known if isinstance(known, Mapping) else {one: one for one in known}
    written = {one.lower(): names[one] for one in reversed(list(names))}
    close = difflib.get_close_matches(name.lower(), list(reversed(written)), n=most, cutoff=0.5)
    meant = dict.fromkeys(form.format(written[one]) for one in close)
    return f"did you mean {' or '.join(meant)}?" if close else otherwise
