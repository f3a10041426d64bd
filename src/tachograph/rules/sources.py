"""Files of rules: those of the catalogue, those of a folder, and the parameters beside them."""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec

from tachograph.config import Rules
from tachograph.errors import ConfigError
from tachograph.rules.model import RuleProblem

PARAMETERS = "parameters.toml"
LARGEST = 1 << 20  # bytes of a file that is read
_AT = re.compile(r"\(at line (\d+), column (\d+)\)$")


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A threshold of a rule: what it is unless the site says otherwise."""

    default: float
    unit: str = ""
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of rules: what it is called, and its text; None: `problem` says why it has none."""

    name: str
    text: str | None
    problem: str = ""


def shipped_sources() -> tuple[tuple[Source, ...], Source | None]:
    """Return the files of the catalogue, and its parameters."""
    folder = files("tachograph.rules") / "catalogue"
    texts = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.is_file()}
    rules = tuple(Source(name, texts[name]) for name in sorted(texts) if name.endswith(".json"))
    return rules, Source(PARAMETERS, texts[PARAMETERS])


def folder_sources(folder: str) -> tuple[tuple[Source, ...], Source | None]:
    """Return the files of rules of a folder in the order of their names, and its parameters where it has some.

    Errors: ConfigError where there is no such folder, or it cannot be read.
    """
    place = Path(folder)
    try:
        names = sorted(item for item in place.iterdir() if item.suffix == ".json" and not item.name.startswith("."))
    except OSError as problem:
        raise ConfigError(
            problem.strerror or str(problem), where=f"rules.folder {folder}", do="name a folder of rules, or none"
        ) from None
    parameters = place / PARAMETERS
    return tuple(map(read_source, names)), read_source(parameters) if parameters.exists() else None


def digest(settings: Rules) -> str:
    """Return a digest of all that decides what the rules say: their texts, and the settings.

    Errors: ConfigError for a folder that cannot be read.
    """
    shipped = shipped_sources()
    own = folder_sources(settings.folder) if settings.folder else ((), None)
    texts = [source and (source.name, source.text) for rules, last in (shipped, own) for source in (*rules, last)]
    return hashlib.sha256(msgspec.json.encode([settings.disabled, settings.parameters, texts])).hexdigest()[:16]


def read_source(path: Path) -> Source:
    """Return a file; where it cannot be read, why."""
    try:
        if not path.is_file():
            return Source(str(path), None, "is no file" if path.exists() else "no such file")
        if path.stat().st_size > LARGEST:
            return Source(str(path), None, f"larger than {LARGEST >> 20} MiB: no file of rules")
        return Source(str(path), path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        return Source(str(path), None, "is no text in UTF-8")
    except OSError as problem:
        return Source(str(path), None, problem.strerror or str(problem))


def read_parameters(source: Source | None) -> tuple[dict[str, dict[str, Parameter]], list[RuleProblem]]:
    """Return {tag: {parameter: what is declared of it}} of a parameters.toml, and what is wrong in it."""
    if source is None:
        return {}, []
    if source.text is None:
        return {}, [RuleProblem(source.name, 1, 1, "", source.problem)]
    try:
        given = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as problem:
        at = _AT.search(str(problem))
        line, column = (int(at[1]), int(at[2])) if at else (1, 1)
        return {}, [RuleProblem(source.name, line, column, "", f"not valid TOML: {_AT.sub('', str(problem)).strip()}")]
    except (RecursionError, ValueError):  # brackets within brackets; a number with too many digits
        return {}, [RuleProblem(source.name, 1, 1, "", "nested too deeply, or a number that is too long")]
    declared: dict[str, dict[str, Parameter]] = {}
    problems = []
    for tag, parameters in given.items():
        for name, one in parameters.items() if isinstance(parameters, dict) else [("", parameters)]:
            try:
                parameter = msgspec.convert(one, Parameter)
            except msgspec.ValidationError as problem:
                where = f"{tag}.{name}" if name else tag
                problems.append(RuleProblem(source.name, 1, 1, "", f"{where}: {str(problem).replace('`', '')}"))
                continue
            if is_sane(parameter.default):
                declared.setdefault(tag, {})[name] = parameter
            else:
                problems.append(RuleProblem(source.name, 1, 1, "", f"{tag}.{name}: the default is no number"))
    return declared, problems


def is_sane(value: float) -> bool:
    """Return whether a number can be compared with."""
    return math.isfinite(value)
