"""Values as Slurm writes them: job ids, states, TRES, times, node lists, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise, product

import msgspec
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.job_states import BASE_STATES, SLURM_STATES
from tachograph.catalog.units import slurm_duration_s, to_utc
from tachograph.sources.job_ids import job_and_step
from tachograph.sources.metrics import short_node


def parse_document(content: bytes, *, where: str) -> tuple[object, bool]:
    """Return the document and whether the text was valid UTF-8; other bytes become U+FFFD.

    Errors: InputError naming line and column when it is no JSON, or cut off.
    """
    try:
        return msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf")), True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The standard parser takes control characters in texts, and gives the place of an error.
        pass
    text = content.decode("utf-8-sig", "replace")
    try:
        return json.loads(text, strict=False), "\ufffd" not in text
    except json.JSONDecodeError as problem:
        cut = problem.pos >= len(text.rstrip()) or problem.msg.startswith("Unterminated")
        what = "the JSON is cut off" if cut else f"no JSON: {problem.msg}"
        position = f"line {problem.lineno}, column {problem.colno}"
        raise InputError(
            f"{what} at {position}", where=where, do="export it again, one document per file"
        ) from None
    except (RecursionError, ValueError):
        raise InputError(
            "the JSON nests too deeply or holds a number too long",
            where=where,
            do="export it again",
        ) from None


_LARGEST = 1 << 62  # what a column of integers holds, and far more than Slurm counts
_NO_VALUE = 0xFFFFFFFE  # NO_VAL of slurm.h, and INFINITE above it


def json_value(value: object, *path: str) -> object:
    """Return the value at `path` in nested objects, or None.

    >>> json_value({"time": {"start": 5}}, "time", "start"), json_value({"time": 3}, "time", "start")
    (5, None)
    """
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def json_number(value: object, *path: str) -> int | None:
    """Return a number at `path` in any of Slurm's forms; None if not set or infinite.

    >>> [json_number(one) for one in (5, "7", None, "INFINITE")]
    [5, 7, None, None]
    >>> json_number({"set": True, "infinite": False, "number": 7}), json_number({"set": False, "number": 0})
    (7, None)
    >>> json_number({"set": True, "infinite": True, "number": 0}) is None
    True
    """
    value = json_value(value, *path)
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return None
        value = value.get("number")
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if isinstance(value, int) and abs(value) < _LARGEST else None


def json_time(value: object, *path: str) -> datetime | None:
    """Return the UTC time of a number of seconds at `path`, in any of Slurm's shapes.

    None: not set. Errors: BadRowError out of range.
    """
    seconds = json_number(value, *path)
    return None if seconds is None else from_epoch(seconds)


def json_limit_s(value: object, *path: str) -> float | None:
    """Return a time limit at `path` in s (Slurm: minutes); None: not set, or unlimited."""
    minutes = json_number(value, *path)
    return minutes * 60.0 if minutes is not None and 0 <= minutes < _NO_VALUE else None


def json_example(value: object) -> str:
    """Return a value of a document as text, for the example of a reject."""
    return json.dumps(value, ensure_ascii=False)[:2000]


def json_text(value: object, *path: str) -> str | None:
    """Return a text at `path`, a list's first text, or a number as text; otherwise None.

    >>> json_text("a"), json_text(["COMPLETED"]), json_text(""), json_text(7), json_text(7.0)
    ('a', 'COMPLETED', None, '7', '7')
    """
    value = json_value(value, *path)
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = json_number(value)
        if whole is not None:
            return str(whole)
        return str(value) if value == value else None
    if not isinstance(value, str) or not value:
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def json_objects(value: object, *path: str) -> list[dict[str, object]]:
    """Return the objects of a list at `path`, [] without one.

    >>> json_objects([{"a": 1}, 3]), json_objects(None)
    ([{'a': 1}], [])
    """
    value = json_value(value, *path)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class BadRowError(ValueError):
    """An unreadable row; `reason`: for the count. Handled within the reader."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


# Slurm's texts for "nothing", lower case
ABSENT = frozenset({"", "unknown", "none", "n/a", "(null)", "none assigned", "not set"})


def absent(written: str) -> bool:
    """Return whether Slurm wrote one of its words for "nothing".

    >>> absent("Unknown"), absent("None assigned"), absent("gpu01")
    (True, True, False)
    """
    return written.strip().lower() in ABSENT


@dataclass(frozen=True, slots=True)
class JobId:
    """The parts of a job id. `raw_known` False: no JobIDRaw, the display id is used."""

    raw: str
    display: str | None = None
    array_job_id: str | None = None
    array_task_id: int | None = None
    het_job_id: str | None = None
    het_offset: int | None = None
    step: str | None = None
    raw_known: bool = True


def reported_job_id(
    raw: int | None,
    *,
    array: int | None,
    task: int | None,
    het: int | None,
    offset: int | None,
    waiting: str | None = None,
) -> JobId:
    """Return the parts of a numeric id from Slurm; 0: none.

    `waiting`: tasks that do not run yet.

    >>> reported_job_id(14, array=3, task=0, het=0, offset=None).display
    '3_0'
    >>> reported_job_id(12, array=0, task=None, het=11, offset=1).display
    '11+1'

    Errors: BadRowError without a raw id.
    """
    if not raw or raw < 0:
        raise BadRowError("bad_job_id")
    display = None
    if array and (task is not None or waiting):
        display = f"{array}_{task}" if task is not None else f"{array}_[{waiting}]"
    elif het and offset is not None:
        display = f"{het}+{offset}"
    return JobId(
        raw=str(raw),
        display=display,
        array_job_id=str(array) if array else None,
        array_task_id=task if array else None,
        het_job_id=str(het) if het else None,
        het_offset=offset if het else None,
    )


_DISPLAY = re.compile(
    r"([1-9]\d{0,17})(?:_(\d{1,10}|\[[^\]]*\](?:%\d+)?)|\+(\d{1,10}))?(?:\.(\S+))?", re.ASCII
)
_RAW = re.compile(r"([1-9]\d{0,17})(?:\.(\S+))?", re.ASCII)


_FRACTION = re.compile(r"(?<=\d)\.0*\Z")  # of a whole number that a program took for another


def job_id(display: str, raw: str = "", *, has_steps: bool = False) -> JobId:
    """Return the parts of a job id.

    Forms: `123`, `123_4` (array), `123_[5-9%2]` (not yet split), `123+1` (het), `123.batch`.

    >>> parts = job_id("3_0", "14"); parts.raw, parts.display, parts.array_job_id, parts.array_task_id
    ('14', '3_0', '3', 0)
    >>> job_id("11+1", "12").het_offset, job_id("123.batch").step, job_id("123").display
    (1, 'batch', None)

    Without a raw id the display id of a task or component is the key: it is unique, but not what
    the nodes know. `has_steps`: steps stand in another field, so `123.0` is the job 123. Errors:
    BadRowError for anything else.
    """
    display, raw = display.strip(), raw.strip()
    if has_steps:
        display, raw = _FRACTION.sub("", display), _FRACTION.sub("", raw)
    shown = _DISPLAY.fullmatch(display) if display else None
    raw_id = _RAW.fullmatch(raw) if raw else None
    if (display and not shown) or (raw and not raw_id) or not (shown or raw_id):
        raise BadRowError("bad_job_id")
    step = (shown and shown[4]) or (raw_id and raw_id[2]) or None
    if shown is None:
        assert raw_id is not None
        return JobId(raw_id[1], step=step)
    base, task, offset, _ = shown.groups()
    split = bool(task) and not task.startswith("[")
    composed = split or bool(offset)
    if raw_id:
        key = raw_id[1]
    elif split:
        key = f"{base}_{task}"
    elif offset:
        key = f"{base}+{offset}"
    else:
        key = base
    without_step: str | None = None
    if offset:
        without_step = display[: shown.end(3)]
    elif task:
        without_step = display[: shown.end(2)]
    return JobId(
        raw=key,
        display=without_step,
        array_job_id=base if task else None,
        array_task_id=int(task) if split else None,
        het_job_id=base if offset else None,
        het_offset=int(offset) if offset else None,
        step=step,
        raw_known=bool(raw_id) or not composed,
    )


def any_job_id(written: str) -> str:
    """Return the id of a job of any scheduler.

    >>> any_job_id("123_4"), any_job_id("123.server")
    ('123_4', '123.server')

    Errors: BadRowError `bad_job_id` for anything else, and for a step.
    """
    job, step = job_and_step(written) or (None, None)
    if job is None or step is not None:
        raise BadRowError("bad_job_id")
    return job


# Squeue(1), in this order.
_SHORT_FORMS = "PD R S CD CA F TO NF PR BF DL OOM RQ RS RV CF CG ST SI SO SE RH RF RD LF"
_SHORT = dict(zip(_SHORT_FORMS.split(), SLURM_STATES, strict=False))
_KNOWN = frozenset(SLURM_STATES)


@lru_cache(maxsize=1024)
def base_state(written: str) -> str | None:
    """Return the base state without flags and user; truncated names are completed.

    >>> base_state("CANCELLED by 1234"), base_state("OUT_OF_ME+"), base_state("PD"), base_state("")
    ('CANCELLED', 'OUT_OF_MEMORY', 'PENDING', None)
    >>> base_state("COMPLETING,RUNNING")
    'RUNNING'

    Errors: BadRowError for what is no state of Slurm.
    """
    if absent(written):
        return None
    states = [_state(word) for word in written.partition(" by ")[0].replace("|", ",").split(",")]
    return next((state for state in states if state in BASE_STATES), states[0])


def _state(written: str) -> str:
    word = written.strip().upper()
    if word in _KNOWN:
        return word
    if word.endswith("+") and len(word) > 2:
        cut = word.rstrip("+")
        whole = [state for state in SLURM_STATES if state.startswith(cut)]
        if cut in _KNOWN or len(whole) == 1:
            return cut if cut in _KNOWN else whole[0]
    if word not in _SHORT:
        raise BadRowError("bad_state")
    return _SHORT[word]


@dataclass(frozen=True, slots=True)
class JobState:
    """The base state of a job, and its flags. base None: not reported."""

    base: str | None
    flags: frozenset[str] = frozenset()


def job_state(value: object) -> JobState:
    """Return the state of a JSON document, a word or a list in any order.

    >>> job_state(["COMPLETING", "RUNNING"]).base, job_state("PENDING").base, job_state(None).base
    ('RUNNING', 'PENDING', None)

    Errors: BadRowError where one of them is no state of Slurm.
    """
    states: list[str] = []
    for word in value if isinstance(value, list) else [value]:
        state = base_state(json_text(word) or "")
        if state is not None:
            states.append(state)
    if not states:
        return JobState(None, frozenset())
    base = next((state for state in states if state in BASE_STATES), states[0])
    return JobState(base, frozenset(states) - {base})


_EXIT = re.compile(r"(\d{1,10}):(\d{1,10})", re.ASCII)


@lru_cache(maxsize=8192)
def exit_status(written: str) -> tuple[int | None, int | None]:
    """Return (code, signal) of `code:signal`; signal 0: none; folded as by `folded_exit_code`.

    >>> exit_status("3:0"), exit_status("0:9"), exit_status("139:0"), exit_status("")
    ((3, None), (0, 9), (11, None), (None, None))

    Errors: BadRowError when it is not one.
    """
    if absent(written):
        return None, None
    match = _EXIT.fullmatch(written.strip())
    if not match:
        raise BadRowError("bad_exit_code")
    return folded_exit_code(int(match[1])), int(match[2]) or None


def folded_exit_code(code: int) -> int:
    """Return an exit code, reduced by 128 from 128 on (139 becomes 11).

    sacct to 24.11 prints it so, its JSON and the text of 26.05 do not: one job, one code, whatever
    it was read from.

    >>> folded_exit_code(139), folded_exit_code(3)
    (11, 3)
    """
    return code - 128 if code >= 128 else code


@lru_cache(maxsize=8192)
def whole(written: str) -> int | None:
    """Return a count, or None.

    >>> whole("12"), whole("")
    (12, None)

    Errors: BadRowError when it is no whole number.
    """
    text = written.strip()
    if absent(text):
        return None
    if not re.fullmatch(r"\d{1,9}(?:\.0+)?", text, re.ASCII):
        raise BadRowError("bad_count")
    return int(float(text))


@lru_cache(maxsize=65536)
def seconds(raw: str, written: str, *, scale: float = 1.0) -> float | None:
    """Return a duration in s from `raw` (in units of `scale` s), else from Slurm's notation.

    >>> seconds("16", ""), seconds("", "3-06:16:53"), seconds("10", "", scale=60)
    (16.0, 281813.0, 600.0)
    >>> seconds("", "UNLIMITED")

    Errors: BadRowError when it is no duration.
    """
    number = raw.strip()
    if number and re.fullmatch(r"\d{1,12}", number, re.ASCII):
        return float(number) * scale
    text = written.strip() or number
    if absent(text) or text.lower() in {
        "unlimited",
        "partition_limit",
        "infinite",
        "invalid",
        "not_set",
    }:
        return None
    value = slurm_duration_s(text) if len(text) < 40 and ":" in text else None
    if value is None:
        raise BadRowError("bad_duration")
    return value


_NO_TIMES = frozenset({0, _NO_VALUE, 0xFFFFFFFF})


def from_epoch(seconds: float) -> datetime | None:
    """Return the UTC time of seconds since 1970; None for Slurm's marks for "not set".

    >>> from_epoch(4294967294), from_epoch(1795245390).isoformat()
    (None, '2026-11-21T07:16:30+00:00')

    Errors: BadRowError out of range.
    """
    if seconds in _NO_TIMES:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise BadRowError("bad_time") from None


_EPOCH = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


@lru_cache(maxsize=65536)
def instants(written: str, zone_name: str) -> tuple[datetime, ...]:
    """Return the possible UTC times of a text: none, one, or two in a repeated hour.

    Local wall clock, ISO with an offset, or seconds since 1970, with a fraction or without.

    >>> [t.hour for t in instants("2026-11-01T01:30:00", "America/New_York")]
    [5, 6]
    >>> instants("Unknown", "UTC"), [t.microsecond for t in instants("1795268807.25", "UTC")]
    ((), [250000])

    Errors: BadRowError for what is no time, or a wall clock that does not exist (clocks go
    forward).
    """
    text = written.strip()
    if absent(text):
        return ()
    if _EPOCH.fullmatch(text):
        moment = from_epoch(float(text))
        return (moment,) if moment else ()
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise BadRowError("bad_time") from None
    if len(text) < 16:  # a date or a time without minutes is not an instant
        raise BadRowError("bad_time")
    try:
        if local.tzinfo is not None:
            return (local.astimezone(UTC),)
        first, second = to_utc(local, zone_name), to_utc(local, zone_name, later=True)
    except OverflowError:
        raise BadRowError("bad_time") from None
    if first > second:
        raise BadRowError("time_does_not_exist")
    return (first,) if first == second else (first, second)


def settle(
    candidates: Sequence[tuple[datetime, ...]], run_s: float | None
) -> list[datetime | None]:
    """Return (submit, eligible, start, end), each the candidate that fits best.

    Best: end - start nearest to `run_s` (run time, s), then times in order, then the earlier ones.

    >>> twice = (datetime(2026, 11, 1, 5, 30, tzinfo=UTC), datetime(2026, 11, 1, 6, 30, tzinfo=UTC))
    >>> [t and t.hour for t in settle([(), (), twice, (datetime(2026, 11, 1, 7, tzinfo=UTC),)], 1800.0)]
    [None, None, 6, 7]
    """
    if all(len(times) < 2 for times in candidates):
        return [times[0] if times else None for times in candidates]

    def misfit(reading: tuple[datetime | None, ...]) -> tuple[float, int]:
        start, end = reading[2], reading[3]
        off = (
            abs((end - start).total_seconds() - run_s)
            if start and end and run_s is not None
            else 0.0
        )
        present = [time for time in reading if time]
        return off, sum(later < earlier for earlier, later in pairwise(present))

    choices: list[tuple[datetime | None, ...]] = list(
        product(*(times or (None,) for times in candidates))
    )
    best = min(choices, key=misfit)
    return list(best)


MAX_NODES = 100_000  # Slurm itself stops at 65,533 nodes (MaxNodes, slurm.conf(5))
_LONGEST_NODE_LIST = 4_000_000  # characters

_TERM = re.compile(
    r"(?:[A-Za-z0-9_.-]|\[\d{1,12}(?:-\d{1,12})?(?:,\d{1,12}(?:-\d{1,12})?)*\])+(?:,|$)", re.ASCII
)
_BRACKET = re.compile(r"\[([^\]]*)\]")
_MIXED = re.compile(r"(?<![\d-])(0\d*)-(\d+)(?![\d-])", re.ASCII)


@lru_cache(maxsize=4096)
def count_nodes(expression: str) -> int:
    """Return the number of nodes in a hostlist without expanding it.

    >>> count_nodes("nid[001224-001226,001300],login1"), count_nodes("n[1-100000000]")
    (5, 100000000)

    Errors: BadRowError when it is no hostlist expression.
    """
    if not expression or len(expression) > _LONGEST_NODE_LIST or expression.endswith(","):
        raise BadRowError("bad_node_list")
    total = position = 0
    while position < len(expression):
        term = _TERM.match(expression, position)
        if not term:
            raise BadRowError("bad_node_list")
        product = 1
        for bracket in _BRACKET.finditer(term[0]):
            product *= sum(_width(part) for part in bracket[1].split(","))
        total += product
        position = term.end()
    return total


def _width(part: str) -> int:
    low, _, high = part.partition("-")
    if high and int(high) < int(low):
        raise BadRowError("bad_node_list")
    return int(high) - int(low) + 1 if high else 1


def _split_padding(match: re.Match[str]) -> str:
    """`09-101`, which Slurm writes and ClusterShell refuses, as `09-99,100-101`."""
    low, high = match[1], match[2]
    if len(high) <= len(low):
        return match[0]
    return f"{low}-{'9' * len(low)},1{'0' * len(low)}-{high}"


@lru_cache(maxsize=4096)
def expand_nodes(expression: str) -> tuple[str, ...]:
    """Return the nodes a hostlist expression names, short form, each once, in the order written.

    >>> expand_nodes("gpu[09-10,12],a1"), expand_nodes("n1.example.org")
    (('gpu09', 'gpu10', 'gpu12', 'a1'), ('n1',))

    Errors: BadRowError when it is none, or names more than 100,000 nodes.
    """
    expression = expression.strip()
    if count_nodes(expression) > MAX_NODES:
        raise BadRowError("too_many_nodes")
    terms = (match[0].removesuffix(",") for match in _TERM.finditer(expression))
    return tuple(dict.fromkeys(short_node(node) for term in terms for node in _expand_term(term)))


def _expand_term(term: str) -> list[str]:
    if "[" not in term:
        return [term]
    try:
        return [
            str(node)
            for node in NodeSet(_MIXED.sub(_split_padding, term), resolver=RESOLVER_NOGROUP)
        ]
    except NodeSetException:
        raise BadRowError("bad_node_list") from None


def node_aliases(configuration: Configuration) -> Mapping[str, str]:
    """Return {name that a source writes: name of the node} of `nodes.aliases`.

    Errors: ConfigError for lists that are none, or of different lengths.
    """
    aliases: dict[str, str] = {}
    for written, nodes in configuration.nodes.aliases.items():
        try:
            aliases.update(zip(expand_nodes(written), expand_nodes(nodes), strict=True))
        except (BadRowError, ValueError):
            what = f"aliases: {written!r} and {nodes!r} are not lists of as many nodes"
            raise ConfigError(what, where="[nodes]", do='write "a[1-2]" = "b[1-2]"') from None
    return aliases
