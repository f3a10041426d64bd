"""`tachograph ingest PATH...`: files and folders of any kind, each read by the source it needs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.catalog.config import FILE_NAME
from tachograph.catalog.errors import ConfigError, InputError, UsageError
from tachograph.catalog.units import plural, printable, zone
from tachograph.cli import narrate
from tachograph.cli.options import Arguments, Parser, add_common, add_json
from tachograph.sources.registry import SourceEntry, find_source, load_source

if TYPE_CHECKING:
    import polars as pl

    from tachograph.catalog.chunks import Chunk
    from tachograph.catalog.config import Configuration
    from tachograph.lake.delta import Lake
    from tachograph.pipeline.site_evidence import WholeNodeEvidence, ZoneEvidence

_OF_PATHS = ("paths", "source", "rest", "instead_of")
_COMMAND = 4000  # characters of a proposed command
_NAMES_SHOWN = 10  # of files that no source reads


@dataclass(slots=True)
class RecognisedFiles:
    """Files by the source that reads them; unknown: no source does; damaged: {file: why}.

    columns: {unknown file: its columns, among which no counter is known}, of tables only.
    """

    of_sources: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    columns: dict[str, list[str]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    def local(self, unread: Collection[str] = ()) -> RecognisedFiles:
        """Return the files with times in the time zone of the site, without unread ones."""
        read = {
            name: [file for file in files if file not in unread]
            for name, files in self.of_sources.items()
            if is_local(name)
        }
        return RecognisedFiles({name: files for name, files in read.items() if files})


@dataclass(frozen=True, slots=True)
class Proposals:
    """What the data say about the site beyond the configuration."""

    zone: ZoneEvidence | None
    whole_nodes: Sequence[WholeNodeEvidence]


def path_options(words: Sequence[str], before: Arguments) -> Arguments | None:
    """Return the options of `ingest PATH...`, after those `before` it; None: help was shown."""
    parser = Parser("tachograph ingest", "Read files and folders, each by the source it needs.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, or folders of files")
    parser.add_argument("--cluster", default="", metavar="NAME", help="cluster of what names none")
    parser.add_argument("--node", metavar="NAME", help="host of files that name none")
    parser.add_argument(
        "--trusted",
        action="store_true",
        help="trust text of sacct and scontrol: no job name in it imitates a record",
    )
    parser.add_argument(
        "--instead-of",
        metavar="ZONE",
        help="these files were read in the time zone ZONE: replace what was read of them then",
    )
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="correct the time zone and write a new tachograph.toml, as the data propose",
    )
    parser.add_argument("--show-rejected", action="store_true", help="print examples of rejects")
    add_json(parser)
    add_common(parser)
    try:
        options = parser.parse_args(words, Arguments(**vars(before)))
    except SystemExit:
        return None
    if options.instead_of and not options.time_zone:
        raise UsageError("--instead-of needs --time-zone", do="give the right zone with it")
    if options.instead_of:
        try:
            zone(options.instead_of)
        except ConfigError as problem:
            raise UsageError(f"--instead-of: {problem.what}", do=problem.do) from None
    return options


def recognise_files(paths: Sequence[str]) -> RecognisedFiles:
    """Return the files of the paths by source, in the order in which sources are read.

    Errors: InputError for a path that does not exist, and where there is no file.
    """
    from tachograph.sources.recognition import ORDER, files_below, source_of, table_columns

    recognised = RecognisedFiles({name: [] for name in ORDER})
    for path in files_below(paths):
        try:
            source = source_of(path)
        except InputError as problem:  # the boundary: one file
            narrate.error(problem)
            recognised.damaged[str(path)] = str(problem)
            continue
        if source is None:
            recognised.unknown.append(str(path))
            if columns := table_columns(path):
                recognised.columns[str(path)] = columns
        else:
            recognised.of_sources[source].append(str(path))
    recognised.of_sources = {name: of for name, of in recognised.of_sources.items() if of}
    if not (recognised.of_sources or recognised.unknown or recognised.damaged):
        where = ", ".join(map(printable, paths))
        raise InputError("there are no files", where=where, do="name other files or folders")
    return recognised


def each_source(
    recognised: RecognisedFiles,
    options: Arguments,
    declare: Callable[[SourceEntry, Parser], None],
) -> Iterable[tuple[SourceEntry, Arguments]]:
    """Yield each source with its options: their defaults, and those of the command."""
    for name, files in recognised.of_sources.items():
        source = find_source(name)
        parser = Parser(f"tachograph ingest {name}", source.sentence)
        declare(source, parser)
        add_common(parser)
        of_source = vars(parser.parse_args(["-"], Arguments()))
        shared = {key: value for key, value in vars(options).items() if key not in _OF_PATHS}
        # The zone is that of accounting: exporters, LDMS and NVML write UTC.
        yield source, Arguments(**{**of_source, **shared, "time_zone": None, "files": files})


def is_local(source: str) -> bool:
    """Return whether the files of a source have times in the time zone of the site."""
    return source in ("sacct", "allocation-map")


@dataclass(slots=True)
class ReadingKeys:
    """Keys of the rows of chunks, by table."""

    now: datetime
    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Add the keys of the rows that a chunk commits."""
        from tachograph.catalog.tables import TABLES
        from tachograph.lake.conform import conform

        for part in chunk.parts:
            table = TABLES[part.table]
            rows = conform(part.frame, table, now=self.now, units=part.units).frame
            self.frames.setdefault(part.table, []).append(rows.select(table.key))

    def read(self, source: SourceEntry, options: Arguments, configuration: Configuration) -> None:
        """Add those of files, read with a configuration, without files that cannot be read."""
        from tachograph.catalog.chunks import of_cluster, rename_nodes
        from tachograph.sources.slurm.fields import node_aliases

        aliases = node_aliases(configuration)
        for file in options.files:
            of_file = Arguments(**{**vars(options), "files": [file]})
            for chunk in _readable(source, of_file, configuration, self.now):
                self.add(rename_nodes(of_cluster(chunk, options.cluster), aliases))

    def missing_in(self, later: ReadingKeys) -> dict[str, pl.DataFrame]:
        """Return the keys that another reading of the same files does not have."""
        import polars as pl

        from tachograph.catalog.tables import TABLES
        from tachograph.lake.corrections import stale_keys

        stale: dict[str, pl.DataFrame] = {}
        for name, frames in self.frames.items():
            before = pl.concat(frames)
            after = pl.concat([before.clear(), *later.frames.get(name, [])])
            stale[name] = stale_keys(before, after, TABLES[name])
        return stale


def _readable(
    source: SourceEntry, options: Arguments, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    try:
        yield from load_source(source).read(options, configuration=configuration, now=now)
    except InputError:  # the boundary: one file
        return


def zone_proposal(
    lake: Lake, local: RecognisedFiles, configuration: Configuration
) -> ZoneEvidence | None:
    """Return the time zone that the data of a lake show, if it is another one.

    local: the accounting and maps that were read with this configuration. Without any, the zone
    in which those of the lake were read is not known.
    """
    from tachograph.pipeline.site_evidence import zone_evidence

    return zone_evidence(lake, configuration.site.time_zone) if local.of_sources else None


def adopt(proposals: Proposals, options: Arguments) -> bool:
    """Write the proposals into a new configuration; False if there is one, or nothing to write."""
    from tachograph.cli.init import configuration_text

    file = Path(options.config or FILE_NAME)
    if not (proposals.zone or proposals.whole_nodes):
        return False
    time_zone = options.time_zone or "UTC"
    if proposals.zone is not None:
        time_zone = proposals.zone.zone_name
    exclusive = [name.name for name in proposals.whole_nodes]
    text = configuration_text(options.lake or "", time_zone, exclusive)
    try:
        with file.open("x", encoding="utf-8") as stream:  # what lies there stays, links too
            stream.write(text)
    except FileExistsError:
        return False
    narrate.remark(f"wrote {file}: time_zone = {time_zone}, exclusive = {json.dumps(exclusive)}")
    return True


def proposal_lines(
    proposals: Proposals,
    local: RecognisedFiles,
    configuration: Configuration,
    options: Arguments,
    *,
    adopted: bool,
) -> Iterator[str]:
    """Return what the data say about the time zone and whole nodes, and how to set it.

    local: the files that were read in that zone. adopted: a configuration was written.
    """
    best, present = proposals.zone, configuration.site.time_zone
    if best is not None:
        right = best.zone_name
        fits = f"time zone: {best.sentence}"
        command = _correction(_local_paths(local, options), right, present, options)
        yield f"{fits}; corrected" if options.adopt else f"{fits}; to correct it: {command}"
        if not adopted:
            yield f'  then, for later commands, under [site] in {FILE_NAME}: time_zone = "{right}"'
    for name in proposals.whole_nodes:
        yield (
            f"whole nodes: {name.whole} of {plural(name.jobs, 'job')} of {name.name} had all of "
            "their nodes, none shared one"
        )
    if proposals.whole_nodes and not adopted:
        names = (name.name for name in proposals.whole_nodes)
        exclusive = json.dumps([*configuration.slurm.exclusive, *names])
        yield f"  to count them so, under [slurm] in {FILE_NAME}: exclusive = {exclusive}"


def model_lines(lake: Lake, configuration: Configuration) -> Iterator[str]:
    """Return what to configure where nothing names the model of GPUs."""
    from tachograph.catalog.tables import DEVICES
    from tachograph.pipeline.gpu_inventory import inventory
    from tachograph.report.job import fold_nodes

    units = inventory(lake.latest(DEVICES), configuration.nodes)
    unnamed = units.filter(units["model"].is_null())
    if unnamed.height:
        nodes = json.dumps(fold_nodes(unnamed["node"].unique().to_list()))
        yield f"GPU model: not recorded for {plural(unnamed.height, 'GPU')}: no peaks are known"
        yield printable(
            f'  with that of yours, under [nodes] in {FILE_NAME}: models = {{ {nodes} = "H100" }}',
            most=_COMMAND,
        )


def _local_paths(local: RecognisedFiles, options: Arguments) -> list[str]:
    """Return the paths of the command that have local files."""
    files = [Path(file) for of_source in local.of_sources.values() for file in of_source]
    return [path for path in options.paths if any(file.is_relative_to(path) for file in files)]


def _correction(paths: Sequence[str], right: str, wrong: str, options: Arguments) -> str:
    """Return the command that reads local files in the right zone, with the options of this one."""
    words = [
        "tachograph",
        "ingest",
        *(f"./{path}" if path.startswith("-") else path for path in paths),
    ]
    words += ["--time-zone", right, "--instead-of", wrong]
    for name in ("lake", "config", "cluster"):
        value = getattr(options, name)
        words += [f"--{name}", value] if value else []
    words += ["--trusted"] if getattr(options, "trusted", False) else []
    return printable(shlex.join(words), most=_COMMAND)


def refuse_other_zone(lake: Lake, zone_name: str, options: Arguments, chunk: Chunk) -> None:
    """Refuse jobs that the lake has with the times of another zone: beside these they are doubled.

    Raises InputError with the command that replaces them.
    """
    from tachograph.catalog.tables import JOBS
    from tachograph.pipeline.site_evidence import earlier_zone_in

    for part in chunk.parts:
        earlier = None
        if part.table == JOBS.name and part.frame.height:
            earlier = earlier_zone_in(lake, part.frame, zone_name)
        if earlier is None:
            continue
        hours = f"{abs(earlier.later_s) / 3600:g} h {'later' if earlier.later_s > 0 else 'earlier'}"
        wrong = earlier.zone_name or "ZONE"
        raise InputError(
            f"{earlier.jobs} of {plural(earlier.known, 'job')} are in the lake with all times "
            f"{hours}, as of the time zone {wrong}; this command reads them as of {zone_name}",
            where=chunk.origin,
            do=f"to replace them: {_correction([chunk.origin], zone_name, wrong, options)}",
        )


def file_lines(recognised: RecognisedFiles) -> Iterable[str]:
    """Return what became of files that no source reads."""
    from tachograph.sources.files import listed

    if recognised.unknown:
        yield _named("not recognised", recognised.unknown)
        for file, columns in islice(recognised.columns.items(), _NAMES_SHOWN):
            columns_text = printable(listed(columns), most=_COMMAND)
            yield f"  {printable(Path(file).name)}: no counter of a GPU or host among: {columns_text}"
        yield "  a table of another form: tachograph ingest table --suggest FILE"
    if recognised.damaged:
        yield _named("not readable", list(recognised.damaged))


def _named(what: str, files: Sequence[str]) -> str:
    names = [printable(Path(file).name) for file in files[:_NAMES_SHOWN]]
    others = len(files) - len(names)
    more = f" and {plural(others, 'other')}" if others else ""
    return f"{what}: {plural(len(files), 'file')}: {', '.join(names)}{more}"


def files_as_json(recognised: RecognisedFiles) -> Mapping[str, object]:
    """Return what was recognised, for `--json`."""
    return {
        "files": {name: len(files) for name, files in recognised.of_sources.items()},
        "not_recognised": recognised.unknown,
        "not_readable": recognised.damaged,
    }
