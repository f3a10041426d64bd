"""Exports for studies: pseudonyms for users and, optionally, accounts, jobs, nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import polars as pl

from tachograph.catalog.errors import UsageError
from tachograph.catalog.pseudonyms import KINDS, NameReplacer, PseudonymKey, PseudonymKind
from tachograph.export.content import ExportContent
from tachograph.lake.forget import VOCABULARY
from tachograph.lake.query import read_gpus, read_summaries

# columns whose whole value is a name of a kind
_NAMES: Mapping[str, PseudonymKind] = {
    "user": "user",
    "account": "account",
    **dict.fromkeys(
        ("job_key", "job_id", "display_id", "array_job_id", "het_job_id", "name"), "job"
    ),
    **dict.fromkeys(("node", "uuid", "pci", "history"), "node"),
}


def parse_kinds(written: str) -> tuple[PseudonymKind, ...]:
    """Return the kinds of names in a list with commas, users always among them.

    >>> parse_kinds("job,account")
    ('user', 'account', 'job')

    Errors: UsageError for an unknown one.
    """
    given = {part.strip() for part in written.split(",") if part.strip()}
    if unknown := given - set(KINDS):
        raise UsageError(
            f"--pseudonyms-of: unknown kind {', '.join(sorted(unknown))}",
            do=f"use {', '.join(KINDS)}",
        )
    return tuple(kind for kind in KINDS if kind == "user" or kind in given)


@dataclass(frozen=True, slots=True)
class StudyNames:
    """Names of a lake in an export. replacer: for names within other texts."""

    key: PseudonymKey
    kinds: tuple[PseudonymKind, ...]
    replacer: NameReplacer

    def shown(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows of any table with pseudonyms; null stays null."""
        return rows.with_columns(
            [
                self._column(rows.get_column(name))
                for name, dtype in rows.schema.items()
                if dtype == pl.String
            ]
        )

    def _column(self, values: pl.Series) -> pl.Series:
        kind = _NAMES.get(values.name)
        if kind is not None and kind in self.kinds:
            every = values.drop_nulls().unique().to_list()
            return (
                values.replace({name: self.key.pseudonym(kind, name) for name in every})
                if every
                else values
            )
        return values if values.name in VOCABULARY else self.replacer.column(values)

    @property
    def mark(self) -> str:
        """Mark of key and kinds; targets rewrite everything when it changes."""
        return f"{self.key.pseudonym('user', '')}+{','.join(self.kinds)}"


def with_pseudonyms(
    content: ExportContent, key: PseudonymKey, kinds: Collection[PseudonymKind]
) -> ExportContent:
    """Return content in which names are pseudonyms.

    Names of all users of the lake are also replaced as words within texts (job names, sentences).
    """
    chosen = tuple(kind for kind in KINDS if kind in kinds)
    every = read_summaries(content.lake, ("user", "account"))
    names: dict[str, str] = {}
    if "node" in chosen:
        names |= _stands(key, "node", read_gpus(content.lake, content.summaries).get_column("node"))
    if "account" in chosen:
        names |= _stands(key, "account", every.get_column("account"))
    names |= _stands(key, "user", every.get_column("user"))
    study = StudyNames(key, chosen, NameReplacer(names))
    return replace(
        content, summaries=study.shown(content.summaries), names=study, originals=content.summaries
    )


def _stands(key: PseudonymKey, kind: PseudonymKind, names: pl.Series) -> dict[str, str]:
    return {name: key.pseudonym(kind, name) for name in names.drop_nulls().unique().to_list()}
