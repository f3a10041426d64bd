"""`tachograph ingest SOURCE FILES`: read recordings and accounting into the lake, each chunk once.

`tachograph ingest PATH...` recognises the source of each file by its content.

A file that cannot be read is named on stderr; the others are committed, and the exit code reports
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tachograph.catalog.chunks import NOT_REMOVED, PASSED, UNMAPPED, of_cluster, rename_nodes
from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.units import plural
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import (
    Arguments,
    Parser,
    add_json,
    add_parts,
    configuration_of,
    options_of_part,
)
from tachograph.sources.registry import (
    SOURCES,
    SourceEntry,
    SourceModule,
    find_source,
    load_joint_source,
    load_record_source,
    load_source,
    of_site,
)

if TYPE_CHECKING:
    from datetime import datetime

    from tachograph.catalog.chunks import Chunk
    from tachograph.catalog.config import Configuration
    from tachograph.cli.ingest_paths import ReadingKeys, RecognisedFiles
    from tachograph.lake.delta import Lake
    from tachograph.lake.ingest import IngestReport

_SHOWN = 200  # characters of a rejected record
_NAMES_SHOWN = 5  # of metrics that are not read


def add_arguments(parser: Parser) -> None:
    """Declare the sources."""
    add_parts(parser, "source", SOURCES)
    parser.epilog = (
        f"{parser.epilog}\n\nIn place of a source: files and folders of any kind, "
        "`tachograph ingest PATH... --help`."
    )


def run(arguments: Arguments) -> int:
    """Read, conform, commit; print the numbers of rows read, committed and rejected."""
    from tachograph.pipeline.memory import KEEP_IN_ONE_ARENA, keep_freed_memory

    keep_freed_memory(KEEP_IN_ONE_ARENA)  # before anything below brings Polars
    if _is_path(arguments.source):
        return _ingest_paths([arguments.source, *arguments.rest], arguments)
    source = _named_source(arguments.source)
    options = options_of_part("ingest", source, partial(_declare, source), arguments.rest)
    if options is None:
        return 0
    if getattr(options, "suggest", None) is not None:
        return _suggest(options)
    return _ingest(source, options, Narrator.of(options))


def _named_source(word: str) -> SourceEntry:
    try:
        return find_source(word)
    except UsageError as problem:
        raise UsageError(f"no such file or folder, and {problem.what}", do=problem.do) from None


def parts() -> Sequence[tuple[str, str, Callable[[Parser], None]]]:
    """Return name, line of help and declaration of the options of each source."""
    return [(source.name, source.sentence, partial(_declare, source)) for source in SOURCES]


def _declare(source: SourceEntry, parser: Parser) -> None:
    load_source(source).add_options(parser)
    parser.add_argument("--cluster", default="", metavar="NAME", help="cluster of what names none")
    parser.add_argument(
        "--show-rejected",
        action="store_true",
        help="print examples of rejects; for accounting every rejected record",
    )
    add_json(parser)


def _suggest(options: Arguments) -> int:
    """Print the proposed mapping; raise an error for what it leaves open."""
    from pathlib import Path

    from tachograph.sources.gpu_tools import refuse_output
    from tachograph.sources.table.suggest import suggest

    files = [file for file in (options.suggest, *options.files) if file]
    if len(files) != 1:
        raise UsageError("--suggest proposes a mapping for one file", do="name one: --suggest FILE")
    refuse_output(Path(files[0]))
    proposed = suggest(Path(files[0]), node=options.node, zone_name=options.time_zone)
    output.print_data(proposed.text)
    if proposed.missing:
        raise InputError(
            "; ".join(proposed.missing), where=files[0], do="complete the printed mapping"
        )
    return 0


def _ingest(source: SourceEntry, options: Arguments, narrator: Narrator) -> int:
    from datetime import UTC, datetime

    from tachograph.catalog import config
    from tachograph.lake.delta import Lake

    configuration = of_site(configuration_of(options), options.cluster)
    now = datetime.now(UTC)
    lake = Lake.create(config.lake_location(options.lake, configuration))
    report = _commit(source, options, configuration, lake, now=now, narrator=narrator)
    _print(report, lake.location, options)
    if options.show_rejected and not options.json:
        _print_records(source, options, configuration)
    return InputError.exit_code if report.unread else 0


def _commit(
    source: SourceEntry,
    options: Arguments,
    configuration: Configuration,
    lake: Lake,
    *,
    now: datetime,
    narrator: Narrator,
    keys: ReadingKeys | None = None,
) -> IngestReport:
    """Commit the chunks of a source; a file that cannot be read is named, the others are read.

    keys: takes those of the rows; then chunks are read although the lake may have them.
    """
    from tachograph.cli.ingest_paths import refuse_other_zone
    from tachograph.lake.ingest import IngestReport, ingest
    from tachograph.sources.slurm.fields import node_aliases

    module = load_source(source)
    aliases = node_aliases(configuration)
    report = IngestReport()
    again = "" if keys is None else f":{now.isoformat()}"
    refuse = partial(refuse_other_zone, lake, configuration.site.time_zone, options)
    with narrator.progress(f"ingest {source.name}") as advance:
        files = dict(_one_by_one(module, options))
        joint = load_joint_source(source)
        groups = joint.recorded_together(list(files)) if joint else [[file] for file in files]

        def read(file: str) -> Iterator[Chunk]:
            for chunk in module.read(files[file], configuration=configuration, now=now):
                named = rename_nodes(of_cluster(chunk, options.cluster), aliases)
                yield replace(named, id=f"{named.id}{again}") if again else named

        chunks = _ChunksOfFiles(groups, read)
        while not chunks.is_done:
            try:
                ingest(
                    lake,
                    chunks,
                    now=now,
                    progress=lambda chunk: advance(chunk.rows_read),
                    check=refuse if keys is None else keys.add,
                    report=report,
                )
            except InputError as problem:  # the boundary: one file, or one query
                _note_unread(report, chunks.drop_file(), problem)
    return report


def _is_path(word: str) -> bool:
    """Return whether a word names a file or folder, and no source."""
    from pathlib import Path

    is_source = any(source.name == word for source in SOURCES)
    return not is_source and ("/" in word or Path(word).exists())


def _ingest_paths(words: Sequence[str], before: Arguments) -> int:
    """Recognise the files of the paths; read them source by source; print what each was."""
    from datetime import UTC, datetime

    from tachograph.catalog import config
    from tachograph.cli import ingest_paths
    from tachograph.lake.delta import Lake

    options = ingest_paths.path_options(words, before)
    if options is None:
        return 0
    from tachograph.pipeline.site_evidence import whole_node_evidence

    configuration = of_site(configuration_of(options), options.cluster)
    recognised = ingest_paths.recognise_files(options.paths)
    lake = Lake.create(config.lake_location(options.lake, configuration))
    run = _PathRun(lake, configuration, options, Narrator.of(options), datetime.now(UTC))
    reports = run.read(recognised, instead_of=options.instead_of)
    local = recognised.local({file for report in reports.values() for file in report.unread})
    zone = ingest_paths.zone_proposal(lake, local, configuration)
    if options.adopt and zone is not None:
        run.configuration = config.with_time_zone(configuration, zone.zone_name)
        reports |= run.read(local, instead_of=configuration.site.time_zone)
    proposals = ingest_paths.Proposals(zone, whole_node_evidence(lake, configuration.slurm))
    adopted = options.adopt and ingest_paths.adopt(proposals, options)
    if options.json:
        sources = {name: _as_json(report) for name, report in reports.items()}
        files = ingest_paths.files_as_json(recognised)
        output.print_json({**files, "sources": sources, "proposals": proposals})
    else:
        lines = [
            *ingest_paths.file_lines(recognised),
            *ingest_paths.proposal_lines(proposals, local, configuration, options, adopted=adopted),
            *ingest_paths.model_lines(lake, configuration),
        ]
        output.print_text("".join(f"{line}\n" for line in lines))
    is_unread = recognised.damaged or any(report.unread for report in reports.values())
    return InputError.exit_code if is_unread or not reports else 0


@dataclass(slots=True)
class _PathRun:
    """Reads recognised files into a lake, source by source."""

    lake: Lake
    configuration: Configuration
    options: Arguments
    narrator: Narrator
    now: datetime

    def read(
        self, recognised: RecognisedFiles, *, instead_of: str | None
    ) -> dict[str, IngestReport]:
        """Commit the files and print what they held; return {source: report}.

        instead_of: the zone in which local times of these files were read before.
        """
        from tachograph.cli import ingest_paths

        reports: dict[str, IngestReport] = {}
        for source, options in ingest_paths.each_source(recognised, self.options, _declare):
            is_local = ingest_paths.is_local(source.name)
            keys = ingest_paths.ReadingKeys(self.now) if instead_of and is_local else None
            reports[source.name] = _commit(
                source,
                options,
                self.configuration,
                self.lake,
                now=self.now,
                narrator=self.narrator,
                keys=keys,
            )
            if not options.json:
                output.print_text(f"{source.name}: {plural(len(options.files), 'file')}\n")
                _print(reports[source.name], self.lake.location, options)
            if instead_of and keys is not None:
                self._remove_stale(source, options, instead_of, keys)
        return reports

    def _remove_stale(
        self, source: SourceEntry, options: Arguments, wrong_zone: str, after: ReadingKeys
    ) -> None:
        """Remove the rows that the files give in the wrong zone only; after: keys in the right one.

        It is last: killed before it, the lake has both, and the same command ends the work.
        """
        from tachograph.catalog.config import with_time_zone
        from tachograph.cli.ingest_paths import ReadingKeys
        from tachograph.lake.corrections import remove_keys

        before = ReadingKeys(self.now)
        before.read(source, options, with_time_zone(self.configuration, wrong_zone))
        removed = remove_keys(self.lake, before.missing_in(after))
        counted = (
            plural(count, name.removesuffix("s")) for name, count in removed.items() if count
        )
        what = ", ".join(counted) or "nothing"
        self.narrator.say(f"{source.name}: removed what was read in {wrong_zone}: {what}")


class _ChunksOfFiles:
    """The chunks of groups of files; within a group, always of the file that is furthest behind.

    After an error of a file it goes on with the others once that file is dropped.
    """

    def __init__(
        self, groups: Sequence[Sequence[str]], read: Callable[[str], Iterator[Chunk]]
    ) -> None:
        self._groups = list(reversed(groups))
        self._read = read
        self._open: dict[str, Iterator[Chunk]] = {}
        self._rows: dict[str, int] = {}
        self._file = ""
        self.is_done = False

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        while self._open or self._groups:
            if not self._open:
                self._rows = dict.fromkeys(self._groups.pop(), 0)
                self._open = {file: iter(()) for file in self._rows}
                for file in self._rows:
                    self._file = file
                    self._open[file] = self._read(file)
            self._file = min(self._open, key=lambda file: self._rows[file])
            chunk = next(self._open[self._file], None)
            if chunk is not None:
                if len(self._rows) > 1:
                    self._rows[self._file] += chunk.rows_read
                return chunk
            del self._open[self._file]
        self.is_done = True
        raise StopIteration

    def drop_file(self) -> str:
        """Skip the rest of the file that was read last; return its name."""
        self._open.pop(self._file, None)
        return self._file


def _one_by_one(module: SourceModule, options: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Yield each file with its own options, files of folders in order of name.

    Yields "" if no file is named.
    """
    names = getattr(options, "files", None)
    if not names:
        yield "", options
        return
    folders = {name: _of_folder(name, module) for name in names}
    alone = sum(len(files) or 1 for files in folders.values()) == 1
    for name, files in folders.items():
        for file in files or [name]:
            of_file = {"files": [file], "in_folder": bool(files), "alone": alone}
            yield file, Arguments(**{**vars(options), **of_file})


def _of_folder(name: str, module: SourceModule) -> list[str]:
    """Return the files in a folder that the source reads; none if it is no folder or empty."""
    from pathlib import Path

    from tachograph.sources.files import expand

    try:
        return (
            [str(file) for file in expand([name], module.SUFFIXES)] if Path(name).is_dir() else []
        )
    except InputError:
        return []


def _note_unread(report: IngestReport, file: str, problem: InputError) -> None:
    """Report a problem once where several files have it."""
    if str(problem) not in report.unread.values():
        narrate.error(problem)
    report.unread[file] = str(problem)


def _print(report: IngestReport, where: str, options: Arguments) -> None:
    if options.json:
        output.print_json(_as_json(report))
        return
    if report.chunks or not report.unread:
        output.print_text("".join(f"{line}\n" for line in _lines(report, where)))
    if options.show_rejected and report.rejects:
        _print_rejected(report, options)


def _lines(report: IngestReport, where: str) -> Sequence[str]:
    of_tables = sorted(report.rows.items(), key=lambda item: item[0] == "devices")
    counted = (plural(count, table.removesuffix("s")) for table, count in of_tables if count)
    committed = ", ".join(counted) or "nothing new"
    lines = [f"{plural(report.rows_read, 'row')} read; {committed} committed to {where}"]
    if not report.rows_read and not report.chunks_known:
        lines = [f"0 rows read, there were none; nothing committed to {where}"]
    if report.chunks_known:
        were = "was" if report.chunks_known == 1 else "were"
        lines.append(
            f"{report.chunks_known:,} of {plural(report.chunks, 'chunk')} {were} already in "
            "the lake"
        )
    for reason, count in report.passed.items():
        lines.append(f"{plural(count, 'row')} passed over: {PASSED[reason]}")
    for table, (rows_read, rows_written) in report.reshaped.items():
        if rows_read != rows_written:
            lines.append(
                f"{plural(rows_read, 'row')} made {plural(rows_written, table.removesuffix('s'))}"
            )
    files = [file for file in report.unread if file]
    if files:
        lines.append(f"{plural(len(files), 'file')} could not be read")
    if report.duplicates:
        lines.append(f"{plural(report.duplicates, 'duplicate row')} merged")
    if report.completing:
        rows = plural(report.completing, "row")
        lines.append(f"{rows} merged: other counters of the same samples")
    lines += _unmapped_lines(report)
    if report.unmapped:
        frequent = [
            f"{name} ({count:,})" for name, count in report.unmapped.most_common(_NAMES_SHOWN)
        ]
        others = len(report.unmapped) - len(frequent)
        named = ", ".join(frequent) + (f" and {plural(others, 'other')}" if others else "")
        of = plural(len(report.unmapped), "metric")
        lines.append(
            f"not read: {plural(report.unmapped.total(), 'line')} of {of} without a mapping: "
            f"{named}"
        )
    for (table, reason, column), count in sorted(report.rejects.items(), key=lambda item: -item[1]):
        if reason not in ("duplicate", *UNMAPPED):
            what = f"{plural(count, 'value')} of {column}" if column else plural(count, "row")
            done = "noted" if reason in NOT_REMOVED else "rejected"
            lines.append(f"{done}: {what} of {table}: {reason.replace('_', ' ')}")
    return lines


def _unmapped_lines(report: IngestReport) -> Iterator[str]:
    """Return what the mapping does not name: rows of metrics, and columns."""
    for reason in UNMAPPED:
        for table in report.rows:
            columns = {
                key[2]: count for key, count in report.rejects.items() if key[:2] == (table, reason)
            }
            if columns and reason == "unmapped_metric":
                named = ", ".join(
                    f"{name or 'others'} ({count:,})" for name, count in columns.items()
                )
                yield (
                    f"rejected: {plural(sum(columns.values()), 'row')} of {table}: unmapped "
                    f"metric: {named}"
                )
            elif columns and reason == "same_meaning":
                named = ", ".join(
                    f"{name} ({report.examples.get((table, reason, name))})" for name in columns
                )
                yield f"not read: columns that mean the same as another one: {named}"
            elif columns:
                yield (
                    "not read: columns without a mapping: "
                    f"{', '.join(name or 'others' for name in columns)}"
                )


def _print_rejected(report: IngestReport, options: Arguments) -> None:
    rows = [
        (table, reason, column, f"{count:,}", report.examples.get((table, reason, column)))
        for (table, reason, column), count in sorted(
            report.rejects.items(), key=lambda item: -item[1]
        )
    ]
    output.print_text("\n")
    output.print_table(
        ("table", "reason", "column", ">rejected", "example"), rows, no_color=options.no_color
    )


def _print_records(source: SourceEntry, options: Arguments, configuration: Configuration) -> None:
    """Every record that could not be read, where the source reports single records."""
    module = load_record_source(source)
    rows = [] if module is None else list(module.rejected(options, configuration=configuration))
    if rows:
        headings = (
            "file",
            ">line",
            "reason",
            "text",
        )
        cells = [
            (file, str(line), reason.replace("_", " "), text[:_SHOWN])
            for file, line, reason, text in rows
        ]
        output.print_table(headings, cells, no_color=options.no_color)


def _as_json(report: IngestReport) -> dict[str, object]:
    return {
        "chunks": report.chunks,
        "chunks_known": report.chunks_known,
        "rows_read": report.rows_read,
        "rows": report.rows,
        "reshaped": {
            table: {"rows": rows_read, "made": rows_written}
            for table, (rows_read, rows_written) in report.reshaped.items()
        },
        "rows_known": report.rows_known,
        "passed": dict(report.passed),
        "unmapped": dict(report.unmapped.most_common()),
        "duplicates": report.duplicates,
        "completing": report.completing,
        "unread": [{"file": file, "reason": reason} for file, reason in report.unread.items()],
        "rejects": [
            {
                "table": table,
                "reason": reason,
                "column": column,
                "removed": count,
                "example": report.examples.get((table, reason, column)),
            }
            for (table, reason, column), count in report.rejects.items()
        ],
    }
