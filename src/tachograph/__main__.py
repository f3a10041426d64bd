"""`python -m tachograph`."""

import os
import sys


def _leave_out_working_directory() -> None:
    """Remove the working directory, which `-m` puts first, from the module search path.

    A folder of PYTHONPATH stays.
    """
    try:
        here = os.getcwd()  # noqa: PTH109 as pathlib would be imported from there
    except FileNotFoundError:  # removed: `-m` did not find it either
        return
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]


_leave_out_working_directory()

from tachograph.cli import program  # noqa: E402  # only now

program()
