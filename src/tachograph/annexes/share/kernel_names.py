"""Selects kernels by number, name or pattern, and gives each a distinct label."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from tachograph.annexes.share.demand import Demand
from tachograph.annexes.share.kernels import Kernel
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.units import printable

_NAMES_MAX = 4  # matches named in an error
_WIDTH = 26  # characters of a name


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


def matching_kernels(
    kernels: Sequence[Kernel], patterns: Sequence[str], device: str | None
) -> list[Kernel]:
    """Return the kernels that match a pattern (none: all) on the requested GPUs.

    Errors: NotFoundError without a match.
    """
    name_part = (device or "").lower()
    of_device = [kernel for kernel in kernels if name_part in kernel.gpu.name.lower()]
    if not of_device:
        names = ", ".join(sorted({kernel.gpu.name for kernel in kernels}))
        raise NotFoundError(
            f"nothing ran on a GPU with {device!r} in its name", do=f"the reports have: {names}"
        )
    if not patterns:
        return of_device
    fitting = [
        kernel for kernel in of_device if any(_fits(pattern, kernel) for pattern in patterns)
    ]
    if not fitting:
        raise _no_kernel(" or ".join(patterns), [kernel.short for kernel in of_device])
    return fitting


def matching_kernel(views: Sequence[NumberedKernel], name: str) -> NumberedKernel:
    """Return the kernel that a number, a name, or a pattern means.

    Errors: NotFoundError without a match, UsageError for several.
    """
    tests: tuple[Callable[[NumberedKernel], bool], ...] = (
        lambda view: name == view.label,
        lambda view: name in (view.kernel.short, view.kernel.name),
        lambda view: _fits(name, view.kernel),
    )
    # Never a part of a name: its meaning would change with the number of kernels.
    if name.isdecimal():
        tests = (lambda view: name == str(view.number),)
    for test in tests:
        fitting = [view for view in views if test(view)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            names = _listed([f"{view.number} ({view.label})" for view in fitting])
            raise UsageError(f"{name!r} fits several kernels: {names}", do="name one by its number")
    raise _no_kernel(name, [f"{view.number} ({view.label})" for view in views])


def labels(kernels: Sequence[Kernel]) -> list[str]:
    """Return kernel labels: short name, with template arguments, block or grid if ambiguous."""
    names = [printable(kernel.short) for kernel in kernels]
    names = _distinct(names, [printable(_with_arguments(kernel)) for kernel in kernels])
    shapes = [_shape(kernel) for kernel in kernels]
    with_block = [f"{name} x{threads}" for name, (_, threads) in zip(names, shapes, strict=True)]
    with_grid = [
        f"{name} {blocks}x{threads}" for name, (blocks, threads) in zip(names, shapes, strict=True)
    ]
    names = _distinct(_distinct(names, with_block), with_grid)
    places: dict[str, dict[str, int]] = {}  # names may differ in a space only
    for index, (name, kernel) in enumerate(zip(names, kernels, strict=True)):
        same_label = places.setdefault(name, {})
        place = same_label.setdefault(kernel.name, len(same_label) + 1)
        if place > 1:
            names[index] = f"{name} ({place})"
    return names


def _distinct(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Return the longer form of names that are not distinct."""
    counts = Counter(names)
    return [other if counts[name] > 1 else name for name, other in zip(names, longer, strict=True)]


def _with_arguments(kernel: Kernel) -> str:
    """Return the name from the short one on, up to the parameters."""
    start = kernel.name.find(kernel.short)
    if start < 0:
        return kernel.name
    tail, depth = kernel.name[start + len(kernel.short) :], 0
    for end, letter in enumerate(tail):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return kernel.short + tail[:end]
    return kernel.short + tail


def _shape(kernel: Kernel) -> tuple[str, str]:
    """Blocks, and threads of a block."""
    footprint = kernel.demand.footprint
    return ("?", "?") if footprint is None else (str(footprint.blocks), str(footprint.threads))


def _fits(pattern: str, kernel: Kernel) -> bool:
    return matches(pattern, kernel.name) or matches(pattern, kernel.short)


def _no_kernel(name: str, names: Iterable[str]) -> NotFoundError:
    return NotFoundError(
        f"no kernel {printable(name)!r}",
        do=f"the reports have: {_listed(list(dict.fromkeys(names)))}",
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return f"{', '.join(names[:_NAMES_MAX])}{more}"


def shortened(name: str, width: int = _WIDTH) -> str:
    """Return a name at most `width` long without its middle: the ends distinguish kernels.

    >>> shortened("cutlass_sm90_gemm_128x128x64", 15)
    'cutlass…x128x64'
    """
    if len(name) <= width:
        return name
    kept = (width - 1) // 2
    return f"{name[:kept]}…{name[-(width - 1 - kept) :]}"


def shortened_apart(names: Sequence[str], width: int = _WIDTH) -> list[str]:
    """Return names at most `width` long; where the ends are equal, keep the distinct part.

    >>> shortened_apart(["gemm_bf16_tile128x64_execute", "gemm_bf16_tile128x256_execute", "copy"], 16)
    ['gemm…tile128x64…', 'gemm…ile128x256…', 'copy']
    """
    short = [shortened(name, width) for name in names]
    alike: dict[str, set[str]] = {}
    for name, form in zip(names, short, strict=True):
        alike.setdefault(form, set()).add(name)
    return [
        form if len(alike[form]) == 1 else _middle(name, alike[form], width)
        for name, form in zip(names, short, strict=True)
    ]


def _middle(name: str, group: Collection[str], width: int) -> str:
    """Return a name's start, and the part that distinguishes it within its group."""
    begin = _shared_start(group)
    stop = len(name) - _shared_start([other[::-1] for other in group])
    kept = (width - 2) // 3
    room = width - 2 - kept
    begin = begin if stop - begin > room else max(kept, stop - room)
    return f"{name[:kept]}…{name[begin : begin + room]}…"


def _shared_start(names: Collection[str]) -> int:
    """Return how many characters all names begin with."""
    least, most = min(names), max(names)
    return next((place for place, letter in enumerate(least) if most[place] != letter), len(least))
