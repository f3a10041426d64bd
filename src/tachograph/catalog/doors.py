"""Entry points of packages: commands, sources, checks, exports, pages, figures, annexes.

A package of a site declares entry points in its pyproject.toml, each the entry of a table:

    [project.entry-points."tachograph.exports"]
    tickets = "our_site.tickets:TARGET"

where `TARGET` is `ExportTarget("tickets", "our_site.tickets", "a ticket for each failing GPU")`.
The module of an entry is named as `import` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from tachograph.catalog.errors import ConfigError, UsageError


class NamedEntry(Protocol):
    """An entry of a table."""

    @property
    def name(self) -> str:
        """How it is called in commands and configuration."""
        ...


E = TypeVar("E")
N = TypeVar("N", bound=NamedEntry)

# {what the core or a page asks for: the function of an annex}, imported when it is called: neither
# the core nor another annex imports an annex.
ANNEX_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "held_file": "tachograph.annexes.act.ledger:held_file",
        "refresh_advice": "tachograph.annexes.act.advice_table:refresh_advice",
        "opt_out": "tachograph.annexes.act.unsubscribe:opt_out_links",
        "remove_forgotten_images": "tachograph.annexes.serve.images:remove_forgotten_images",
        "job_kernels": "tachograph.annexes.share.attached:attached_job_kernels",
        "kernels_sentence": "tachograph.annexes.share.attached_kernels:kernels_sentence",
        "kernel_values": "tachograph.annexes.share.attached_kernels:kernel_values",
        "profiled_launches": "tachograph.annexes.share.attached:profiled_launches",
        "reports_given": "tachograph.annexes.share.job_groups:reports_given",
        "sharing": "tachograph.annexes.share.job_sharing:read_sharing",
        "lake_study": "tachograph.annexes.lab.lake_study:LakeStudy",
        "figure_formats": "tachograph.annexes.lab.figures.registry:figure_formats",
        "figure_names": "tachograph.annexes.lab.figures.registry:figure_names",
    }
)


def annex_function(name: str) -> Callable[..., Any]:
    """Return what an annex answers a question of ANNEX_FUNCTIONS with.

    Errors: UsageError where the annex is not installed.
    """
    module, _, function = ANNEX_FUNCTIONS[name].partition(":")
    try:
        answer: Callable[..., Any] = getattr(import_module(module), function)
    except ModuleNotFoundError as absent:
        if absent.name is None or not module.startswith(absent.name):
            raise
        raise UsageError(f"{module} is not installed", do="pip install 'tachograph[all]'") from None
    return answer


def find_entry(group: str, kind: type[N], name: str, own: Iterable[N]) -> N | None:
    """Return the entry `name` of the project, else of an installed package, or None.

    Errors: those of `added_entries`.
    """
    for entry in own:
        if entry.name == name:
            return entry
    return next((entry for entry in added_entries(group, kind) if entry.name == name), None)


def added_entries(
    group: str,
    kind: type[E],
    *,
    problem_of: Callable[[E], str | None] = lambda _: None,
    do: str = "",
) -> tuple[E, ...]:
    """Return the entries that installed packages add to the table `group`, sorted by name.

    `problem_of`: what is wrong with an entry, None: nothing. `do`: what to do about it.

    The files of every installed package are looked at, which takes a tenth of a second: ask where
    the project's own table does not have a name.

    Errors: ConfigError naming the package of an entry that cannot be imported, is no `kind`, or has
    a problem.
    """
    from importlib.metadata import entry_points

    entries = []
    for point in sorted(entry_points(group=f"tachograph.{group}"), key=lambda point: point.name):
        package = point.dist.name if point.dist else point.value
        where = f"entry point {point.name} of {package}"
        try:
            entry = point.load()
        except Exception as problem:
            raise ConfigError(
                f"cannot be imported: {problem}", where=where, do="repair or remove that package"
            ) from problem
        if not isinstance(entry, kind):
            raise ConfigError(
                f"{point.value} is of type {type(entry).__name__}",
                where=where,
                do=f"make it name a {kind.__name__}",
            )
        what = problem_of(entry)
        if what is not None:
            raise ConfigError(what, where=where, do=do)
        entries.append(entry)
    return tuple(entries)
