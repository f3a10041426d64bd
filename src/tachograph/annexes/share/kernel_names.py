"""Selects kernels by number, name or pattern, and gives each a distinct label."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add

from tachograph.annexes.share.demand import Demand
from tachograph.annexes.share.kernels import Kernel
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.units import printable

_NAMES_MAX = 4  # matches named in an error


@dataclass(frozen=True, slots=True)
class NumberedKernel:
    """One kernel. share: 0..1 of the kernel time on its GPU, None if times are unknown."""

    number: int
    label: str
    kernel: Kernel
    share: float | None

    @property
    def demand(self) -> Demand:
        """Demand under its unique label."""
        return self.kernel.demand.named(self.label)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name contains the pattern, or matches it with `*` or `?` as in a shell.

    >>> [matches(pattern, "void fmul<4>(float*)") for pattern in ("fmul", "*fmul*", "float*", "f?ul")]
    [True, True, True, False]
    """
    return pattern in name or fnmatch.fnmatchcase(name, pattern)


def matching_kernels(kernels: Sequence[Kernel], patterns: Sequence[str]) -> list[Kernel]:
    """Return the kernels that match a pattern (none: all).

    Errors: NotFoundError without a match.
    """
    fitting = [
        kernel for kernel in kernels if any(_fits(pattern, kernel) for pattern in patterns or "*")
    ]
    if not fitting:
        raise _no_kernel(" or ".join(patterns), [kernel.short for kernel in kernels])
    return fitting


def matching_kernel(views: Sequence[NumberedKernel], name: str) -> NumberedKernel:
    """Return the kernel that a number, a name, or a pattern means.

    Errors: NotFoundError without a match, UsageError for several.
    """
    # Never a part of a name: its meaning would change with the number of kernels.
    if name.isdecimal():
        passes = [[view for view in views if name == str(view.number)]]
    else:
        passes = [
            [view for view in views if name == view.label],
            [view for view in views if name in (view.kernel.short, view.kernel.name)],
            [view for view in views if _fits(name, view.kernel)],
        ]
    fitting = next(filter(None, passes), [])
    if len(fitting) == 1:
        return fitting[0]
    numbered = [f"{view.number} ({view.label})" for view in fitting or views]
    if fitting:
        raise UsageError(
            f"{name!r} fits several kernels: {_listed(numbered)}", do="name one by its number"
        )
    raise _no_kernel(name, numbered)


def labels(kernels: Sequence[Kernel]) -> list[str]:
    """Return kernel labels: short name, with template arguments, block or grid if ambiguous."""
    names = [printable(kernel.short) for kernel in kernels]
    names = _distinct(names, [printable(_with_arguments(kernel)) for kernel in kernels])
    footprints = [kernel.shape.footprint for kernel in kernels]
    for of in (" x{0.threads}", " {0.blocks}x{0.threads}"):
        sizes = [of.format(footprint) if footprint else " ?" for footprint in footprints]
        names = _distinct(names, list(map(add, names, sizes)))
    full_names: dict[str, dict[str, int]] = {}  # of a label: names may differ in a space only
    for index, (name, kernel) in enumerate(zip(names, kernels, strict=True)):
        same_label = full_names.setdefault(name, {})
        nth = same_label.setdefault(kernel.name, len(same_label) + 1)
        if nth > 1:
            names[index] = f"{name} ({nth})"
    return names


def _distinct(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Return the longer form of names that are not distinct."""
    counts = Counter(names)
    return [other if counts[name] > 1 else name for name, other in zip(names, longer, strict=True)]


def _with_arguments(kernel: Kernel) -> str:
    """Return the name from the short one on, up to the parameters."""
    tail, depth = kernel.name.partition(kernel.short)[2], 0
    for end, letter in enumerate(tail):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return kernel.short + tail[:end]
    return kernel.short + tail


def _fits(pattern: str, kernel: Kernel) -> bool:
    return matches(pattern, kernel.name) or matches(pattern, kernel.short)


def _no_kernel(name: str, names: Iterable[str]) -> NotFoundError:
    do = f"the reports have: {_listed(list(dict.fromkeys(names)))}"
    return NotFoundError(f"no kernel {printable(name)!r}", do=do)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return f"{', '.join(names[:_NAMES_MAX])}{more}"


def shortened(name: str, width: int) -> str:
    """Return a name at most `width` long without its middle: the ends distinguish kernels.

    >>> shortened("cutlass_sm90_gemm_128x128x64", 15)
    'cutlass…x128x64'
    """
    if len(name) <= width:
        return name
    half = (width - 1) // 2
    return f"{name[:half]}…{name[-(width - 1 - half) :]}"
