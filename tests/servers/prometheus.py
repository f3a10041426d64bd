"""A real Prometheus for the time of a block, with scraped targets, back-filled samples, or both."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from servers.process import free_port, program, running


@dataclass(frozen=True, slots=True)
class Series:
    """One series as it is put into a server: {label: value} with `__name__`, and (seconds since
    1970, value).
    """

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


@contextmanager
def prometheus(
    folder: Path,
    *,
    targets: Sequence[str] = (),
    interval: str = "1s",
    job: str = "dcgm",
    arguments: Sequence[str] = (),
) -> Iterator[str]:
    """Run Prometheus on `folder` and give its address; `targets` are HOST:PORT of exporters.

    The folder keeps its samples: run again on the same one, it is a restart.
    """
    command = program("prometheus", package="prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(f"'{target}'" for target in targets)
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\n"
        f"scrape_configs:\n- job_name: {job}\n  static_configs: [{{targets: [{listed}]}}]\n"
    )
    url = f"http://127.0.0.1:{free_port()}"
    options = (
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--log.level=warn",
    )
    with running(
        [command, *options, *arguments], ready=lambda: answers(f"{url}/-/ready"), log=folder / "log"
    ):
        yield url


def backfill(folder: Path, series: Sequence[Series]) -> None:
    """Put series into the folder of a Prometheus that does not run."""
    command = program("promtool", package="prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "backfill.om"
    named: dict[str, list[Series]] = {}
    for one in series:
        named.setdefault(one.labels["__name__"], []).append(one)
    with file.open("w") as stream:
        for name, group in named.items():
            stream.write(f"# TYPE {name} unknown\n")
            for one in group:
                labels = ",".join(
                    f'{key}="{value}"' for key, value in one.labels.items() if key != "__name__"
                )
                stream.writelines(
                    f"{name}{{{labels}}} {value!r} {t:.3f}\n" for t, value in one.points
                )
        stream.write("# EOF\n")
    made = [command, "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "tsdb")]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"promtool: {done.stdout}{done.stderr}")
    file.unlink()


def answers(url: str) -> bool:
    """Whether a server answers well."""
    try:
        return httpx2.get(url, timeout=1).is_success
    except httpx2.TransportError:
        return False
