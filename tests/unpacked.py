"""Archives of the tests, unpacked alike by every supported Python."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive of this repository.

    Python before 3.11.4 knows no filters of members, and 3.12 warns where none is named; hence the
    attribute: https://docs.python.org/3/library/tarfile.html#supporting-older-python-versions
    """
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        packed.extractall(folder)
