"""Which kernels are meant: by number, by name, by pattern; and the label of each, distinct in a table."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.units import printable
from tachograph.sharing.demand import Demand
from tachograph.sharing.kernels import Kernel

_WILD = re.compile(r"[*?]")
_LONG = 36  # characters of a name that is not shortened
_NAMED = 4  # of several that match, so many are named
_NAME = 26  # characters of a name


@dataclass(frozen=True, slots=True)
class NumberedKernel:
    """One kernel. share: fraction 0..1 of the time of all kernels on its GPU, None where times are unknown."""

    number: int
    label: str
    kernel: Kernel
    share: float | None

    @property
    def demand(self) -> Demand:
        """Its demand, under its distinct label."""
        return self.kernel.demand.named(self.label)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return whether a name fits: `/.../` a regular expression, with `*` or `?` as a shell has it, else a part.

    >>> [matcher(pattern)("void fmul<4>(float*)") for pattern in ("fmul", "*fmul*", "/fmul<[1-4]>/", "f?ul")]
    [True, True, True, False]

    Errors: UsageError for an expression that is none.
    """
    if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
        try:
            expression = re.compile(pattern[1:-1])
        except re.error as problem:
            raise UsageError(f"no regular expression: {problem}", where=pattern, do="fix it") from None
        return lambda name: expression.search(name) is not None
    if _WILD.search(pattern):
        return lambda name: fnmatch.fnmatchcase(name, pattern) or pattern in name  # `float*` stands in names
    return lambda name: pattern in name


def chosen(kernels: Sequence[Kernel], patterns: Sequence[str], device: str | None) -> list[Kernel]:
    """Return the kernels that fit one of the patterns, all where there are none, on the requested GPUs.

    Errors: NotFoundError where none does.
    """
    of_device = [kernel for kernel in kernels if device is None or device.lower() in kernel.gpu.name.lower()]
    if not of_device:
        names = ", ".join(sorted({kernel.gpu.name for kernel in kernels}))
        raise NotFoundError(f"nothing ran on a GPU with {device!r} in its name", do=f"the reports have: {names}")
    tests = [matcher(pattern) for pattern in patterns]
    found = [kernel for kernel in of_device if not tests or any(_fits(test, kernel) for test in tests)]
    if not found:
        raise _no_kernel(" or ".join(patterns), [kernel.short for kernel in of_device])
    return found


def one(views: Sequence[NumberedKernel], wanted: str) -> NumberedKernel:
    """Return the kernel that a number, a name, or a pattern means.

    Errors: NotFoundError where none is meant, UsageError where several are.
    """
    if wanted.isdecimal():  # never a part of a name: its meaning would change with the number of kernels
        by_number = [view for view in views if str(view.number) == wanted]
        if by_number:
            return by_number[0]
        last = max((view.number for view in views), default=0)
        raise NotFoundError(f"no kernel has number {printable(wanted[:20])}", do=f"they are numbered 1 to {last}")
    for exact in (
        [view for view in views if wanted == view.label],
        [view for view in views if wanted in (view.kernel.short, view.kernel.name)],
        [view for view in views if _fits(matcher(wanted), view.kernel)],
    ):
        if len(exact) == 1:
            return exact[0]
        if exact:
            named = ", ".join(f"{view.number} ({view.label})" for view in exact[:_NAMED])
            more = f" and {len(exact) - _NAMED} more" if len(exact) > _NAMED else ""
            raise UsageError(f"{wanted!r} fits several kernels: {named}{more}", do="name one by its number")
    raise _no_kernel(wanted, [view.label for view in views])


def labels(kernels: Sequence[Kernel]) -> list[str]:
    """Return the label of each kernel: its short name, with template arguments, block or grid where these differ."""
    names = [printable(kernel.short) for kernel in kernels]
    arguments: dict[str, set[str]] = {}
    for kernel, name in zip(kernels, names, strict=True):
        arguments.setdefault(name, set()).add(printable(_with_arguments(kernel)))
    ends = {name: shared_ends(group) for name, group in arguments.items()}
    longer = [
        differing(printable(_with_arguments(kernel)), ends[name]) for kernel, name in zip(kernels, names, strict=True)
    ]
    names = _distinct(names, longer)
    blocks = [f"{name} x{_threads(kernel)}" for name, kernel in zip(names, kernels, strict=True)]
    grids = [f"{name} {_grid(kernel)}x{_threads(kernel)}" for name, kernel in zip(names, kernels, strict=True)]
    shown = _distinct(names, blocks)
    repeated = Counter(shown)
    shown = [grid if repeated[name] > 1 else name for name, grid in zip(shown, grids, strict=True)]
    return _counted(shown, kernels)


def shared_ends(group: Collection[str]) -> tuple[int, int] | None:
    """Return how many characters all names of a group begin with, and end with; None for a group of one.

    >>> shared_ends(["gemm<64, 2>", "gemm<128, 2>"])
    (5, 4)
    """
    return None if len(group) < 2 else (shared_start(group), shared_start([name[::-1] for name in group]))


def differing(name: str, ends: tuple[int, int] | None) -> str:
    """Return a long name with what it has in common with the others of its group (see `shared_ends`) left out.

    >>> names = [f"device_kernel<Gemm<Tile<128, {n}>, Cluster<2>>>" for n in (64, 128)]
    >>> [differing(name, shared_ends(names)) for name in names]
    ['device_kernel<…64…>', 'device_kernel<…128…>']
    """
    begin, bracket = name[: name.find("<") + 1], name.find("<") + 1
    if len(name) <= _LONG or ends is None or not bracket:
        return name
    start = max(bracket, ends[0])
    end = len(name) - ends[1]
    while start > bracket and name[start - 1].isalnum():  # whole words
        start -= 1
    end = max(start, end)
    while end < len(name) and name[end].isalnum():
        end += 1
    return f"{begin}…{name[start:end]}…>"


def _distinct(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    counts = Counter(names)
    return [other if counts[name] > 1 else name for name, other in zip(names, longer, strict=True)]


def _counted(names: Sequence[str], kernels: Sequence[Kernel]) -> list[str]:
    """Adds a count to equal labels of kernels with different names: names may differ in a space only."""
    of: dict[str, dict[str, int]] = {}
    places = []
    for name, kernel in zip(names, kernels, strict=True):
        seen = of.setdefault(name, {})
        places.append(seen.setdefault(kernel.name, len(seen) + 1))
    return [f"{name} ({place})" if place > 1 else name for name, place in zip(names, places, strict=True)]


def _with_arguments(kernel: Kernel) -> str:
    """The name from the short one on, up to the parameters."""
    place = kernel.name.find(kernel.short)
    if place < 0:
        return kernel.name
    tail, depth = kernel.name[place + len(kernel.short) :], 0
    for end, letter in enumerate(tail):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return kernel.short + tail[:end]
    return kernel.short + tail


def _threads(kernel: Kernel) -> str:
    footprint = kernel.demand.footprint
    return "?" if footprint is None else str(footprint.threads)


def _grid(kernel: Kernel) -> str:
    footprint = kernel.demand.footprint
    return "?" if footprint is None else str(footprint.blocks)


def _fits(test: Callable[[str], bool], kernel: Kernel) -> bool:
    return test(kernel.name) or test(kernel.short)


def _no_kernel(wanted: str, names: Sequence[str]) -> NotFoundError:
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - _NAMED} more" if len(distinct) > _NAMED else ""
    known = f"{', '.join(distinct[:_NAMED])}{more}"
    return NotFoundError(
        f"no kernel {wanted!r}", do=f"did you mean {close[0]!r}?" if close else f"the reports have: {known}"
    )


def shortened(name: str, width: int = _NAME) -> str:
    """Return a name of at most `width` characters, its middle left out: the ends distinguish kernels.

    >>> shortened("cutlass_sm90_gemm_128x128x64", 15)
    'cutlass…x128x64'
    """
    if len(name) <= width:
        return name
    kept = (width - 1) // 2
    return f"{name[:kept]}…{name[-(width - 1 - kept) :]}"


def shortened_apart(names: Sequence[str], width: int = _NAME) -> list[str]:
    """Return names of at most `width` characters; of those whose ends are alike, the distinct part is kept.

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
    """The beginning of a name, and what is behind what all of its group begin with, before what all end with."""
    begin = shared_start(group)
    stop = len(name) - shared_start([one[::-1] for one in group])
    kept = (width - 2) // 3
    room = width - 2 - kept
    begin = begin if stop - begin > room else max(kept, stop - room)
    return f"{name[:kept]}…{name[begin : begin + room]}…"


def shared_start(names: Collection[str]) -> int:
    """Return how many characters all names begin with.

    >>> shared_start(["fmul<4>", "fmul<3>"])
    5
    """
    least, most = min(names), max(names)
    return next((place for place, letter in enumerate(least) if most[place] != letter), len(least))
