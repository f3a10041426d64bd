"""What installed packages add to the tables of commands, sources, checks, exports and figures.

A package of a site declares entry points in its pyproject.toml, each the entry of a table:

    [project.entry-points."tachograph.exports"]
    tickets = "our_site.tickets:TARGET"

where `TARGET` is `ExportTarget("tickets", "our_site.tickets", "a ticket for each failing GPU")`.
The module of an entry is named as `import` has it.
"""

from __future__ import annotations

from typing import TypeVar

from tachograph.catalog.errors import ConfigError

E = TypeVar("E")


def added_entries(group: str, kind: type[E]) -> tuple[E, ...]:
    """Return what installed packages add to the table `group`, in the order of its names.

    The files of every installed package are looked at, which takes a tenth of a second: ask where
    the project's own table does not have a name.

    Errors: ConfigError naming the package of an entry that cannot be imported, or is no `kind`.
    """
    from importlib.metadata import entry_points

    found = []
    for point in sorted(entry_points(group=f"tachograph.{group}"), key=lambda point: point.name):
        package = point.dist.name if point.dist else point.value
        where = f"entry point {point.name} of {package}"
        try:
            entry = point.load()
        except Exception as problem:
            do = "repair or remove that package"
            raise ConfigError(f"cannot be imported: {problem}", where=where, do=do) from problem
        if not isinstance(entry, kind):
            do = f"let it name a {kind.__name__}"
            raise ConfigError(
                f"{point.value} is of type {type(entry).__name__}", where=where, do=do
            )
        found.append(entry)
    return tuple(found)
