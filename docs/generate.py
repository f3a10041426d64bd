"""Writes the pages that follow from the code: those of PAGES, whole or the part between two marks.

`--check` fails where they drift.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from api_reference import reference
from tachograph.catalog.codes import CODES
from tachograph.catalog.config import RuleOptions
from tachograph.catalog.counters import COUNTERS, DCGM_PREFIX, HOST_COUNTERS, LDMS_PREFIX, Counter, HostCounter
from tachograph.catalog.devices import DEVICE_CATALOGUE, DEVICE_PIPES, Device, ridge, value_fields
from tachograph.catalog.errors import EXIT_CODES
from tachograph.catalog.table_columns import TableColumn
from tachograph.catalog.tables import COMPUTED, LABELS, PROFILES, TABLES, TIME, LakeTable
from tachograph.cli.tree import CommandText, OptionText, command_texts, common_options
from tachograph.judge.check import FAMILIES, Check
from tachograph.judge.checks import CHECKS
from tachograph.judge.rules.listing import parameter_text
from tachograph.judge.rules.ruleset import RuleEntry, read_rules

FOLDER = Path(__file__).resolve().parent
_NOTE = "<!-- Made by `make docs`; a change here is overwritten. -->"
_DASH = "–"


def counters_page() -> str:
    """Return docs/counters.md: one row per counter, inside and at each producer."""
    inside = markdown_table(("counter", "unit", "kind", "range", "meaning"), map(_inside, COUNTERS))
    outside = markdown_table(
        ("counter", "DCGM id", f"DCGM (`{DCGM_PREFIX}...`)", "DCGM 4.6", f"LDMS (`{LDMS_PREFIX}...`)", "NVML or GPM"),
        map(_outside, COUNTERS),
    )
    return page(
        "Counters",
        "The counters in `gpu_samples`. Units are converted on the way in; a value outside its range becomes null "
        "and is counted in `rejects`. Null means not measured. `tachograph lake counters --json` prints the same.",
        inside,
        "## Names at the producers",
        "The unit a producer writes stands in brackets where it is not the unit inside.",
        outside,
        "## Host counters",
        "The counters in `node_samples`. Cumulative ones are kept as they count, added up over the CPUs, interfaces, "
        "ports or file systems of a node, the loopback interface left out.",
        markdown_table(
            ("counter", "unit", "kind", "meaning", "node_exporter", "LDMS sampler: metric"),
            map(_of_host, HOST_COUNTERS),
        ),
    )


def _inside(counter: Counter) -> tuple[str, ...]:
    high = "" if counter.high == float("inf") else f"{counter.high:,}"
    kind, remark = str(counter.kind), " 0 on the way in means null." if counter.zero_is_missing else ""
    return (f"`{counter.name}`", counter.unit, kind, f"{counter.low:,} .. {high}".rstrip(), counter.sentence + remark)


def _outside(counter: Counter) -> tuple[str, ...]:
    return (
        f"`{counter.name}`",
        str(counter.dcgm_id or _DASH),
        ", ".join(
            _producer(name, counter.dcgm_unit, counter.unit) for name in (counter.dcgm_name, *counter.dcgm_aliases)
        ),
        _producer(counter.dcgm_name_46, counter.dcgm_unit, counter.unit),
        _producer(counter.ldms_name, counter.ldms_unit, counter.unit),
        _producer(counter.nvml, counter.nvml_unit, counter.unit),
    )


def _of_host(counter: HostCounter) -> tuple[str, ...]:
    return (
        f"`{counter.name}`",
        counter.unit,
        str(counter.kind),
        counter.sentence,
        _several((_series(*one) for one in counter.node_exporter), counter.node_exporter_unit, counter.unit),
        _several((f"{sampler}: {metric}" for sampler, metric in counter.ldms), counter.ldms_unit, counter.unit),
    )


def _series(metric: str, labels: Mapping[str, str]) -> str:
    wanted = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{metric}{{{wanted}}}" if wanted else metric


def _several(names: Iterable[str], unit: str | None, inside: str) -> str:
    return ", ".join(_producer(name, unit, inside) for name in names) or _DASH


def _producer(name: str | None, unit: str | None, inside: str) -> str:
    if not name:
        return _DASH
    return f"`{name}`" if unit in (None, inside) else f"`{name}` ({unit})"


def devices_page() -> str:
    """Return docs/devices.md: one row per GPU model, and where each value comes from."""
    peaks = markdown_table(
        (
            "device",
            "memory GiB",
            "bandwidth GB/s",
            *(f"{_pipe(p)} TFLOP/s" for p in DEVICE_PIPES),
            "FP64 ridge",
            "FP32 ridge",
        ),
        map(_peaks, DEVICE_CATALOGUE),
    )
    chips = markdown_table(
        ("device", "vendor", "architecture", "form", "SMs", "warps per SM", "L2 MiB", "board W"),
        map(_chip, DEVICE_CATALOGUE),
    )
    sources = markdown_table(
        ("device", "value", "source"), (row for device in DEVICE_CATALOGUE for row in _sources(device))
    )
    return page(
        "Devices",
        "The GPU models whose peaks are known. Tensor peaks are dense FP16/BF16. A ridge point is the arithmetic "
        "intensity in FLOP/B above which a kernel is limited by compute. A dash: the vendor does not publish it, or "
        "there is no such pipe. `tachograph lake devices --json` prints the same.\n\n"
        "A virtual GPU (`A100-10C`) has the peaks of its board, which it has in turn with others, and the memory of "
        "its profile; drivers report less, because a part is reserved. A slice (`A100-3-20C`, MIG) matches no row. "
        "A MI250X is two dies, each a GPU of its own (`MI250X GCD`) by its capacity; one reports the power of both, "
        "the other 0 W, which is missing.",
        peaks,
        "## Chips",
        chips,
        "## Sources",
        sources,
    )


def _pipe(name: str) -> str:
    return {"tensor": "tensor", "fp64_tensor": "FP64 tensor"}.get(name, name.upper())


def _number(value: float | None, per: float = 1.0) -> str:
    return _DASH if value is None else f"{value / per:.4g}"


def _peaks(device: Device) -> tuple[str, ...]:
    return (
        device.name,
        _number(device.hbm_mib, 1024),
        _number(device.hbm_bytes_per_s, 1e9),
        *(_number(device.peak_flop_per_s(pipe), 1e12) for pipe in DEVICE_PIPES),
        _number(ridge(device, "fp64")),
        _number(ridge(device, "fp32")),
    )


def _chip(device: Device) -> tuple[str, ...]:
    return (
        device.name,
        device.vendor,
        device.architecture,
        device.form,
        str(device.sms),
        str(device.max_warps_per_sm),
        _number(device.l2_bytes, 1 << 20),
        _number(device.board_power_w),
    )


def _sources(device: Device) -> Iterable[tuple[str, str, str]]:
    """Rows (device, its values, their source), one per document."""
    values: dict[str, list[str]] = {}
    for name in value_fields():
        source = device.source(name)
        if source is not None:
            values.setdefault(source, []).append(f"`{name}`")
    return ((device.name, ", ".join(names), source) for source, names in values.items())


def tables_page() -> str:
    """Return docs/tables.md: every table of the lake, its grain and columns."""
    return page(
        "Tables",
        "The tables of the lake, each a Delta table that DuckDB, Spark, Trino, pandas and Polars read. Times are UTC, "
        "fractions run 0..1, and a missing value is null; the meaning of null stands per column (empty: never null).",
        "## Recorded",
        *_tables(TABLES),
        "## Computed",
        *_tables({**COMPUTED, LABELS.name: LABELS, PROFILES.name: PROFILES}),
    )


def _tables(tables: Mapping[str, LakeTable]) -> Iterable[str]:
    for table in tables.values():
        key = ", ".join(f"`{name}`" for name in table.key)
        days = " Partitioned by day." if table.by_day else ""
        yield f"### `{table.name}`"
        yield f"{table.grain[0].upper()}{table.grain[1:]}. Key: {key}.{days}"
        yield markdown_table(("column", "type", "unit", "meaning", "null means"), map(_column, table.columns))


def _column(column: TableColumn) -> tuple[str, ...]:
    dtype = "Datetime(us, UTC)" if column.dtype == TIME else str(column.dtype)
    return (f"`{column.name}`", dtype, column.unit, column.sentence, column.null or "")


def checks_page() -> str:
    """Return docs/checks.md: every check, and every rule of the catalogue, from the most specific of a family on."""
    rules = [(entry.check, entry.pattern.criterion) for entry in read_rules(RuleOptions()).entries]
    of_rules = [(check, criterion) for check, criterion in rules if check.code not in CODES and not check.deciders]
    families = tuple(dict.fromkeys(check.family for check in (*CHECKS, *(check for check, _ in of_rules))))
    return page(
        "Checks",
        "What is looked for in every job. Each check has one code, title, severity, advice text and file. Of the "
        "checks of one family that hold, the most specific is reported; the others are kept with `covered_by`. "
        "Criteria are in [job-report.md](job-report.md#every-finding), [job-classes.md](job-classes.md) and "
        "[rules.md](rules.md).",
        "## Reported by family",
        "In the order in which one covers the next. What is found in a family also covers its wider families.",
        markdown_table(
            ("family", "within", "checks and rules"),
            (
                (name, ", ".join(FAMILIES.get(name, ())) or _DASH, ", ".join(_of_family(name, of_rules)))
                for name in families
            ),
        ),
        "## Checks",
        markdown_table(
            ("check", "severity", "title", "advice"),
            ((f"`{check.code}`", check.severity, check.title, check.advice or _DASH) for check in CHECKS),
        ),
        "## Rules of the catalogue",
        markdown_table(
            ("rule", "severity", "criterion", "advice"),
            ((f"`{check.code}`", check.severity, said, check.advice or _DASH) for check, said in of_rules),
        ),
    )


def _of_family(name: str, of_rules: Sequence[tuple[Check, str]]) -> list[str]:
    return [f"`{check.code}`" for check in (*CHECKS, *(check for check, _ in of_rules)) if check.family == name]


def commands_page() -> str:
    """Return docs/commands.md: every command with its options, exit codes, completion, the manual page."""
    codes = ((str(code), meaning) for code, meaning in EXIT_CODES.items())
    return page(
        "Commands",
        "Every command and its options, as `tachograph help COMMAND` prints them. stdout is data; progress, remarks "
        "and errors go to stderr. Where stderr is no terminal no progress bar is drawn; the steps of `figures` are a "
        "line each.",
        "## Exit codes",
        "One per kind of mistake. An error is one line: where, what, what to do; for a misspelt name the closest one. "
        "`record` ends with the exit code of the command that it ran.",
        markdown_table(("code", "meaning"), codes),
        "## Completion and manual page",
        "`tachograph completion SHELL` prints what bash, zsh or fish completes by: commands, options, files, and the "
        "names of findings, columns, figures, states. Write it once where the shell looks, and again after an upgrade:",
        "```sh\n"
        "mkdir -p ~/.local/share/bash-completion/completions ~/.zfunc ~/.config/fish/completions\n"
        "tachograph completion bash > ~/.local/share/bash-completion/completions/tachograph\n"
        "tachograph completion zsh > ~/.zfunc/_tachograph     # fpath+=~/.zfunc before compinit in ~/.zshrc\n"
        "tachograph completion fish > ~/.config/fish/completions/tachograph.fish\n"
        "tachograph help --man | man -l -                     # of one command: tachograph help --man jobs\n"
        "```",
        "In a checkout `make man` writes `tachograph.1`.",
        "## Options of every command",
        _option_table(common_options()),
        *(block for command in command_texts() for block in _command_blocks(command, "##")),
    )


def _command_blocks(command: CommandText, level: str) -> Iterable[str]:
    yield f"{level} {command.prog}"
    yield f"{command.sentence}\n\n    {command.synopsis}"
    if command.arguments or command.options:
        yield _option_table((*command.arguments, *command.options))
    for part in command.parts:
        yield from _command_blocks(part, f"{level}#")


def _option_table(options: Iterable[OptionText]) -> str:
    return markdown_table(
        ("option", "meaning"), ((f"`{option.written}`", option.meaning or _DASH) for option in options)
    )


def page(title: str, *blocks: str) -> str:
    """Return a Markdown page."""
    return "\n\n".join((f"# {title}", _NOTE, *blocks)) + "\n"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown_table(("a", "b"), [("1", "x|y")]))
    | a | b |
    | --- | --- |
    | 1 | x\\|y |
    """
    lines = [headings, ["---"] * len(headings), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rules_page() -> str:
    """Return docs/rules.md with the table of the catalogue written anew: one row per rule."""
    table = markdown_table(
        ("rule", "of", "severity", "what it looks for", "parameters", "needs", "check or family"),
        map(_rule, read_rules(RuleOptions()).entries),
    )
    page = (FOLDER / "rules.md").read_text(encoding="utf-8")
    return _CATALOGUE.sub(lambda found: f"{found[1]}\n{table}\n{found[2]}", page)


def api_page() -> str:
    """Return docs/api.md with the reference of the endpoints written anew."""
    parts = [text + (f"\n\n{markdown_table(rows[0], rows[1:])}" if rows else "") for text, rows in reference()]
    page = (FOLDER / "api.md").read_text(encoding="utf-8")
    blocks = "\n\n".join(parts)
    return _CATALOGUE.sub(lambda found: f"{found[1]}\n\n{blocks}\n\n{found[2]}", page)


_CATALOGUE = re.compile(r"(<!-- The (?:catalogue|endpoints), made by `make docs` -->).*?(<!-- end -->)", re.DOTALL)


def _rule(entry: RuleEntry) -> tuple[str, ...]:
    check = entry.check
    wider = check.code if check.code != entry.code else check.family
    return (
        f"`{entry.code}`",
        entry.rule.level,
        entry.severity,
        entry.pattern.criterion,
        ", ".join(f"`{name}` {value}" for name, value in (parameter_text(entry, name) for name in entry.values)),
        ", ".join(f"`{name}`" for name in entry.counters),
        _DASH if wider == entry.code else f"`{wider}`" if wider == check.code else wider,
    )


def dependencies_page() -> str:
    """Return docs/dependencies.md: licences of what the core and each extra requires, and all that is locked."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = {"core": project["dependencies"], **project["optional-dependencies"]}
    extras_of: dict[str, list[str]] = {}
    for extra, lines in requirements.items():
        for line in lines:
            name = re.split(r"[\[<>=]", line, maxsplit=1)[0]
            if name != project["name"]:
                extras_of.setdefault(name, []).append(extra)
    rows = [(name, ", ".join(extras), _licence(name)) for name, extras in sorted(extras_of.items())]
    lock = (FOLDER.parent / "requirements" / "run.txt").read_text(encoding="utf-8")
    locked = sorted(set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)))
    return page(
        "Dependencies",
        "What the core and each extra of the package require, with the licence that each package names.",
        markdown_table(("package", "required by", "licence"), rows),
        f"`requirements/run.txt` locks these {len(locked)} packages with hashes, for x86-64 and for aarch64: "
        f"{', '.join(locked)}.",
    )


def _licence(name: str) -> str:
    try:
        facts = metadata.metadata(name)
    except metadata.PackageNotFoundError:  # needed only beside a GPU, so not part of the development environment
        return _DASH
    classified = [line.rpartition("::")[2].strip() for line in facts.get_all("Classifier") or () if "License" in line]
    expressions = facts.get_all("License-Expression") or [", ".join(classified)]
    return expressions[0] or _first_line(facts.get_all("License"))


def _first_line(texts: Sequence[str] | None) -> str:
    return texts[0].partition("\n")[0] if texts else _DASH


PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api_page,
    "checks.md": checks_page,
    "commands.md": commands_page,
    "counters.md": counters_page,
    "dependencies.md": dependencies_page,
    "devices.md": devices_page,
    "rules.md": rules_page,
    "tables.md": tables_page,
}


def main(arguments: Sequence[str]) -> None:
    """Write the pages, or with `--check` end with a message naming those that are not what would be written."""
    written = {name: make() for name, make in PAGES.items()}
    if "--check" not in arguments:
        for name, text in written.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return
    drifted = [name for name, text in written.items() if _now(FOLDER / name) != text]
    if drifted:
        sys.exit(f"docs: {', '.join(drifted)} drifted from the code: run `make docs` and commit what it writes")


def _now(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


if __name__ == "__main__":
    main(sys.argv[1:])
