"""Pictures of the documentation that are pages, as Chromium draws them: that of a job, and the
first one that is served.

    PYTHONPATH=tests python tests/page_image.py LAKE

writes docs/images/job.png and serve.png of an analyzed lake of `tachograph demo`, which lies beside
its configuration: times are in the zone of that.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from servers.web import serving

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
    _shrink(target, margin=margin)


def _shrink(target: Path, *, margin: int = 0) -> None:
    with Image.open(target) as drawn:
        shown = drawn.convert("RGB").crop((margin, 0, drawn.width - margin, drawn.height))
        shown.quantize(256, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


def job_page(lake: Path) -> str:
    """Return the page of the job, as the command writes it in the folder of the demo."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "job.html"
        command = [sys.executable, "-m", "tachograph", "job", JOB, "--lake", str(lake.resolve())]
        subprocess.run([*command, "--html", str(page)], cwd=lake.resolve().parent, check=True)
        return page.read_text(encoding="utf-8")


def draw_first_page(lake: Path) -> None:
    """Write the picture of the first page of all jobs."""
    from playwright.sync_api import sync_playwright  # not where only the job is drawn

    target = IMAGES / "serve.png"
    with serving(lake.resolve().parent) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 820})
        page.goto(server.link)
        page.goto(f"{server.address}/?of=all")
        page.screenshot(path=target)
    _shrink(target)


def main(arguments: Sequence[str]) -> None:
    """Write the pictures."""
    lake = Path(arguments[0])
    draw_page(job_page(lake), IMAGES / "job.png", size=(1280, 1430), margin=150)
    draw_first_page(lake)


if __name__ == "__main__":
    main(sys.argv[1:])
