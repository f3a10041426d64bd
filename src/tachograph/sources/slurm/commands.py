"""Commands of the site: `sacct`, `squeue`, `scontrol`, also on another host through `ssh`."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Final, Protocol

from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.units import printable
from tachograph.sources.slurm.arguments import fill_in, is_remote

LARGEST: Final = 1 << 30  # bytes of one answer
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class SiteProgram:
    """A program to run: words (`("ssh", "login", "sacct")`), environment, limits.

    answer: what it reads from stdin.
    """

    words: tuple[str, ...]
    timeout_s: float = 300.0
    environment: Mapping[str, str] = field(default_factory=dict)
    largest: int = LARGEST
    answer: bytes = b""

    @property
    def name(self) -> str:
        """The words as one types them."""
        return shlex.join(self.words)

    def command(self, *arguments: str, **values: str) -> list[str]:
        """Return the command line; `{kind}` in an argument becomes the value of that kind.

        Remote programs do not get our environment, `env` sets it. ssh joins the words and a shell
        reads them, so they are quoted; any other prefix may be a script that calls ssh, so nothing
        may need quotes. Errors: RefusedError for a value invalid for its kind.

        >>> SiteProgram(("ssh", "login", "sacct"), environment={"A": "1"}).command("-e")
        ['ssh', 'login', 'env', 'A=1', 'sacct', '-e']
        >>> SiteProgram(("sacct",), environment={"A": "1"}).command("-e")
        ['sacct', '-e']
        >>> SiteProgram(("ssh", "login", "scontrol")).command("Reason={reason}", reason="XID 79")
        ['ssh', 'login', 'scontrol', "'Reason=XID 79'"]
        """
        *before, program = self.words
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        filled = fill_in(arguments, values)
        if not before:
            return [program, *filled]
        command = [*(["env", *settings] if settings else []), program, *filled]
        if is_remote(before):
            return [*before, *map(shlex.quote, command)]
        return [*before, *(word.replace(" ", "_") for word in command)]

    def output(self, *arguments: str, **values: str) -> bytes:
        """Return the output of the program if it succeeds; arguments as for `command`.

        Errors: InputError naming the program and the reason, when it cannot be run, fails, is too
        slow, or prints more than `largest` bytes; then it is ended. RefusedError: it was not run.
        """
        command = self.command(*arguments, **values)
        # No pipe: what ssh leaves running would hold it open.
        with tempfile.TemporaryFile() as complaints:
            process = self._start(command, complaints)
            try:
                printed = self._read(process)
            finally:
                _end(process)
            if process.returncode:
                raise self._problem(_ending(process.returncode, complaints), "run it by hand")
        return printed

    def _start(self, command: list[str], complaints: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            with tempfile.TemporaryFile() as answer:
                answer.write(self.answer)
                answer.seek(0)
                return subprocess.Popen(
                    command,
                    stdin=answer,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
        except (OSError, ValueError) as problem:
            reason = (
                problem.strerror
                if isinstance(problem, OSError) and problem.strerror
                else str(problem)
            )
            raise self._problem(
                f"cannot be run: {reason}", "name it with command in [[sources]]"
            ) from None

    def _read(self, process: subprocess.Popen[bytes]) -> bytes:
        """All that is printed until the program ends."""
        until = time.monotonic() + self.timeout_s
        printed = bytearray()
        with selectors.DefaultSelector() as ready:
            if process.stdout is not None:
                ready.register(process.stdout, selectors.EVENT_READ)
            while ready.get_map():
                for key, _ in ready.select(max(0.0, until - time.monotonic())):
                    block = os.read(key.fd, _BLOCK)
                    printed += block
                    if not block:
                        ready.unregister(key.fileobj)
                if len(printed) > self.largest:
                    raise self._problem(
                        f"printed more than {self.largest >> 20} MiB",
                        "request less at a time: step_s",
                    )
                if ready.get_map() and time.monotonic() >= until:
                    raise self._too_slow()
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._too_slow() from None
        return bytes(printed)

    def _too_slow(self) -> InputError:
        return self._problem(
            f"did not end within {self.timeout_s:g} s", "is Slurm busy? raise timeout_s"
        )

    def _problem(self, what: str, do: str) -> InputError:
        return InputError(what, where=self.name, do=do)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that still runs, with all it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _ending(code: int, complaints: IO[bytes]) -> str:
    """Its exit, and message: the last error, else the first line."""
    how = f"failed with exit code {code}" if code > 0 else f"was ended by signal {-code}"
    complaints.seek(0)
    lines = [
        " ".join(line.split())
        for line in complaints.read(_BLOCK).decode("utf-8", "replace").splitlines()
    ]
    phrases = [line for line in lines if line]
    errors = [line for line in phrases if "error:" in line or "fatal:" in line]
    words = errors[-1:] or phrases[:1]
    return f"{how}: {printable(words[0], most=300)}" if words else how


def check_how(how: str, *, url: str, command: tuple[str, ...]) -> None:
    """Check that a command or a server is configured. Errors: ConfigError."""
    if how == "command" and url:
        raise ConfigError(
            'url is given, but how is "command"', do='add how = "rest", or remove url'
        )
    if not command or not all(command):
        raise ConfigError("command is empty", do='write it as ["ssh", "login", "sacct"]')


BETWEEN: Final = "\x1f"  # between fields that no user can write
FIELDS: Final = (  # that are requested
    "JobID JobIDRaw Cluster Partition QOS Account User Submit Eligible Start End Elapsed "
    "ElapsedRaw Suspended State "
    "ExitCode NNodes NTasks AllocCPUS ReqCPUS ReqMem TotalCPU MaxRSS TRESUsageInTot "
    "TRESUsageInMax NodeList AllocTRES "
    "ReqTRES Constraints Exclusive Timelimit TimelimitRaw AdminComment JobName SubmitLine"
)
# Fields of sacct, in lower case, that slurmctld or slurmdbd check, count or write themselves: no
# user gets a line break or a delimiter into them. Every other field is text that a user writes,
# also one that this table does not know: it is never requested beside these. Not here, as seen on
# Slurm 22.05: Account (any text where associations are not enforced), Constraints (`gpu*\n4`),
# WCKey, Container, WorkDir, McsLabel, JobName, Comment, SubmitLine, ReqGRES.
_IDENTITY: Final = (
    "jobid jobidraw step cluster partition qos qosraw user uid group gid submit eligible start "
    "end elapsed "
    "elapsedraw suspended planned reserved state exitcode derivedexitcode nnodes allocnodes "
    "ntasks ncpus "
    "alloccpus reqcpus reqmem totalcpu usercpu systemcpu cputime cputimeraw maxrss averss "
    "maxvmsize avecpu "
    "tresusageintot tresusageinmax tresusageinmaxnode tresusageinave tresusageouttot "
    "consumedenergyraw nodelist "
    "alloctres reqtres allocgres exclusive timelimit timelimitraw priority"
)
IDENTITY: Final = frozenset(_IDENTITY.split())
IN_SECONDS: Final[Mapping[str, str]] = {"SLURM_TIME_FORMAT": "%s"}

RunProgram = Callable[..., bytes]  # arguments of a program -> its output


@dataclass(frozen=True, slots=True)
class AccountingSpan:
    """From when to when accounting is requested."""

    first: datetime
    last: datetime

    @property
    def written(self) -> tuple[str, str]:
        """Both ends as Slurm reads them."""
        return f"uts{int(self.first.timestamp())}", f"uts{int(self.last.timestamp())}"


@dataclass(frozen=True, slots=True)
class AccountingAnswer:
    """A raw answer: a document or text.

    texts: of text, what users wrote, in an answer of its own. delimiters: between the fields of
    both; "" of a document.
    """

    content: bytes
    delimiter: str = ""
    texts: bytes = b""
    texts_delimiter: str = ""


class AccountingAccess(Protocol):
    """Interface of a polled accounting."""

    where: str

    def fetch(self, span: AccountingSpan) -> AccountingAnswer:
        """Return the raw answer. Errors: InputError if it is missing or incomplete."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class SacctCommand:
    """`sacct` as a child process. `clusters`: some of one slurmdbd; by default the configured one.

    It runs twice for a span. The first answer has no field that a user can write, so each of its
    lines is a record whatever jobs are called. The second has these fields, between ids and with a
    delimiter that is new each time.
    """

    def __init__(
        self,
        run: RunProgram,
        *,
        where: str = "sacct",
        clusters: tuple[str, ...] = (),
        steps: bool = True,
    ) -> None:
        self.where = where
        self._run = run
        self._steps = steps
        self._clusters = clusters
        self._known: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        words: tuple[str, ...],
        *,
        timeout_s: float,
        clusters: tuple[str, ...] = (),
        steps: bool = True,
    ) -> SacctCommand:
        """Return the program called so."""
        program = SiteProgram(words, timeout_s=timeout_s, environment=IN_SECONDS)
        return cls(program.output, where=program.name, clusters=clusters, steps=steps)

    def fetch(self, span: AccountingSpan) -> AccountingAnswer:
        """Return the jobs of the span with steps and all requeued runs, as text with a header.

        Errors: InputError when sacct fails, or an answer is not whole.
        """
        fields = self._known_fields()
        identity = [name for name in fields if name.lower() in IDENTITY]
        written = [name for name in fields if name.lower() not in IDENTITY]
        content = self._answer(span, identity, BETWEEN)
        if not written:
            return AccountingAnswer(content, BETWEEN)
        unguessable = str(uuid.uuid4())
        texts = self._answer(
            span, ("Cluster", "JobIDRaw", "Submit", *written, "JobIDRaw"), unguessable
        )
        return AccountingAnswer(content, BETWEEN, texts, unguessable)

    def close(self) -> None:
        """Nothing is kept open."""

    def _answer(self, span: AccountingSpan, names: Sequence[str], between: str) -> bytes:
        """Output of sacct. Errors: InputError if it fails or is truncated."""
        first, last = span.written
        answer = self._run(
            *("--allusers", "--duplicates", *(() if self._steps else ("--allocations",))),
            *("--parsable2", f"--delimiter={between}"),
            *((f"--clusters={','.join(self._clusters)}",) if self._clusters else ()),
            *(f"--starttime={first}", f"--endtime={last}", f"--format={','.join(names)}"),
        )
        begins_well = answer.startswith(f"{names[0]}{between}".encode())
        if not answer.endswith(b"\n") or not begins_well:
            begins = answer[:60].decode("utf-8", "replace").strip()
            what = "the answer was cut off" if begins_well else f"is not accounting: {begins!r}"
            raise InputError(what, where=self.where, do="run it by hand")
        return answer

    def _known_fields(self) -> tuple[str, ...]:
        """The fields that this version of Slurm knows, of those that are read; requested once."""
        if not self._known:
            answer = self._run("--helpformat").decode("utf-8", "replace")
            fields = set(answer.split())
            if fields and not {"JobID", "JobIDRaw"} <= fields:
                what = f"is not accounting: {answer[:60].strip()!r}"
                raise InputError(what, where=self.where, do="run it by hand")
            self._known = tuple(name for name in FIELDS.split() if name in fields or not fields)
        return self._known
