"""Pictures of the documentation that are pages, as Chromium draws them; and that of a job in the
README.

    python tests/page_image.py LAKE

writes docs/images/job.png of an analyzed lake of `tachograph demo`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
JOB = "1000360"  # hangs at full utilisation


def draw_page(
    page: str, target: Path, *, size: tuple[int, int], scale: float = 1.0, margin: int = 0
) -> None:
    """Write a page as PNG of 256 colours; `margin` pixels are cut off on the left and on the
    right.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        subprocess.run(
            [
                *(
                    "chromium",
                    "--headless",
                    "--no-sandbox",
                    "--hide-scrollbars",
                    f"--user-data-dir={folder}/profile",
                ),
                *(f"--window-size={size[0]},{size[1]}", f"--force-device-scale-factor={scale}"),
                *(f"--screenshot={target}", file.as_uri()),
            ],
            check=True,
        )
    with Image.open(target) as drawn:
        shown = drawn.convert("RGB").crop((margin, 0, drawn.width - margin, drawn.height))
        shown.quantize(256, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


def main(arguments: Sequence[str]) -> None:
    """Write the picture of the job."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "job.html"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "tachograph",
                "job",
                JOB,
                "--lake",
                *arguments,
                "--html",
                str(page),
            ],
            check=True,
        )
        text = page.read_text(encoding="utf-8")
    draw_page(text, IMAGES / "job.png", size=(1280, 1188), margin=150)


if __name__ == "__main__":
    main(sys.argv[1:])
