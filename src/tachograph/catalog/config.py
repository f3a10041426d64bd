"""Configuration: `tachograph.toml` and environment overrides, read once into frozen objects.

An override is `TACHOGRAPH_<SECTION>_<KEY>`, for example `TACHOGRAPH_SITE_TIME_ZONE=Europe/Berlin`;
`TACHOGRAPH_LAKE` and `TACHOGRAPH_CONFIG` are short for the lake and for the file itself.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

import msgspec

from tachograph.catalog.chunks import GpuNumbering
from tachograph.catalog.devices import DeviceOptions, set_site_devices
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.policies import PolicyOptions, check_policies
from tachograph.catalog.private_files import refuse_foreign_configuration
from tachograph.catalog.secrets import remember_secrets
from tachograph.catalog.suggestions import explain_misfit, fields_of
from tachograph.catalog.units import refuse_unclear_fraction, zone

FILE_NAME = "tachograph.toml"
# paths from the configuration's folder on, but for these words
_SERVE_FILES = (
    "token_file",
    "slurm_jwt_key",
    "oidc_secret_file",
    "managers",
    "access_log",
)
_MAIL_FILES = ("password_file", "addresses")
_ACT_FILES = ("unsubscribe_key_file",)
_WEBHOOK_FILES = ("url_file", "token_file", "ca_file")
_WORDS = {("managers", "sacctmgr"), ("access_log", "stderr")}
DEFAULT_LAKE = "tachograph-lake"
LARGEST_SETTING = 1e12  # more than any time, size or price that a site can mean
# {key that is gone: what to do}
_REMOVED_KEYS = {
    "act.digest_staff": 'write the addresses into act.digest: ["users", "ops@example.org"]',
    "serve.socket": 'write serve.listen = "unix:/run/tachograph/serve.sock"',
    "watch.exporter": (
        "use `tachograph watch --url URL`; where `collect` reads it, too, name it in [[sources]]"
    ),
    "workers.prologue": (
        "remove it, and load modules before `tachograph analyze`: sbatch passes the environment on"
    ),
}
UNIX_SOCKET = "unix:"  # begins an address that is the path of a Unix socket
_DIGEST_GROUPS = ("users", "managers")  # receivers of digests that are no addresses
LARGEST_RATE = 1e18  # bytes/s of job classes, bytes/s and FLOP/s of devices
# A value that the program and its tests pass, and no site changes: not a key of the file, nor of
# the environment.
_Value = TypeVar("_Value")
Fixed = Annotated[_Value, "fixed"]


class SiteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who and where."""

    time_zone: str = "UTC"  # of times that Slurm and exports write without an offset
    cluster: str = ""


class SlurmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is not in the accounting. Names match partition or QOS, `*` allowed."""

    shared: tuple[str, ...] = ()
    exclusive: tuple[str, ...] = ()
    # Output of `scontrol show partition` and `scontrol show node`; decides what advice frees.
    partitions_file: str = ""
    # What its indices of GPUs are; nvml_index: the order of PCI addresses.
    gpu_numbers: GpuNumbering = "minor_number"


class NodeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the telemetry of nodes lacks: {hostlist: device model}, {hostlist: number of GPUs}.

    `aliases`: {hostlist of names that a source writes: as many names of nodes}.
    """

    models: dict[str, str] = {}
    gpus: dict[str, int] = {}
    aliases: dict[str, str] = {}


class StudyFilters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters of a study's jobs; an empty value is off.

    Source of the defaults: IPDPS 2026, section 3.
    """

    min_elapsed_s: float = 180.0
    min_gpu_util_mean: Fixed[float] = 0.01
    gpu_partitions: tuple[str, ...] = ()
    staff_accounts: tuple[str, ...] = ()
    login_nodes: tuple[str, ...] = ()


class AnalysisOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Variants of the metrics; defaults as in the paper, comments name the notebooks'."""

    window_s: int = 60  # of spatial imbalance: 60, 300, 900, 1800
    # The definitions of the paper's notebooks, where they differ from those of its text.
    notebooks: bool = False
    imbalance_counters: Fixed[tuple[str, ...]] = ("gpu_util", "gr_engine_active")
    count_zero_windows: Fixed[bool] = False  # notebooks: True, an all-zero window counts as 0
    # Notebooks: True, an idle GPU has temporal imbalance 0.
    zero_temporal_imbalance: Fixed[bool] = False
    pipe_threshold: Fixed[float] = 0.005
    pipe_percentile: Fixed[bool] = True  # notebooks: False, the fixed threshold alone
    # A longer silence is a gap: rates and power are not integrated over it.
    max_gap_intervals: Fixed[float] = 3.0


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When advice is given."""

    low_util: float = 0.30
    idle_util: Fixed[float] = 0.01
    spatial_imbalance: Fixed[float] = 0.5
    temporal_imbalance: Fixed[float] = 0.5
    low_hbm_fraction: Fixed[float] = 0.2
    high_hbm_fraction: Fixed[float] = 0.95
    low_coverage: Fixed[float] = 0.8
    idle_minutes: float = 10.0


class ClassOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of job classes; {characteristic: value} replaces the built-in values.

    Source: Matveev, Setyaev, Voevodin (Num. Meth. Prog. 26(4), 2025) for window and length.
    """

    window_minutes: Fixed[int] = 20  # in which a characteristic is flat, or not
    hang_minutes: Fixed[float] = 60.0  # T: the shortest hang, cold start or stall
    theta: dict[str, float] = {}  # flat: (Q3 - Q1)/2 of the window below it
    level: dict[str, float] = {}  # idle: below it
    busy: dict[str, float] = {}  # idle_nodes, idle_gpus: the busiest is above it
    characteristics: dict[str, tuple[str, ...]] = {}  # {class: those that vote}


class WorkloadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Workload classes of GPUs."""

    # ai, hpc, mem: weights of real utilisation; reference: weights and rules exactly as published.
    preset: str = "ai"
    # sm, tensor, dram, gr: instead of a preset; made to add up to 1.
    weights: Fixed[dict[str, float]] = {}
    classifier: Fixed[str] = "default"  # or reference: as published
    smoothing_s: float = 30.0  # window of a live label; 0: none
    event_memory_s: Fixed[float] = 600.0  # so long a PCIe replay stays visible in live health


class RuleOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Performance-pattern rules."""

    folder: str = ""  # of the site's own rules; empty: none
    disabled: tuple[str, ...] = ()  # tags of shipped rules that are not run
    parameters: dict[str, dict[str, float | str]] = {}  # {tag: {parameter: value}}


class WasteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Price of GPU time (0: none, no costs are shown), and assumptions about lost time."""

    currency: str = "EUR"
    # {GPU model or partition: price of a GPU-hour}; "*": of all others.
    prices: dict[str, float] = {}
    price_per_kwh: float = 0.0
    pue: float = 1.0  # energy of the site over that of its computers, of estimates
    emissions_g_per_kwh: float = 0.0  # g of CO2 per kWh; 0: no emissions are shown
    # of the lost hours what is recoverable, see `judge.waste`
    never_used_share: Fixed[float] = 1.0
    watchdog_minutes: Fixed[float] = 60.0
    start_minutes: Fixed[float] = 10.0
    idle_minutes: Fixed[float] = 30.0
    imbalance_share: Fixed[float] = 0.5


class InterferenceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When kernels or jobs may share a GPU. Source of the limits: see docs/interference.md."""

    # File of `make calibrate`, or name of a shipped one; empty: the shipped one of the same model,
    # else as published of the H100.
    calibration: str = ""
    safe_cycles: Fixed[float] = 0.9  # demand on issue slots and on each pipeline, at most
    safe_dram: Fixed[float] = 0.7  # of the bandwidth that can be achieved
    safe_hbm: Fixed[float] = 0.9  # of the memory, all together
    max_slowdown: Fixed[float] = 1.1  # of any of them, where sharing is still proposed
    # {job group: report of Nsight Compute}; relative to the configuration's file.
    profiles: dict[str, str] = {}


class AdviceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Basis of advice for the next job: which past jobs count."""

    least_runs: Fixed[int] = 3  # with fewer there is no advice
    days: int = 180  # jobs that ended longer ago do not count
    # {memory of a GPU in GB: option that requests it, such as --constraint}.
    memory_options: dict[str, str] = {}


class CollectOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How `tachograph collect` runs."""

    listen: str = "127.0.0.1:9798"  # of /metrics; "" for none
    analyze_s: float = 300.0
    compact_s: Fixed[float] = 3600.0
    vacuum_hours: Fixed[int] = 24  # files replaced longer ago are deleted
    threads: Fixed[int] = 1  # of the analysis
    waiting_chunks: Fixed[int] = 8  # read and not yet committed: a source waits when there are more
    # Folder of lock and status; empty: in the lake, of an object store's under ~/.local/state.
    state: str = ""


class RetentionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long rows are kept, such as "90d", "26w", "2y"; empty: indefinitely.

    Applied by `tachograph lake compact --expire`.
    """

    samples: str = ""  # of GPUs and nodes, and PM sampling
    minutes: str = ""  # of jobs and their nodes
    jobs: str = ""  # the accounting: jobs, steps, allocations; states of nodes, waiting jobs
    results: str = ""  # all results of a job, with its labels and profiles

    @property
    def days(self) -> dict[str, int]:
        """{group of tables: days} of those that are not kept indefinitely. Errors: ConfigError."""
        days_of_groups: dict[str, int] = {}
        for key, groups in _RETAINED.items():
            text = getattr(self, key)
            if text:
                days_of_groups |= dict.fromkeys(groups, _days(f"retention.{key}", text))
        return days_of_groups


# {key: groups of tables in `lake.retention`}
_RETAINED: Mapping[str, tuple[str, ...]] = {
    "samples": ("gpu_samples", "node_samples", "gpu_scores"),
    "minutes": ("job_minutes", "job_node_minutes"),
    "jobs": ("jobs",),
    "results": ("job_summaries",),
}
# what is removed after the other at the earliest, as the other is computed from it, or refers to it
_KEPT_LONGER = (
    ("minutes", "samples"),
    ("jobs", "samples"),
    ("results", "minutes"),
    ("results", "jobs"),
)
_SPAN_DAYS = {"d": 1, "w": 7, "y": 365}


def _days(key: str, span: str) -> int:
    """Days of a span. Errors: ConfigError.

    >>> _days("retention.samples", "2 y")
    730
    """
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*([dwy])\s*", span)
    if not match or int(match[1]) < 1:
        raise ConfigError(
            f"{key}: invalid time {span!r}",
            do='write "90d", "26w" or "2y"; "" keeps rows indefinitely',
        )
    return int(match[1]) * _SPAN_DAYS[match[2]]


class WatchOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `tachograph watch` shows, and how often it looks."""

    interval_s: Fixed[float] = 1.0  # between two looks
    history_s: Fixed[float] = 600.0  # so long the past of every counter is kept for histories


class ServeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Address of `tachograph serve`, and rights.

    Secrets are files; paths are relative to the folder of the configuration.
    """

    listen: str = "127.0.0.1:8265"  # HOST:PORT, or unix:PATH of a Unix socket
    url: str = ""  # where browsers find it behind a proxy: https://host/path, or the path alone
    admins: tuple[str, ...] = ()  # users, and groups as @group
    support: tuple[str, ...] = ()  # staff who see all jobs: users, and groups as @group
    admin_users: Fixed[tuple[str, ...]] = ()
    admin_groups: Fixed[tuple[str, ...]] = ()
    support_users: Fixed[tuple[str, ...]] = ()
    support_groups: Fixed[tuple[str, ...]] = ()
    # Who coordinates accounts: sacctmgr, or a file of lines `user account,account`; empty: no one.
    managers: str = ""
    anonymous: bool = False  # sums without names for everyone who connects
    smallest_group: Fixed[int] = (
        # Users: accounts, partitions and models of fewer are one group, where names are not shown.
        5
    )
    start_link: bool = True  # print a link at the start that opens the pages as admin
    token_file: str = ""  # of tokens that `tachograph serve token create` makes
    slurm_jwt_key: str = ""  # file with the key of Slurm's auth/jwt
    # Whose header names the user: 10.0.0.5, 10.0.0.0/24, www-data@unix.
    proxies: tuple[str, ...] = ()
    proxy_header: Fixed[str] = "X-Remote-User"
    oidc_issuer: str = ""  # address of an OpenID provider
    oidc_client_id: str = ""
    oidc_secret_file: str = ""  # empty: a public client
    oidc_user_claim: str = "preferred_username"
    oidc_scope: Fixed[str] = "openid profile"
    frame_ancestors: tuple[str, ...] = ()  # sites that may show the pages in a frame
    requests_per_s: float = 50.0  # of one identity, ten seconds' worth at once; 0: no limit
    concurrent: Fixed[int] = 8  # requests of one identity that are worked on at the same time
    body_bytes: Fixed[int] = 1048576
    request_s: Fixed[float] = 60.0  # limit of working on a request
    workers: Fixed[int] = 2  # processes that make large answers, one each at a time
    worker_mib: Fixed[int] = 1024  # memory of each for its answer
    answer_mib: Fixed[int] = 64  # limit of an answer
    connections: Fixed[int] = 100  # of one address
    # Limit of sending a request, and of a client that does not read its answer.
    slow_s: Fixed[float] = 20.0
    access_log: str = ""  # file of a line of JSON per request, or stderr; empty: none


class MailOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How mail is sent. Without host and sender, none is."""

    # HOST or HOST:PORT; without a port 465 with tls = "tls", 587 with "starttls", 25 with "none".
    host: str = ""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""  # empty: without a login
    password_file: str = ""
    sender: str = ""  # address it comes from
    address: str = ""  # of a user: "{user}@example.org"
    addresses: str = ""  # file of lines `user address`, which come first


class ActOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Automatic actions on results. Everything is off by default."""

    dry_run: bool = True  # `tachograph act` only records what it would do
    interval_s: Fixed[float] = 300.0  # between two rounds of `tachograph act`
    # Who gets one mail a week: users, managers, and addresses of staff.
    digest: tuple[str, ...] = ()
    unsubscribe_key_file: str = ""  # of the links with which users opt out; empty: no links
    # Of the users' files that sbatch reads, written after each analysis; empty: none.
    advice_folder: str = ""
    slurm_before: tuple[str, ...] = ()  # words before sacct and sacctmgr, such as "ssh", "login"
    # `tachograph act` writes AdminComment, as `tachograph act comment --write` does.
    comment: bool = False
    alert: bool = False  # `tachograph act` sends alerts to [[webhook]]

    @property
    def digest_staff(self) -> tuple[str, ...]:
        """Addresses of staff among the receivers of digests."""
        return tuple(receiver for receiver in self.digest if "@" in receiver)


class WebhookOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A receiver of alerts. Of Slack the address is the secret: url_file."""

    name: str  # in the ledger
    format: Literal["json", "slack", "matrix", "alertmanager"] = "json"
    url: str = ""  # of Matrix and Alertmanager that of the server
    url_file: str = ""  # in place of url
    token_file: str = ""  # sent as `Authorization: Bearer`
    room: str = ""  # of Matrix: !id:server
    alerts: tuple[str, ...] = ()  # codes; empty: all
    ca_file: str = ""  # certificates to trust, in place of the system's
    timeout_s: float = 10.0  # of a request with its answer


class WorkerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs of `tachograph analyze --workers slurm:N`: N of this shape, one worker each."""

    partition: Fixed[str] = ""  # empty: the default one
    account: Fixed[str] = ""
    cores: int = 4  # of a job, which reduces as many partitions at a time
    memory: Fixed[str] = "16GB"  # of a job: about 3 GB for each core, and 2 GB
    walltime: Fixed[str] = "01:00:00"  # a job that reached it is submitted again
    # Network device by which jobs and this machine reach each other, such as ib0.
    interface: str = ""
    log_directory: Fixed[str] = ""  # seen by all nodes; empty: ./tachograph-workers
    python: Fixed[str] = ""  # interpreter on the nodes; empty: the one of this command
    job_extra_directives: tuple[str, ...] = ()  # further options of sbatch
    wait_s: Fixed[float] = 600.0  # for the first worker, and for another when all are gone


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be configured."""

    lake: str = ""
    site: SiteOptions = SiteOptions()
    slurm: SlurmOptions = SlurmOptions()
    nodes: NodeOptions = NodeOptions()
    filters: StudyFilters = StudyFilters()
    analysis: AnalysisOptions = AnalysisOptions()
    thresholds: Thresholds = Thresholds()
    classes: ClassOptions = ClassOptions()
    workload: WorkloadOptions = WorkloadOptions()
    rules: RuleOptions = RuleOptions()
    waste: WasteOptions = WasteOptions()
    interference: InterferenceOptions = InterferenceOptions()
    advice: AdviceOptions = AdviceOptions()
    collect: CollectOptions = CollectOptions()
    retention: RetentionOptions = RetentionOptions()
    watch: WatchOptions = WatchOptions()
    serve: ServeOptions = ServeOptions()
    act: ActOptions = ActOptions()
    mail: MailOptions = MailOptions()
    webhook: tuple[WebhookOptions, ...] = ()
    policy: tuple[PolicyOptions, ...] = ()
    workers: WorkerOptions = WorkerOptions()
    device: tuple[DeviceOptions, ...] = ()
    # each is checked by the settings of its source: tachograph.sources.registry
    sources: tuple[dict[str, Any], ...] = ()


def load(path: str | None, environment: Mapping[str, str] | None = None) -> Configuration:
    """Return the configuration of `path`, $TACHOGRAPH_CONFIG, ./tachograph.toml, or the defaults.

    Errors: ConfigError naming file and key.
    """
    environment = os.environ if environment is None else environment
    configured = path or environment.get("TACHOGRAPH_CONFIG")
    file = Path(configured or FILE_NAME)
    if not configured:
        refuse_foreign_configuration(file)
    raw = _read(file) if configured or file.exists() else {}
    where = str(file)
    _refuse_removed(raw, where)
    _refuse_fixed(raw, where)
    for name, value in sorted(environment.items()):
        if _override(raw, name, value):
            where = f"{file} and ${name}"
    try:
        configuration = msgspec.convert(raw, Configuration, strict=False)
    except msgspec.ValidationError as problem:
        what, do = explain_misfit(str(problem), Configuration, fields=keys)
        raise ConfigError(what, where=where, do=do or "see `tachograph init`") from None
    _refuse_impossible_numbers(msgspec.to_builtins(configuration), "", where)
    _check(configuration, where)
    set_site_devices(configuration.device, where)
    return _placed(_expanded(configuration), file.parent)


def keys(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return {key: type} of a table of the file.

    >>> list(keys(RuleOptions))
    ['folder', 'disabled', 'parameters']
    """
    types = fields_of(struct)
    return {key: kind for key, kind in types.items() if get_origin(kind) is not Annotated}


def sections() -> dict[str, type[msgspec.Struct]]:
    """Return {section: its table}."""
    return {
        name: kind
        for name, kind in keys(Configuration).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }


def _refuse_removed(raw: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError, with what to do now, for a key that is gone."""
    for name, do in _REMOVED_KEYS.items():
        section, _, key = name.partition(".")
        table = raw.get(section)
        if isinstance(table, dict) and key in table:
            raise ConfigError(f"{name} is no longer a key", where=where, do=do)


def _refuse_fixed(raw: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for a key whose value is fixed."""
    tables: list[tuple[type[msgspec.Struct], str, Mapping[str, Any]]] = [(Configuration, "$", raw)]
    tables += [
        (kind, f"$.{name}", raw[name])
        for name, kind in sections().items()
        if isinstance(raw.get(name), dict)
    ]
    for struct, location, table in tables:
        fixed = set(struct.__struct_fields__) - keys(struct).keys()
        for key in sorted(fixed & table.keys()):
            message = f"Object contains unknown field `{key}` - at `{location}`"
            what, do = explain_misfit(message, Configuration, fields=keys)
            raise ConfigError(what, where=where, do=do)


def _expanded(configuration: Configuration) -> Configuration:
    """The same with the fixed values that its keys decide."""
    analysis, serve, workers = configuration.analysis, configuration.serve, configuration.workers
    if analysis.notebooks:
        analysis = msgspec.structs.replace(
            analysis, count_zero_windows=True, zero_temporal_imbalance=True, pipe_percentile=False
        )
    serve = msgspec.structs.replace(
        serve,
        admin_users=tuple(name for name in serve.admins if not name.startswith("@")),
        admin_groups=tuple(name[1:] for name in serve.admins if name.startswith("@")),
        support_users=tuple(name for name in serve.support if not name.startswith("@")),
        support_groups=tuple(name[1:] for name in serve.support if name.startswith("@")),
    )
    # measured: about 3 GB for each core, and 2 GB; the rest is a reserve
    workers = msgspec.structs.replace(workers, memory=f"{3 * workers.cores + 4}GB")
    return msgspec.structs.replace(configuration, analysis=analysis, serve=serve, workers=workers)


def lake_location(
    option: str | None, configuration: Configuration, environment: Mapping[str, str] | None = None
) -> str:
    """Return the lake: the option, $TACHOGRAPH_LAKE, the configured one, ./tachograph-lake."""
    environment = os.environ if environment is None else environment
    return option or environment.get("TACHOGRAPH_LAKE") or configuration.lake or DEFAULT_LAKE


def with_time_zone(configuration: Configuration, name: str) -> Configuration:
    """Return the configuration with another `site.time_zone`.

    >>> with_time_zone(Configuration(), "Europe/Berlin").site.time_zone
    'Europe/Berlin'

    Errors: ConfigError for an unknown zone.
    """
    zone(name)
    return msgspec.structs.replace(
        configuration, site=msgspec.structs.replace(configuration.site, time_zone=name)
    )


def _read(file: Path) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(
            problem.strerror or str(problem),
            where=file,
            do="name a readable file with --config",
        ) from None
    except RecursionError:
        raise ConfigError("nested too deeply", where=file, do="fix the brackets") from None
    except ValueError as problem:  # neither TOML nor text, or a number with too many digits
        raise ConfigError(f"not valid TOML: {problem}", where=file, do="fix the line") from None


def _override(raw: dict[str, object], name: str, value: str) -> bool:
    """Put an environment override into `raw`; True when `name` is one."""
    if not name.startswith("TACHOGRAPH_"):
        return False
    section, _, key = name.removeprefix("TACHOGRAPH_").lower().partition("_")
    kind = sections().get(section)
    if not key or kind is None:
        return False
    allowed = keys(kind)
    if do := _REMOVED_KEYS.get(f"{section}.{key}"):
        raise ConfigError(f"{section}.{key} is no longer a key", where=f"${name}", do=do)
    if key not in allowed:
        raise ConfigError(
            f"[{section}] has no key {key!r}",
            where=f"${name}",
            do=f"use one of: {', '.join(allowed)}"
            if allowed
            else "remove it: no key is left there",
        )
    table = raw.setdefault(section, {})
    if isinstance(table, dict):
        table[key] = (
            [part for part in value.split(",") if part] if "tuple" in str(allowed[key]) else value
        )
    return True


def _placed(configuration: Configuration, folder: Path) -> Configuration:
    """Return the options with file names relative to the working directory, not to the file."""
    interference = configuration.interference
    profiles = {kind: str(folder / report) for kind, report in interference.profiles.items()}
    return msgspec.structs.replace(
        configuration,
        interference=msgspec.structs.replace(interference, profiles=profiles),
        slurm=_with_files(configuration.slurm, ("partitions_file",), folder),
        serve=_with_socket(_with_files(configuration.serve, _SERVE_FILES, folder), folder),
        mail=_with_files(configuration.mail, _MAIL_FILES, folder),
        act=_with_files(configuration.act, _ACT_FILES, folder),
        webhook=tuple(
            _with_files(webhook, _WEBHOOK_FILES, folder) for webhook in configuration.webhook
        ),
    )


_Section = TypeVar("_Section", SlurmOptions, ServeOptions, MailOptions, ActOptions, WebhookOptions)


def _with_files(section: _Section, keys: tuple[str, ...], folder: Path) -> _Section:
    """The same with the files of these keys beginning at a folder."""
    values = {key: getattr(section, key) for key in keys}
    files = {
        key: str(folder / name)
        for key, name in values.items()
        if name and (key, name) not in _WORDS
    }
    return msgspec.structs.replace(section, **files)


def _with_socket(serve: ServeOptions, folder: Path) -> ServeOptions:
    """The same with the path of a Unix socket beginning at a folder."""
    path = serve.listen.removeprefix(UNIX_SOCKET)
    if not path or path == serve.listen:
        return serve
    return msgspec.structs.replace(serve, listen=f"{UNIX_SOCKET}{folder / path}")


def _refuse_impossible_numbers(value: object, key: str, where: str) -> None:
    """Check all numbers below a key: no setting is negative, infinite or not a number.

    A rule of the site may have a negative parameter: it is checked with the rule. Nor has a
    parameter a largest value: bytes of a job that ran for days are more than any other setting.
    Errors: ConfigError naming file and key.
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_impossible_numbers(inner, f"{key}.{name}" if key else name, where)
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            _refuse_impossible_numbers(inner, f"{key}[{position}]", where)
    elif isinstance(value, int | float):
        if key.startswith("rules.parameters."):
            possible, do = math.isfinite(value), "write a finite number"
        else:
            largest = LARGEST_RATE if key.startswith(("classes.", "device[")) else LARGEST_SETTING
            possible, do = 0 <= value <= largest, f"write a number from 0 to {largest:g}"
        if not possible:
            raise ConfigError(f"{key} is {value:g}", where=where, do=do)


def _check(configuration: Configuration, where: str) -> None:
    try:
        zone(configuration.site.time_zone)
    except ConfigError as problem:
        raise ConfigError(f"site.time_zone: {problem.what}", where=where, do=problem.do) from None
    if not all(configuration.interference.profiles.values()):
        raise ConfigError(
            "interference.profiles: a report has no name", where=where, do="name a file or a folder"
        )
    if configuration.waste.pue < 1:
        raise ConfigError(
            "waste.pue must be 1 or more", where=where, do="1 is a site without overhead"
        )
    refuse_unclear_fraction(
        configuration.thresholds.low_util,
        name="thresholds.low_util",
        error=ConfigError,
        where=where,
        percent_sign=False,
    )
    _check_retention(configuration.retention, where)
    _check_receivers(configuration.act.digest, where)
    check_policies(configuration.policy, (webhook.name for webhook in configuration.webhook), where)
    if configuration.analysis.window_s <= 0 or configuration.analysis.window_s % 60:
        raise ConfigError(
            "analysis.window_s must be a multiple of 60", where=where, do="use 60, 300, 900 or 1800"
        )


def _check_receivers(receivers: tuple[str, ...], where: str) -> None:
    for receiver in receivers:
        if receiver not in _DIGEST_GROUPS and "@" not in receiver:
            raise ConfigError(
                f"act.digest cannot be {receiver!r}",
                where=where,
                do=f"use {', '.join(_DIGEST_GROUPS)}, and addresses of staff",
            )


def _check_retention(retention: RetentionOptions, where: str) -> None:
    spans = {key: getattr(retention, key) for key in _RETAINED}
    try:
        days = {key: _days(f"retention.{key}", span) for key, span in spans.items() if span}
    except ConfigError as problem:
        raise ConfigError(problem.what, where=where, do=problem.do) from None
    for longer, than in _KEPT_LONGER:
        if longer in days and (than not in days or days[longer] < days[than]):
            what = f"retention.{longer} is {days[longer]} d, and {than} is kept "
            what += f"{days[than]} d" if than in days else "indefinitely"
            raise ConfigError(what, where=where, do=f"keep {longer} at least as long as {than}")


def read_secret(file: str, key: str) -> bytes:
    """Return what a file of a secret has, without the end of its last line.

    Errors: ConfigError naming the key: it cannot be read, is empty, or everyone may read it.
    """
    path = Path(file)
    try:
        if path.stat().st_mode & 0o007:
            raise ConfigError(
                f"{key} can be read by every user of this machine",
                where=file,
                do=f"chmod 600 {file}",
            )
        secret = path.read_bytes()
    except OSError as problem:
        raise ConfigError(
            f"{key} cannot be read: {problem.strerror}", where=file, do="name a readable file"
        ) from None
    if not secret.strip():
        raise ConfigError(f"{key} is empty", where=file, do="write the secret into it")
    remember_secrets(secret.decode("utf-8", "replace").strip())
    return secret
