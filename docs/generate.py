"""Writes what follows from the code: the pages of PAGES, whole or the part between two marks, and
the types of rows.

`--check` fails where they drift.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import polars as pl

from api_reference import reference
from conf import CONTENTS
from row_types import rows_module
from tachograph.catalog.codes import CODES
from tachograph.catalog.config import RuleOptions
from tachograph.catalog.counters import (
    COUNTERS,
    DCGM_PREFIX,
    HOST_COUNTERS,
    LDMS_PREFIX,
    HostCounter,
)
from tachograph.catalog.counters import Counter as GpuCounter
from tachograph.catalog.devices import DEVICE_CATALOGUE, DEVICE_PIPES, Device
from tachograph.catalog.errors import EXIT_CODES
from tachograph.catalog.table_columns import NOT_MEASURED, TableColumn
from tachograph.catalog.tables import (
    COMPUTED,
    JOB_SUMMARIES,
    LABELS,
    MINUTE_MEANS,
    PIPES,
    PROFILES,
    TABLES,
    WASTE,
    LakeTable,
)
from tachograph.catalog.units import text
from tachograph.cli.tree import CommandText, OptionText, command_texts, common_options
from tachograph.judge.check import FAMILIES
from tachograph.judge.checks import CHECKS
from tachograph.judge.rules.listing import parameter_text
from tachograph.judge.rules.ruleset import RuleEntry, read_rules

FOLDER = Path(__file__).resolve().parent
SERVED = FOLDER.parent / "src/tachograph/annexes/serve/documentation"
_NOTE = "<!-- Made by `make docs`; a change here is overwritten. -->"
_DASH = "–"
_SEVERAL = 3  # uses from which on a text stands once
# Commands of 0.1.0: the program answers an old name with the new one.
_RENAMED = """\
| old | new |
| --- | --- |
| `compact`, `forget`, `counters`, `devices` | `lake compact`, `lake forget`, `lake counters`, `lake devices` |
| `comment`, `digest`, `policy` | `act comment`, `act digest`, `act policy` |
| `kernels`, `colocate` | `share kernels`, `share colocate` |
| `rules`, `classify`, `tune` | `lab rules`, `lab classify`, `lab tune` |
| `scores`, `accuracy`, `simulate` | `lab scores`, `lab accuracy`, `lab simulate` |
| `figures` | `study` |"""


def counters_page() -> str:
    """Return docs/counters.md: one row per counter, inside and at each producer."""
    inside = "\n".join(map(_inside, COUNTERS))
    outside = markdown_table(
        (
            "counter",
            "DCGM id",
            f"DCGM (`{DCGM_PREFIX}...`)",
            "DCGM 4.6",
            f"LDMS (`{LDMS_PREFIX}...`)",
            "NVML or GPM",
        ),
        map(_outside, COUNTERS),
    )
    return page(
        "Counters",
        "The counters in `gpu_samples`. Units are converted on the way in; a value outside its range becomes null "
        "and is counted in `rejects`. Fractions run 0..1. `tachograph lake counters --json` "
        "prints the same.",
        inside,
        "## Names at the producers",
        "The unit a producer writes stands in brackets where it is not the unit inside.",
        outside,
        "## Host counters",
        "The counters in `node_samples`. Cumulative ones are kept as they count, added up over "
        "the CPUs, interfaces, "
        "ports or file systems of a node, the loopback interface left out.",
        markdown_table(
            ("counter", "unit", "meaning", "node_exporter", "LDMS sampler: metric"),
            map(_of_host, HOST_COUNTERS),
        ),
    )


def _inside(counter: GpuCounter) -> str:
    high = f"{counter.high:,.0f}" if counter.high < 1e7 else f"{counter.high:.0e}"
    if counter.unit == "B/s":
        high = text(counter.high, counter.unit)
    limits = (
        f"from {counter.low:g}" if counter.high == float("inf") else f"{counter.low:g} to {high}"
    )
    remark = " 0 on the way in means null." if counter.zero_is_missing else ""
    described = _unit_and_kind(counter.unit, counter.kind)
    limits = "" if counter.unit in ("fraction", "flag") else f", {limits}"
    return f"- `{counter.name}` ({described}{limits}): {counter.sentence}{remark}"


def _unit_and_kind(unit: str, kind: str) -> str:
    return unit if kind in (unit, "instant") else f"{unit}, {kind}"


def _outside(counter: GpuCounter) -> tuple[str, ...]:
    return (
        f"`{counter.name}`",
        str(counter.dcgm_id or _DASH),
        ", ".join(
            _producer(name, counter.dcgm_unit, counter.unit)
            for name in (counter.dcgm_name, *counter.dcgm_aliases)
        ),
        _producer(counter.dcgm_name_46, counter.dcgm_unit, counter.unit),
        _producer(counter.ldms_name, counter.ldms_unit, counter.unit),
        _producer(counter.nvml, counter.nvml_unit, counter.unit),
    )


def _of_host(counter: HostCounter) -> tuple[str, ...]:
    return (
        f"`{counter.name}`",
        _unit_and_kind(counter.unit, counter.kind),
        counter.sentence,
        _several(
            (_series(*one) for one in counter.node_exporter),
            counter.node_exporter_unit,
            counter.unit,
        ),
        _several(
            (f"{sampler}: {metric}" for sampler, metric in counter.ldms),
            counter.ldms_unit,
            counter.unit,
        ),
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
    """Return docs/devices.md: one row per GPU model."""
    pipes = (f"{_pipe(pipe)} TFLOP/s" for pipe in DEVICE_PIPES)
    chip = ("SMs", "board W")
    headings = ("device", "memory GiB", "GB/s", *pipes, *chip)
    return page(
        "Devices",
        "The GPU models whose peaks are known, and what reports compare a job with. How to read a "
        "row: an A100 SXM 80GB moves at most 2039 GB/s to and from its memory and computes 9.7 "
        "TFLOP/s in FP64. 9.7 / 2.039 = 4.757 is its FP64 ridge point in FLOP/B: a kernel that "
        "does more operations than that per byte of memory traffic is limited by compute, one "
        "that does fewer by memory. Tensor peaks are dense FP16/BF16. A dash: not published, or "
        "no such pipe.\n\n"
        "`tachograph lake devices` prints the ridge points, with `--json` also L2, warps per SM, "
        "peaks of links, the source of each value, and practical peaks (`practical_...`) where they "
        "were measured, so far of H100 SXM.\n\n"
        "A virtual GPU (`A100-10C`) has the peaks of its board and the memory of its profile; "
        "drivers report less, because a part is reserved. A slice (`A100-3-20C`, MIG) matches no "
        "row. A MI250X is two dies, each a GPU of its own (`MI250X GCD`) by its capacity; one "
        "reports the power of both, the other 0 W, which is missing.\n\n"
        "A model that is missing is a table of the [configuration](configuration.md), or for all "
        "sites [a device](../CONTRIBUTING.md#a-device) of the catalogue. The table has the fields of "
        "that JSON; required are `name`, `hbm_bytes_per_s`, `hbm_mib`, `sms` and "
        "`max_warps_per_sm`, the others are unknown where left out. `model` "
        "is the name that the driver reports, `*` allowed. It comes before the catalogue where "
        "the measured memory fits (down to 10 % less), and its `name` is in results.\n\n"
        "```toml\n[[device]]\n"
        'name = "X900"  # an example: no such model exists\nmodel = "ACME X900*"\n'
        "hbm_bytes_per_s = 2e12\nhbm_mib = 65536\nsms = 100\nmax_warps_per_sm = 64\n"
        "fp64_flop_per_s = 10e12  # also fp32_, fp16_, tensor_, fp64_tensor_flop_per_s\n"
        "board_power_w = 500  # also l2_bytes, nvlink_bytes_per_s, pcie_bytes_per_s (one direction)"
        "\n```",
        markdown_table(headings, map(_device_row, DEVICE_CATALOGUE)),
    )


def _pipe(name: str) -> str:
    return {"tensor": "tensor", "fp64_tensor": "FP64 tensor"}.get(name, name.upper())


def _number(value: float | None, per: float = 1.0) -> str:
    return _DASH if value is None else f"{value / per:.4g}"


def _device_row(device: Device) -> tuple[str, ...]:
    return (
        device.name,
        _number(device.hbm_mib, 1024),
        _number(device.hbm_bytes_per_s, 1e9),
        *(_number(device.peak_flop_per_s(pipe), 1e12) for pipe in DEVICE_PIPES),
        str(device.sms),
        _number(device.board_power_w),
    )


def tables_page() -> str:
    """Return docs/tables.md: every table of the lake, its grain and columns; a column of several
    tables once.
    """
    tables = (*TABLES.values(), *COMPUTED.values(), LABELS, PROFILES)
    described: dict[ColumnText, str] = {}
    parts = [_table_block(table, described) for table in tables]
    return page(
        "Tables",
        "The tables of the lake, each a Delta table that DuckDB, Spark, Trino, pandas and "
        "Polars read; "
        "[how](lake.md#read-it-with-duckdb-spark-pandas). Times are UTC, fractions run 0..1. "
        "Null means not measured "
        "or not known, unless the row says otherwise. The key of a table stands in brackets or "
        "behind *Key*. A column of several tables stands once, a metric on the page of "
        "[metrics](metrics.md).",
        *parts,
    )


class ColumnText(NamedTuple):
    """A row of the page: a column, or the pattern of several."""

    name: str
    unit: str
    sentence: str
    null: str


def _table_block(table: LakeTable, described: dict[ColumnText, str]) -> str:
    """Return heading, grain and columns of a table; `described` has the rows of those above and
    takes its rows.
    """
    names_of: dict[ColumnText, list[str]] = {}
    for column in table.columns:
        row, name = _column_text(column)
        names_of.setdefault(row, []).append(name)
    metrics = {  # name or pattern: its unit
        _shown(row, names): row.unit
        for row, names in names_of.items()
        if row not in described and _is_metric(table, row, names)
    }
    nulls = Counter(
        row.null
        for row, names in names_of.items()
        if row.null and row not in described and _shown(row, names) not in metrics
    )
    lines: list[str] = []
    of_null: dict[str, list[str]] = {}
    known: dict[str, list[str]] = {}
    for row, names in names_of.items():
        shown = _shown(row, names)
        if row in described:
            same = known.setdefault(described[row], [])
            same += [shown] if shown not in same else []
            continue
        described[row] = table.name
        if shown in metrics:
            continue
        lines.append(_column_line(row, names, with_null=nulls[row.null] < _SEVERAL))
        if nulls[row.null] >= _SEVERAL:
            of_null.setdefault(row.null, []).append(shown)
    lines += [f"- Null in {', '.join(names)}: {null}" for null, names in of_null.items()]
    if known:
        columns = "; ".join(f"`{other}`: {', '.join(names)}" for other, names in known.items())
        lines.append(f"- As in {columns}")
    if metrics:
        lines.append(f"- As in [metrics](metrics.md): {_by_unit(metrics)}")
    key = (
        f" Key: {', '.join(f'`{name}`' for name in table.key)}."
        if ", ".join(table.key) not in table.grain
        else ""
    )
    days = " Partitioned by day." if table.by_day else ""
    grain = f"{table.grain[0].upper()}{table.grain[1:]}.{key}{days}"
    return "\n\n".join((f"## `{table.name}`", grain, "\n".join(lines)))


def _by_unit(metrics: Mapping[str, str]) -> str:
    """Return names by their unit, those without one first."""
    units = sorted(dict.fromkeys(metrics.values()), key=lambda unit: unit != "")
    groups: list[str] = []
    for unit in units:
        names = ", ".join(name for name, its_unit in metrics.items() if its_unit == unit)
        groups.append(f"{unit}: {names}" if unit else names)
    return "; ".join(groups)


def _shown(row: ColumnText, names: Sequence[str]) -> str:
    """Return the name of a column in code, or the pattern of several."""
    return f"`{row.name if len(names) > 1 else names[0]}`"


def _is_metric(table: LakeTable, row: ColumnText, names: Sequence[str]) -> bool:
    """Whether these columns are metrics of jobs, which docs/metrics.md defines."""
    if table is not JOB_SUMMARIES and not row.name.startswith(_RECORDED_BY_OTHERS):
        return False
    page_text = (FOLDER / "metrics.md").read_text(encoding="utf-8")
    return f"`{row.name}`" in page_text or all(f"`{name}`" in page_text for name in names)


def _column_text(column: TableColumn) -> tuple[ColumnText, str]:
    """Return the row that describes a column, alone or with others of its pattern, and the name
    of the column.
    """
    null = "" if column.null in (None, NOT_MEASURED, "not known") else str(column.null)
    unit = "list" if isinstance(column.dtype, pl.List) else _UNITS.get(column.unit, column.unit)
    sentence = column.sentence if column.sentence.endswith("...") else column.sentence.rstrip(".")
    if column.sentence == _COUNTER_SENTENCES.get(column.name):
        return ColumnText("<counter>", "", "As in [counters](counters.md)", null), column.name
    for pattern, placeholder in _PATTERNS:
        found = pattern.search(column.name)
        if found:
            name = f"{column.name[: found.start()]}{placeholder}{column.name[found.end() :]}"
            unit = "" if placeholder == "<counter>" else unit
            return ColumnText(
                name, unit, sentence.replace(found[0], placeholder), null
            ), column.name
    return ColumnText(column.name, unit, sentence, null), column.name


def _column_line(row: ColumnText, names: Sequence[str], *, with_null: bool) -> str:
    unit = f" ({row.unit})" if row.unit else ""
    null = f". Null: {row.null}" if row.null and with_null else ""
    if len(names) == 1:
        return f"- `{names[0]}`{unit}: {row.sentence}{null}"
    head, _, tail = row.name.partition(row.name[row.name.index("<") : row.name.index(">") + 1])
    of = ", ".join(name.removeprefix(head).removesuffix(tail) for name in names)
    return (
        f"- `{row.name}`{unit}: "
        f"{row.sentence}{f' ({of})' if len(names) <= _MOST_NAMED else ''}{null}"
    )


_RECORDED_BY_OTHERS = ("recorded_", "task_gpu_")
_UNITS = {"UTC": "", "index": "", "count": ""}  # units that the name or the sentence says
_MOST_NAMED = 16  # names that a line lists
_COUNTER_SENTENCES = {counter.name: counter.sentence for counter in COUNTERS}
_COUNTER_SENTENCES |= {counter.name: counter.sentence for counter in HOST_COUNTERS}
_COUNTER_PATTERN = "|".join(counter.name for counter in COUNTERS)
_PATTERNS = (
    (re.compile(rf"^({_COUNTER_PATTERN})(?=_(mean|max)$)"), "<counter>"),
    (re.compile(rf"(?<=imbalance_)({_COUNTER_PATTERN})$"), "<counter>"),
    (re.compile(rf"^({'|'.join(MINUTE_MEANS)})$"), "<counter>"),
    (re.compile(rf"(?<=fraction_)({'|'.join(PIPES)})$|(?<=bound_)({'|'.join(PIPES)})$"), "<pipe>"),
    (
        re.compile(rf"(?<=^gpu_hours_)({'|'.join(WASTE)})$|(?<=^energy_j_)({'|'.join(WASTE)})$"),
        "<cause>",
    ),
)


def job_report_page() -> str:
    """Return docs/job-report.md with the families of checks and rules written anew, most
    specific check first.
    """
    rules = [entry.check for entry in read_rules(RuleOptions()).entries]
    families: dict[str, list[str]] = {}
    for check in (
        *CHECKS,
        *(check for check in rules if check.code not in CODES and not check.deciders),
    ):
        families.setdefault(check.family, []).append(f"`{check.code}`")
    lines = (
        f"- {_family_text(name)}: {', '.join(codes)}"
        for name, codes in families.items()
        if codes != [f"`{name}`"]
    )
    return _between_marks("job-report.md", "\n".join(lines))


def _family_text(name: str) -> str:
    wider = ", ".join(FAMILIES.get(name, ()))
    return f"**{name}** (within {wider})" if wider else f"**{name}**"


def commands_page() -> str:
    """Return docs/commands.md: every command with its options, exit codes, completion, the
    manual page.
    """
    commands = command_texts()
    uses = Counter(option for command in commands for option in _all_options(command))
    of_several = {option for option, count in uses.items() if count >= _SEVERAL}
    ordered = sorted(of_several, key=lambda option: (option.written, option.meaning))
    codes = "\n".join(f"- {code}: {meaning}" for code, meaning in EXIT_CODES.items())
    return page(
        "Commands",
        "`tachograph help COMMAND` prints the same. stdout is data; progress, remarks and "
        "errors go to stderr, where "
        "progress bars are drawn on terminals only.",
        "## Exit codes",
        (
            "An error is one line: where, what, what to do. `record` ends with the exit code of "
            "the command that it ran."
        ),
        codes,
        "## Completion and manual page",
        "`tachograph completion SHELL` prints the completion of bash, zsh or fish. Write it "
        "once where the shell "
        "looks, and again after an upgrade:",
        "```sh\n"
        "mkdir -p ~/.local/share/bash-completion/completions ~/.zfunc ~/.config/fish/completions\n"
        "tachograph completion bash > ~/.local/share/bash-completion/completions/tachograph\n"
        "tachograph completion zsh > ~/.zfunc/_tachograph     # fpath+=~/.zfunc before "
        "compinit in ~/.zshrc\n"
        "tachograph completion fish > ~/.config/fish/completions/tachograph.fish\n"
        "tachograph help --man | man -l -                     # of one command: tachograph "
        "help --man jobs\n"
        "```",
        "## Options of every command",
        _option_block(common_options()),
        "## Filters of jobs",
        _option_block(option for option in ordered if _name(option) in _FILTERS),
        "## Options of several commands",
        _option_block(option for option in ordered if _name(option) not in _FILTERS),
        *(block for command in commands for block in _command_blocks(command, "##", of_several)),
        "## Renamed since 0.1.0",
        _RENAMED,
    )


def _all_options(command: CommandText) -> Iterable[OptionText]:
    yield from command.options
    for part in command.parts:
        yield from part.options


def _command_blocks(
    command: CommandText, level: str, of_several: Set[OptionText], stated: Set[str] = frozenset()
) -> Iterable[str]:
    """Yield heading, sentence and options of a command and its parts; what all parts share stands
    once, in the sentence of the command, and `stated` there.
    """
    shared = _shared_options(command, of_several)
    every_part = [set(_shared_options(part, of_several)) for part in command.parts]
    common = set.intersection(*every_part) if len(every_part) >= _SEVERAL else set()
    names_of_parts = _shared_options(command.parts[0], of_several) if command.parts else []
    yield f"{level} {command.prog}"
    sentences = [
        command.sentence,
        _also("Also", [name for name in shared if name not in stated]),
        _also("Each also", [name for name in names_of_parts if name in common]),
    ]
    yield " ".join(filter(None, sentences))
    own = [option for option in command.options if option not in of_several]
    words = command.synopsis.removesuffix(" [options]").removeprefix(command.prog).strip()
    if len(command.arguments) == 1:
        own = [OptionText(words, command.arguments[0].meaning), *own]
    elif command.arguments:
        own = [OptionText(words, ""), *command.arguments, *own]
    if own:
        yield _option_block(own)
    for part in command.parts:
        yield from _command_blocks(part, f"{level}#", of_several, common)


def _shared_options(command: CommandText, of_several: Set[OptionText]) -> list[str]:
    """Return the options of a command that stand once on the page, the filters last."""
    names = [_name(option) for option in command.options if option in of_several]
    shared = [f"`{name}`" for name in names if name not in _FILTERS]
    if set(names) & set(_FILTERS):
        missing = ", ".join(f"`{name}`" for name in _FILTERS if name not in names)
        shared.append("[filters](#filters-of-jobs)" + (f" but {missing}" if missing else ""))
    return shared


def _also(word: str, names: Sequence[str]) -> str:
    return f"{word}: {', '.join(names)}." if names else ""


def _option_block(options: Iterable[OptionText]) -> str:
    """Return options in a block of code, as help prints them."""
    lines: list[str] = []
    for option in options:
        written = (
            f"    {option.written:<{_OPTION_WIDTH}}" if option.meaning else f"    {option.written}"
        )
        lines += textwrap.wrap(
            option.meaning,
            110,
            initial_indent=f"{written}  ",
            subsequent_indent=" " * (_OPTION_WIDTH + 6),
        ) or [written]
    return "\n".join(lines)


def _name(option: OptionText) -> str:
    """Return the name of an option without its value."""
    return option.written.partition(" ")[0]


_OPTION_WIDTH = 24
_FILTERS = (
    *("--user", "--account", "--partition", "--state", "--since", "--until"),
    *("--where", "--finding", "--verdict", "--attribution", "--in-study", "--excluded"),
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
    lines = [
        headings,
        ["---"] * len(headings),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rules_page() -> str:
    """Return docs/rules.md with the table of the catalogue written anew: one row per rule."""
    table = markdown_table(
        ("rule", "of", "severity", "what it looks for", "parameters", "needs", "check or family"),
        _rules(read_rules(RuleOptions()).entries),
    )
    return _between_marks("rules.md", table)


def _rules(entries: Iterable[RuleEntry]) -> Iterable[tuple[str, ...]]:
    """Yield a row per rule; rules of one pattern have its criterion in the first one."""
    before = ""
    for entry in entries:
        criterion = entry.pattern.criterion
        yield _rule(entry, "the same" if criterion == before else criterion)
        before = criterion


def api_page() -> str:
    """Return docs/api.md with the reference of the endpoints written anew."""
    parts = [
        text + (f"\n\n{markdown_table(rows[0], rows[1:])}" if rows else "")
        for text, rows in reference()
    ]
    return _between_marks("api.md", "\n\n".join(parts))


def _between_marks(name: str, text: str) -> str:
    """Return a page of this folder with the text between its marks."""
    page = (FOLDER / name).read_text(encoding="utf-8")
    return _CATALOGUE.sub(lambda found: f"{found[1]}\n\n{text}\n\n{found[2]}", page)


_CATALOGUE = re.compile(
    r"(<!-- The (?:catalogue|endpoints|families), made by `make docs` -->).*?(<!-- end -->)",
    re.DOTALL,
)


def _rule(entry: RuleEntry, criterion: str) -> tuple[str, ...]:
    check = entry.check
    wider = check.code if check.code != entry.code else check.family
    return (
        f"`{entry.code}`",
        entry.rule.level,
        entry.severity,
        criterion,
        ", ".join(
            f"`{name}` {value}"
            for name, value in (parameter_text(entry, name) for name in entry.values)
        ),
        ", ".join(f"`{name}`" for name in entry.counters),
        _DASH if wider == entry.code else f"`{wider}`" if wider == check.code else wider,
    )


PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api_page,
    "commands.md": commands_page,
    "counters.md": counters_page,
    "devices.md": devices_page,
    "job-report.md": job_report_page,
    "rules.md": rules_page,
    "tables.md": tables_page,
}


def llms_text(written: Mapping[str, str]) -> str:
    """Return docs/llms.txt: every page as Markdown with its first sentence, for programs.

    `written`: pages as they are now, others are read. Format: https://llmstxt.org.
    """
    lines = ["# Tachograph", "", f"> {_first_sentence((FOLDER / 'index.md').read_text('utf-8'))}"]
    for caption, names in CONTENTS.items():
        pages = [f"{name}.md" for name in names if not name.startswith("../")]
        lines += ["", f"## {caption}", ""] if pages else []
        for name in pages:
            page_text = written.get(name) or (FOLDER / name).read_text("utf-8")
            title = page_text.partition("\n")[0].removeprefix("# ")
            lines.append(f"- [{title}](docs/{name}): {_first_sentence(page_text)}")
    return "\n".join([*lines, ""])


def _first_sentence(page_text: str) -> str:
    """Return the first sentence of prose of a page, without links and emphasis."""
    prose = re.sub(r"^```.*?^```$|^<!--.*?-->$", "", page_text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in prose.split("\n\n")[1:]:
        if re.match(r"\s*[\w`\[*]", paragraph) and not paragraph.strip("\n").startswith("    "):
            words = re.sub(r"!?\[(.*?)\]\(.*?\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.:]) ", words.replace("**", ""))[0].rstrip(":.") + "."
    raise ValueError("a page without a sentence")


def link_pages() -> None:
    """Link every page into the package, from which `tachograph serve` serves them."""
    SERVED.mkdir(exist_ok=True)
    for link in SERVED.iterdir():
        link.unlink()
    for page_file in (FOLDER / "llms.txt", *FOLDER.glob("*.md")):
        (SERVED / page_file.name).symlink_to(
            Path("../" * len(SERVED.relative_to(FOLDER.parent).parts), "docs", page_file.name)
        )


def main(arguments: Sequence[str]) -> None:
    """Write the pages and the types, or with `--check` end with a message naming those that are
    not what would be written.
    """
    written = {name: make() for name, make in PAGES.items()}
    written["llms.txt"] = llms_text(written)
    written["../src/tachograph/catalog/rows.py"] = rows_module()
    if "--check" not in arguments:
        for name, text in written.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        link_pages()
        return
    drifted = [name for name, text in written.items() if _now(FOLDER / name) != text]
    if drifted:
        sys.exit(
            f"docs: {', '.join(drifted)} drifted from the code: run `make docs` and commit "
            "what it writes"
        )


def _now(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


if __name__ == "__main__":
    main(sys.argv[1:])
