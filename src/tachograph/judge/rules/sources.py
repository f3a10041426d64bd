"""Files of rules: those that are shipped, and those of a site's folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from tachograph.catalog.config import RuleOptions
from tachograph.catalog.errors import ConfigError

PARAMETERS = "parameters.toml"
LARGEST = 1 << 20  # bytes of a file that is read


@dataclass(frozen=True, slots=True)
class RuleSource:
    """A file of rules: its name, and its text; None: `problem` gives the reason."""

    name: str
    text: str | None
    problem: str = ""


@cache
def shipped_sources() -> tuple[tuple[RuleSource, ...], RuleSource | None]:
    """Return the files of the catalogue, and its parameters."""
    folder = files("tachograph.judge.rules") / "catalogue"
    texts = {
        item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.is_file()
    }
    rules = tuple(RuleSource(name, texts[name]) for name in sorted(texts) if name.endswith(".json"))
    return rules, RuleSource(PARAMETERS, texts[PARAMETERS])


def folder_sources(folder: str) -> tuple[tuple[RuleSource, ...], RuleSource | None]:
    """Return the rule files of a folder by name, and its parameters, if any.

    Errors: ConfigError where there is no such folder, or it cannot be read.
    """
    place = Path(folder)
    try:
        names = sorted(
            item
            for item in place.iterdir()
            if item.suffix == ".json" and not item.name.startswith(".")
        )
    except OSError as problem:
        raise ConfigError(
            problem.strerror or str(problem),
            where=f"rules.folder {folder}",
            do="name a folder of rules, or none",
        ) from None
    return tuple(map(read_source, names)), parameters_of(place)


def parameters_of(folder: Path) -> RuleSource | None:
    """Return the parameters of a folder of rules, if it has some."""
    file = folder / PARAMETERS
    return read_source(file) if file.exists() else None


def digest(settings: RuleOptions) -> str:
    """Return a digest of all that decides the results of the rules: their texts, and the settings.

    Errors: ConfigError for a folder that cannot be read.
    """
    shipped = shipped_sources()
    own = folder_sources(settings.folder) if settings.folder else ((), None)
    texts = [
        source and (source.name, source.text)
        for rules, last in (shipped, own)
        for source in (*rules, last)
    ]
    return hashlib.sha256(
        msgspec.json.encode([settings.disabled, settings.parameters, texts])
    ).hexdigest()[:16]


def read_source(path: Path) -> RuleSource:
    """Return a file; where it cannot be read, why."""
    try:
        if not path.is_file():
            return RuleSource(str(path), None, "not a file" if path.exists() else "no such file")
        if path.stat().st_size > LARGEST:
            return RuleSource(str(path), None, f"larger than {LARGEST >> 20} MiB: no file of rules")
        return RuleSource(str(path), path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        return RuleSource(str(path), None, "not text in UTF-8")
    except OSError as problem:
        return RuleSource(str(path), None, problem.strerror or str(problem))
