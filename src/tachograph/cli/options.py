"""The options of commands: the parser, what every command has, the lake, the filters of jobs.

Heavy modules are imported inside functions: `--help` depends on this module.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from tachograph.catalog.errors import ConfigError, UsageError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.catalog.units import whole_number
from tachograph.catalog.version import __version__
from tachograph.cli import output

if TYPE_CHECKING:
    from datetime import datetime

    import polars as pl

    from tachograph.catalog.config import Configuration
    from tachograph.export.registry import ExportTarget
    from tachograph.lake.delta import Lake
    from tachograph.lake.filters import JobFilter
    from tachograph.report.job import JobReport
    from tachograph.sources.registry import SourceEntry

    Part = SourceEntry | ExportTarget


class Arguments(argparse.Namespace):
    """The options of one run; those every command has are declared here."""

    lake: str | None
    config: str | None
    time_zone: str | None
    quiet: bool
    no_color: bool
    json: bool


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of exiting, and accepts no abbreviated options."""

    def __init__(self, prog: str, description: str, *, color: bool = False) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        # Python 3.14 passes it to the parsers of actions, and colours the help if it is true.
        self.color = color
        self._given: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse `--sort -start` as option and value; argparse would read `-start` as an option."""
        self._given = [] if args is None else _joined(args)
        return super().parse_known_args(None if args is None else self._given, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with `message` and the closest option, or a hint at the help."""
        unknown, suggestion = self._misspelt()
        what = message if unknown in message else f"{message}; there is no option {unknown}"
        raise UsageError(what, do=suggestion or f"see `{self.prog} --help`")

    def _misspelt(self) -> tuple[str, str]:
        """Return the first unknown option that is close to a known one, and the question, or ""."""
        options = self._known()
        names = sorted(name[2:] for name in options)
        words = self._given[: self._given.index("--")] if "--" in self._given else self._given
        for name in (word.partition("=")[0] for word in words):
            if (
                name[:2] == "--"
                and name not in options
                and (suggestion := did_you_mean(name[2:], names, form="--{}"))
            ):
                return name, suggestion
        return "", ""

    def _known(self) -> set[str]:
        """Return the long options of the command and of its actions."""
        options = (name for parser in parsers(self) for name in parser._option_string_actions)
        return {name for name in options if name[:2] == "--"}

    def _unknown(self, value: str) -> str:
        """Return the first unknown option before an argument, or ""."""
        before = self._given[: self._given.index(value)] if value in self._given else []
        options = (word.partition("=")[0] for word in before if word[:2] == "--")
        return next((option for option in options if option not in self._known()), "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a value against the option's choices. Errors: UsageError naming the closest one."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        if isinstance(action, argparse._SubParsersAction) and (unknown := self._unknown(value)):
            # The value is that of the option, which argparse does not know.
            names = sorted(name[2:] for name in self._known() if len(name) > 3)
            help_ = f"see `{self.prog} --help`"
            do = did_you_mean(unknown.lstrip("-"), names, otherwise=help_, form="--{}")
            raise UsageError(f"there is no option {unknown}", do=do)
        wrong = argparse.ArgumentError(
            action, f"invalid choice: {str(value)!r} (choose from {', '.join(choices)})"
        )
        raise UsageError(
            str(wrong), do=did_you_mean(str(value), choices, otherwise=f"see `{self.prog} --help`")
        )

    def _print_message(self, message: str, file: object = None) -> None:
        output.print_text(message)


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return {name: parser} of the actions of a command, such as `run` of `tachograph lab
    rules`.
    """
    parsers: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers |= action.choices
    return parsers


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return a parser, and those of its actions."""
    yield parser
    for one in actions(parser).values():
        yield from parsers(one)


_MAY_BEGIN_WITH_DASH = "--sort"


def _joined(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--sort -x` joined; those after `--` are not changed.

    >>> _joined(["--sort", "-energy_j", "--json", "--", "ls", "--sort", "size"])
    ['--sort=-energy_j', '--json', '--', 'ls', '--sort', 'size']
    """
    joined: list[str] = []
    for index, argument in enumerate(arguments):
        if argument == "--":
            return [*joined, *arguments[index:]]
        if joined and joined[-1] == _MAY_BEGIN_WITH_DASH:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def sentence(phrase: str) -> str:
    """Return a phrase as a sentence.

    >>> sentence("list the counters")
    'List the counters.'
    """
    return f"{phrase[0].upper()}{phrase[1:]}."


def add_common(parser: Parser) -> None:
    """Add the options every command has."""
    group = parser.add_argument_group("options of every command")
    group.add_argument(
        "--lake",
        metavar="DIR",
        help="the lake: a folder or an object store's address [$TACHOGRAPH_LAKE]",
    )
    group.add_argument(
        "--config", metavar="FILE", help="the configuration [$TACHOGRAPH_CONFIG, ./tachograph.toml]"
    )
    if "--time-zone" not in parser._option_string_actions:
        group.add_argument(
            "--time-zone",
            metavar="ZONE",
            help="zone of times given without one, and of printed times [site.time_zone]",
        )
    group.add_argument("--quiet", action="store_true", help="only errors on stderr")
    group.add_argument("--no-color", action="store_true", help="no colours [$NO_COLOR]")
    group.add_argument(
        "--version", action="version", version=f"tachograph {__version__}", help="show the version"
    )


Declare = Callable[[argparse.ArgumentParser], None]


def actions_of(
    parser: Parser, *, dest: str = "action", required: bool = True
) -> Callable[[str, str, Declare], None]:
    """Return a function that adds an action (name, help line, options) to a command.

    The chosen name becomes the attribute `dest`, None without one where none is required.

    Every action has `--json` and the options of every command, which may precede the action or
    follow it.
    """
    actions = parser.add_subparsers(dest=dest, metavar="ACTION", required=required)

    def add(name: str, phrase: str, declare: Declare) -> None:
        one: Parser = actions.add_parser(name, description=sentence(phrase), help=phrase)
        declare(one)
        add_json(one)
        known = len(one._actions)
        add_common(one)
        for option in one._actions[known:]:  # may be given before the action
            option.default = argparse.SUPPRESS

    return add


def add_parts(parser: Parser, what: str, parts: Sequence[Part]) -> None:
    """Declare a first argument that chooses the other options, `what`: source or target."""
    width = max(len(part.name) for part in parts) + 2
    lines = [f"  {part.name:<{width}}{part.sentence}" for part in parts]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join([f"{what}s:", *lines])
    parser.add_argument(what, metavar=what.upper(), help=f"one of the {what}s below")
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="...",
        help=f"see `{parser.prog} {what.upper()} --help`",
    )


def options_of_part(
    command: str, part: Part, declare: Callable[[Parser], None], words: Sequence[str]
) -> Arguments | None:
    """Return the options of a source or target from the words after it; None: help was shown."""
    parser = Parser(f"tachograph {command} {part.name}", sentence(part.sentence))
    declare(parser)
    add_common(parser)
    try:
        return parser.parse_args(words, Arguments())
    except SystemExit:
        return None


def add_job_choice(parser: Parser, *, several: bool = False) -> None:
    """Add the job, its run and its cluster: `job`, `nth`, `cluster`; several: a list of jobs."""
    name = "job id: 123, 123_4 (array), 123+1 (heterogeneous)"
    if several:
        more = f"{name}; several are compared; none: your last job"
        parser.add_argument("job", metavar="ID", nargs="*", help=more)
    else:
        parser.add_argument("job", metavar="ID", help=name)
    parser.add_argument(
        "--run",
        type=whole_number(1),
        dest="nth",
        metavar="N",
        help="N-th run of a requeued job (default: last)",
    )
    parser.add_argument("--cluster", metavar="NAME", help="cluster, if several have this job id")


def read_chosen_job(opened: OpenedLake, job: str, arguments: Arguments) -> JobReport:
    """Return the report of a job, of the run and cluster that `add_job_choice` names.

    Errors: those of `read_job`.
    """
    from tachograph.api.job_report import read_job

    report = read_job(
        opened.lake,
        job,
        now=opened.now,
        configuration=opened.configuration,
        cluster=arguments.cluster,
        run=arguments.nth,
    )
    return replace(report, lake=arguments.lake or "")


def add_json(parser: Parser | argparse._MutuallyExclusiveGroup) -> None:
    """Add `--json`, for commands that print a table."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_raw(parser: Parser | argparse._ArgumentGroup) -> None:
    """Add `--raw`, for commands that print CSV, and for those that write it into a file."""
    parser.add_argument(
        "--raw", action="store_true", help="texts of CSV as recorded: formulas, control characters"
    )


def add_as_of(parser: Parser) -> None:
    """Add `--as-of`."""
    parser.add_argument(
        "--as-of", metavar="TIME", help="analyze as of this time: running jobs up to it"
    )


def configuration_of(arguments: argparse.Namespace) -> Configuration:
    """Return the configuration that the options name; `--time-zone` overrides `site.time_zone`.

    Errors: ConfigError for an invalid file, UsageError for an unknown zone.
    """
    from tachograph.catalog import config

    configuration = config.load(arguments.config)
    zone_name = getattr(arguments, "time_zone", None)
    if zone_name is None:
        return configuration
    try:
        return config.with_time_zone(configuration, zone_name)
    except ConfigError as problem:
        raise UsageError(f"--time-zone: {problem.what}", do=problem.do) from None


@dataclass(frozen=True, slots=True)
class OpenedLake:
    """Configuration, lake, what time it is, and the time of `--as-of`, if given."""

    configuration: Configuration
    lake: Lake
    clock: datetime
    as_of: datetime | None = None

    @property
    def now(self) -> datetime:
        """The instant up to which jobs are considered: of `--as-of`, else of the lake."""
        from tachograph.lake.query import lake_now

        return lake_now(self.lake, self.clock) if self.as_of is None else self.as_of

    @property
    def of_lake(self) -> bool:
        """Whether `now` is when the data end."""
        return self.as_of is None and self.now != self.clock

    def remark_end(self) -> None:
        """Remark when the data end, if times are counted from there."""
        from tachograph.catalog.columns import local_time
        from tachograph.catalog.units import text
        from tachograph.cli.narrate import remark

        if self.of_lake:
            when = local_time(self.now, self.configuration.site.time_zone)
            ago = text((self.clock - self.now).total_seconds(), "s")
            remark(f"the data of this lake end at {when}, {ago} ago: times count from there")


def open_lake(arguments: Arguments) -> OpenedLake:
    """Return configuration and lake that the options name.

    Errors: ConfigError, LakeError where there is no lake.
    """
    from datetime import UTC, datetime

    from tachograph.catalog import config
    from tachograph.catalog.units import parse_time
    from tachograph.lake.delta import Lake

    configuration = configuration_of(arguments)
    lake = Lake.open(config.lake_location(arguments.lake, configuration))
    clock = datetime.now(UTC)
    opened = OpenedLake(configuration, lake, clock)
    written = getattr(arguments, "as_of", None)
    if not written:
        return opened
    as_of = parse_time(written, now=opened.now, zone_name=configuration.site.time_zone)
    return OpenedLake(configuration, lake, clock, as_of)


def caller_name() -> str:
    """Return the name of the user who runs the command; "" if the host has none for the uid."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # KeyError before Python 3.13
        return ""


def add_filters(parser: argparse.ArgumentParser, *, study: bool = True) -> None:
    """Add the job filters as a help group of their own; `study`: with the study's filters."""
    group = parser.add_argument_group("job filter (default: all jobs)")

    def add_repeatable(option: str, value: str, phrase: str) -> None:
        group.add_argument(option, action="append", default=[], metavar=value, help=phrase)

    for name in ("user", "account", "partition", "state"):
        add_repeatable(f"--{name}", "NAME", f"jobs of this {name}; repeatable")
    group.add_argument(
        "--since", metavar="TIME", help="jobs that ran after: 2026-04-23, 2026-04-23T10:30, 12h ago"
    )
    group.add_argument("--until", metavar="TIME", help="jobs that ran before")
    add_repeatable("--where", "CONDITION", "such as 'gpu_util_mean<0.1'; repeatable: all must hold")
    add_repeatable("--finding", "CODE", "jobs with this finding; repeatable: any of them")
    group.add_argument(
        "--verdict",
        metavar="ANSWER",
        help="verdict of --finding: yes (default), no, unknown",
    )
    add_repeatable(
        "--attribution", "KIND", "explicit, live_index, whole_node, ambiguous; repeatable"
    )
    parser.set_defaults(in_study=False, excluded=False)
    if study:
        either = group.add_mutually_exclusive_group()
        either.add_argument(
            "--in-study",
            action="store_true",
            help="only jobs that the study includes",
        )
        either.add_argument(
            "--excluded",
            action="store_true",
            help="only jobs that the filters of the study leave out",
        )


def newest_job(summaries: pl.DataFrame, *, zone_name: str) -> str:
    """Return when the newest job of `summaries` began, in words; "" where there is none."""
    from datetime import datetime

    from tachograph.catalog.units import zone

    newest = None if summaries.is_empty() else summaries["start"].max()
    if not isinstance(newest, datetime):
        return ""
    began = newest.astimezone(zone(zone_name))
    return f"the newest of {summaries.height:,} jobs began {began:%Y-%m-%d}"


def job_filter(arguments: argparse.Namespace, opened: OpenedLake) -> JobFilter:
    """Return the filter that the options make.

    Errors: UsageError for an invalid condition or time, and for a verdict without a finding.
    """
    from tachograph.api import choices
    from tachograph.catalog.units import is_span

    if arguments.verdict is not None and not arguments.finding:
        raise UsageError(
            f"--verdict {arguments.verdict} is given without a finding",
            do=f"name one: --finding idle_job --verdict {arguments.verdict}",
        )
    times = [written for written in (arguments.since, arguments.until) if written is not None]
    if any(map(is_span, times)):
        opened.remark_end()
    jobs = choices.job_filter(
        vars(arguments),
        now=opened.now if times else opened.clock,  # when data end takes reading the lake
        zone_name=opened.configuration.site.time_zone,
    )
    if arguments.excluded or arguments.in_study:
        return replace(jobs, excluded=arguments.excluded)
    return jobs
