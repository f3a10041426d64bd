"""Pages name everything there is: commands, keys, metrics, findings, reasons; options are on a
generated page.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tachograph.annexes.lab.simulate.behaviours import JOB_KINDS
from tachograph.annexes.lab.simulate.defects import DefectKind
from tachograph.catalog.codes import CODES
from tachograph.catalog.config import Configuration, keys, sections
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.tables import COMPUTED, JOB_SUMMARIES, JOBS, MINUTE_MEANS, PIPES, TABLES
from tachograph.cli.registry import COMMANDS, CommandEntry
from tachograph.judge.checks import CHECKS
from tachograph.sources.registry import SOURCES, SourceEntry
from tachograph.sources.table.mapping import (
    MappingKey,
    MappingMetric,
    MappingTarget,
    MappingTime,
    TableMapping,
)

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DOCS = REPOSITORY / "docs"
SOURCE = REPOSITORY / "src" / "tachograph"
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGE_OF_SOURCE = {
    "ldms": "ingest-ldms",
    "dcgm-exporter": "ingest-exporter",
    "prometheus": "ingest-prometheus",
    "table": "ingest-table",
    "nvidia-smi": "ingest-table",
    "gpu-tools": "ingest-tools",
    "sacct": "accounting",
    "pbs": "schedulers",
    "flux": "schedulers",
    "lsf": "schedulers",
    "kernel-log": "ingest-tools",
    "kubernetes": "kubernetes",
    "allocation-map": "attribution",
    "slurm-live": "attribution",
    "slurm-nodes": "capacity",
    "recording": "record",
    "clustercockpit": "ingest-clustercockpit",
}
REASON = re.compile(
    r'(?:BadRowError|Reject|NotTelemetryError|counted|_counted|_count_lines)\(\s*f?"([a-z_0-9]+)"'
)


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def everything() -> str:
    """README and pages, without the one that is made of the options themselves."""
    pages = (path for path in DOCS.glob("*.md") if path.name != "commands.md")
    return README + "".join(path.read_text(encoding="utf-8") for path in pages)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_is_documented(command: CommandEntry) -> None:
    text = everything()
    assert re.search(rf"tachograph {command.name}\b", text) or f"`{command.name}`" in text


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_source_is_documented_on_its_page(source: SourceEntry) -> None:
    assert f"tachograph ingest {source.name}" in page(PAGE_OF_SOURCE[source.name])


def test_every_key_of_the_configuration_is_documented_with_its_default() -> None:
    text = page("configuration")
    defaults = {
        key: getattr(Configuration(), key) for key in keys(Configuration).keys() - sections().keys()
    }
    for name, table in sections().items():
        defaults |= {f"{name}.{key}": getattr(table(), key) for key in keys(table)}
    rows = {f"| `{key}` | `{_toml(default)}` |" for key, default in defaults.items()}
    assert {row for row in rows if row not in text} == set()
    assert (
        set(re.findall(r"^\| `((?:[a-z]+\.)?[a-z0-9_]+)` \|", text, re.MULTILINE))
        == defaults.keys()
    )


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def test_every_key_of_a_mapping_is_documented() -> None:
    text = page("ingest-table")
    names = [field.name for field in msgspec.structs.fields(TableMapping)]
    names += [f"time.{field.name}" for field in msgspec.structs.fields(MappingTime)]
    names += [
        f"{key}.{field.name}"
        for key in ("node", "gpu", "mig")
        for field in msgspec.structs.fields(MappingKey)
    ]
    names += [f"metric.{field.name}" for field in msgspec.structs.fields(MappingMetric)]
    names += [f"columns.X.{field.name}" for field in msgspec.structs.fields(MappingTarget)]
    sections = {"time", "node", "gpu", "mig", "metric"}
    assert [name for name in names if name not in sections and f"`{name}`" not in text] == []


def test_every_metric_is_documented() -> None:
    text = page("metrics")
    known = {column.name for column in JOBS.columns} | {"seq"}
    known |= {f"{counter.name}_{end}" for counter in COUNTERS for end in ("mean", "max")} - {
        "power_w_mean"
    }
    missing = []
    for column in JOB_SUMMARIES.columns:
        general = re.sub(rf"_({'|'.join(PIPES)})$", "_<pipe>", column.name)
        general = re.sub(rf"imbalance_({'|'.join(MINUTE_MEANS)})$", "imbalance_<counter>", general)
        if (
            column.name not in known
            and f"`{column.name}`" not in text
            and f"`{general}`" not in text
        ):
            missing.append(column.name)
    assert missing == []


def test_every_table_is_documented() -> None:
    assert [name for name in (*TABLES, *COMPUTED) if f"`{name}`" not in page("lake")] == []


@pytest.mark.parametrize("code", [check.code for check in CHECKS if check.decide])
def test_a_finding_has_a_row_with_its_severity(code: str) -> None:
    (row,) = re.findall(rf"^\| `{code}` \| (.+?) \| .+ \| .+ \|$", page("job-report"), re.MULTILINE)
    assert row == CHECKS[CODES.index(code)].severity


def test_every_reason_for_a_reject_is_documented() -> None:
    readers = [path for room in ("sources", "lake") for path in SOURCE.joinpath(room).rglob("*.py")]
    reasons = {
        reason for path in readers for reason in REASON.findall(path.read_text(encoding="utf-8"))
    }
    reported = "".join(map(page, sorted(set(PAGE_OF_SOURCE.values()))))
    assert {"bad_time", "missing_mark", "ragged_row", "no_match"} <= reasons
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in reported] == []


def test_every_kind_and_defect_of_the_simulation_is_documented() -> None:
    text = page("simulate")
    for kind, facts in JOB_KINDS.items():
        planted = f"`{facts.problem}`" if facts.problem else "–"
        assert f"| `{kind.value}` | {planted} |" in text
    assert [defect.value for defect in DefectKind if f"`{defect.value}`" not in text] == []


def test_the_first_page_leads_to_every_page() -> None:
    pages = {f"docs/{path.name}" for path in DOCS.glob("*.md")}
    assert pages - set(re.findall(r"\]\((docs/[\w-]+\.md)", README)) == set()


def test_links_into_a_page_lead_to_a_heading() -> None:
    broken = []
    for path in (*REPOSITORY.glob("*.md"), *DOCS.glob("*.md")):
        for link, anchor in re.findall(
            r"\]\(([^)#:\s]*)#([^)\s]+)\)", path.read_text(encoding="utf-8")
        ):
            target = (path.parent / link if link else path).read_text(encoding="utf-8")
            headings = {
                _anchor(heading) for heading in re.findall(r"^#+ (.+)$", target, re.MULTILINE)
            }
            broken += [(path.name, link, anchor)] if anchor not in headings else []
    assert broken == []


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_images_are_small() -> None:
    assert [
        path.name for path in DOCS.joinpath("images").iterdir() if path.stat().st_size > 250_000
    ] == []
