"""`tachograph rules import-clustercockpit DIR`: job classes as rules, with what could not be translated told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tachograph.cli import narrate, output
from tachograph.cli.options import Arguments
from tachograph.errors import InputError, UsageError
from tachograph.rules.clustercockpit import Translated, limits_of, parameters_toml, translate_class
from tachograph.rules.sources import PARAMETERS, read_source
from tachograph.units import plural, printable

_PARAMETERS = "parameters.json"


def import_classes(arguments: Arguments) -> int:
    """Translate, report, and write where a folder is named.

    Errors: InputError for a folder without job classes, or of which none can be translated.
    """
    folder = Path(arguments.folder)
    texts = _classes(folder)
    parameters = _parameters(folder / _PARAMETERS)
    limits = limits_of(_json(Path(arguments.cluster))) if arguments.cluster else {}
    found = _told_apart([_translated(source, text, parameters, limits) for source, text in texts])
    if arguments.output:
        _write(Path(arguments.output), found)
    if arguments.json:
        output.print_json([_as_json(one) for one in found])
    else:
        _report(found, arguments)
    if not any(one.text for one in found):
        raise InputError("no job class of it could be translated", where=str(folder), do="see what is missing above")
    return 0


def _classes(folder: Path) -> list[tuple[str, str | None]]:
    """Names and texts of the files of job classes; None: it cannot be read."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "no such folder"
        raise InputError(what, where=str(folder), do="name the folder of job classes, jobclasses/")
    files = [path for path in sorted(folder.glob("*.json")) if path.name != _PARAMETERS]
    if not files:
        raise InputError("holds no job classes", where=str(folder), do="name the folder with their .json files")
    return [(path.name, read_source(path).text) for path in files]


def _translated(
    name: str, text: str | None, parameters: Mapping[str, float], limits: Mapping[str, Mapping[str, float]]
) -> Translated:
    if text is None:
        return Translated(name, "", None, {}, ("it is no text that can be read",))
    return translate_class(text, name, parameters, limits)


def _told_apart(found: Sequence[Translated]) -> list[Translated]:
    """The same, without a second class of one tag."""
    from dataclasses import replace

    from tachograph.analyze.rules import RESERVED, rules_in_use
    from tachograph.config import Configuration

    taken = dict.fromkeys(RESERVED, "Tachograph")
    taken |= {entry.code: "a shipped rule" for entry in rules_in_use(Configuration()).entries}
    kept = []
    for one in found:
        if one.text is not None and one.tag in taken:
            said = f"its tag {one.tag} is taken by {taken[one.tag]}: give it another"
            kept.append(replace(one, text=None, missing=(said,)))
            continue
        if one.text is not None:
            taken[one.tag] = one.file
        kept.append(one)
    return kept


def _parameters(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    given = _json(path)
    if not isinstance(given, dict):
        raise InputError("is no object of parameters", where=str(path), do='write {"name": number, ...}')
    return {
        str(name): float(value)
        for name, value in given.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    }


def _json(path: Path) -> Any:
    source = read_source(path)
    if source.text is None:
        raise InputError(source.problem, where=str(path), do="name a file of JSON")
    try:
        return json.loads(source.text)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"is not valid JSON: {problem}", where=str(path), do="mend it") from None


def _write(folder: Path, found: Sequence[Translated]) -> None:
    """Write rules and parameters; what is there stays.

    Errors: UsageError where a file of that name is there.
    """
    documents = {one.file: one.text for one in found if one.text is not None}
    documents[PARAMETERS] = parameters_toml(found)
    there = [name for name in documents if (folder / name).exists()]
    if there:
        raise UsageError("is there already", where=str(folder / there[0]), do="name a new folder with -o")
    with output.writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in documents.items():
            (folder / name).write_text(text or "", encoding="utf-8")


def _as_json(one: Translated) -> dict[str, Any]:
    return {
        "file": one.file,
        "rule": one.tag if one.text is not None else None,
        "parameters": one.parameters,
        "missing": one.missing,
        "remarks": one.remarks,
    }


def _report(found: Sequence[Translated], arguments: Arguments) -> None:
    for one in found:
        state = f"rule {one.tag}" if one.text is not None else "not translated"
        output.print_text(f"{printable(one.file)}: {state}\n")
        for what, lines in (("no counterpart", one.missing), ("remark", one.remarks)):
            output.print_text("".join(f"  {what}: {printable(line)}\n" for line in lines))
    done = sum(one.text is not None for one in found)
    where = f", written into {arguments.output}" if arguments.output else "; -o DIR writes them"
    narrate.Narrator.of(arguments).say(
        f"{done} of {plural(len(found), 'job class').replace('classs', 'classes')}{where}"
    )
