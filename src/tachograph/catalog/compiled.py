"""Functions that numba compiles on their first call, so that importing them loads no compiler.

What was compiled is kept for the next process, in a folder that only the user can write, until a
file of the same folder as its source changes: what a compiled function calls becomes part of it, so
that is to lie in its folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import update_wrapper
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

from tachograph.catalog.private_files import compiled_folder, private_folder

Function = TypeVar("Function", bound=Callable[..., object])

_making = Lock()  # many threads may call a function for the first time


class Compiled:
    """A compiled function of arrays and numbers; releases the GIL; others like it may call it."""

    def __init__(self, function: Callable[..., object], **options: Any) -> None:
        update_wrapper(self, function)
        self._function = function
        self._options = options  # of numba.njit
        self._made: Any = None

    def __call__(self, *arguments: object) -> object:
        """Return what the function returns."""
        return (self._made or self.dispatcher)(*arguments)

    @property
    def made(self) -> bool:
        """Whether it has been called."""
        return self._made is not None

    @property
    def dispatcher(self) -> Any:
        """What numba made of it: a `Dispatcher`, which compiles for the types it is called with."""
        with _making:
            if self._made is None:
                self._made = _jitted(self._function, self._options)
        return self._made

    @property
    def _numba_type_(self) -> object:
        """The numba type of a value that a compiled function uses."""
        return self.dispatcher._numba_type_


def _jitted(function: Callable[..., object], options: Mapping[str, Any]) -> Any:
    named = compiled_folder(os.environ)
    folder = None if named is None else private_folder(named)
    import numba  # only now: the folder decides which code it runs

    if folder is None:
        return numba.njit(nogil=True, **options)(function)
    settings: Any = numba.config
    settings.CACHE_DIR = str(folder)
    # No other folder: not that of the source.
    settings.CACHE_LOCATOR_CLASSES = "UserProvidedCacheLocator"
    try:
        dispatcher: Any = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # the folder cannot be written
        return numba.njit(nogil=True, **options)(function)
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    # Numba itself looks at the file of the function alone, as it does where this is not its way.
    if file is not None:
        file._source_stamp = (
            file._source_stamp,
            _stamp(Path(function.__code__.co_filename).parent),
        )
    return dispatcher


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the sources of a folder."""
    sources = sorted((path.name, path.stat()) for path in folder.glob("*.py"))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in sources)


def compiled(function: Function) -> Function:
    """Return the function, to be compiled when it is first called."""
    return cast("Function", Compiled(function))


def reordered(function: Function) -> Function:
    """Return the function, compiled so that sums may be reordered and vectorised; NaN still
    counts.
    """
    return cast("Function", Compiled(function, fastmath={"reassoc", "contract", "nsz", "arcp"}))
