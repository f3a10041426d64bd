"""Every reader, with small excerpts of recorded inputs to begin from, and how it reads one file."""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from hostile_rules import hostile_rule, run_rules
from mutators import mutate
from nsight_targets import (
    CALIBRATION,
    details_pages,
    mutate_stored,
    raw_pages,
    read_calibrations,
    read_page,
    read_stored,
    stored_reports,
)

import tachograph.judge.rules
from tachograph.catalog import config
from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import Configuration, SiteOptions
from tachograph.catalog.errors import TachographError
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.sources import (
    allocation_map,
    dcgm_exporter,
    ldms,
    nvidia_smi,
    prometheus,
    sacct,
    table,
)
from tachograph.sources.exporter_mapping import MetricKey
from tachograph.sources.exporters import exporter_mappings
from tachograph.sources.metrics import refuse_unknown_metrics
from tachograph.sources.registry import settings_of
from tachograph.sources.slurm.allocations import held_gpus
from tachograph.sources.slurm.fields import BadRowError
from tachograph.sources.slurm.gres import gres_counts, tres
from tachograph.sources.table import suggest
from tachograph.sources.table.mapping import load

NOW = datetime(2027, 1, 1, tzinfo=UTC)
SITE = Configuration(site=SiteOptions(time_zone="Europe/Berlin", cluster="c"))
MAPPING = b"""table = "gpu_samples"
[time]
column = "timestamp"
zone = "UTC"
[node]
column = "hostname"
pattern = '(nid\\d+)'
[gpu]
column = "gpu_id"
[columns]
nersc_ldms_dcgm_gr_engine_active = {to = "gpu_util", unit = "percent", scale = 100.0}
nersc_ldms_dcgm_dram_active = "dram_active"
"""
CONFIGURATION = b"""lake = "lake"
[site]
time_zone = "Europe/Berlin"
cluster = "c"
[slurm]
exclusive = ["gpu*"]
[nodes]
models = {"nid[001-004]" = "A100-SXM4-40GB"}
gpus = {"nid[001-004]" = 4}
[analysis]
window_s = 300
notebooks = true
[thresholds]
low_util = 0.3
[collect]
listen = "127.0.0.1:9798"
analyze_s = 300.0
[[sources]]
source = "prometheus"
url = "http://localhost:9090"
every_s = 60
"""
MAP = b'job_id,node,gpu,mig,start,end\n1,n1,0,,2026-03-01T10:00:00,2026-03-01T11:00:00\n2_3,n2,0-3,,,\n3,n3,"0,1",7,,\n'
PAGE = b"""# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA A100 80GB, \\"SXM\\"",Hostname="n1"} 93
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-1",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",hpc_job="12"} 0.5 1776204532000
node_cpu_seconds_total{cpu="0",mode="idle"} 1.5e+06
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1",Hostname="n1",err_code="31",err_msg="x"} 31 # {trace_id="1"} 1 1776204532.1
# EOF
"""
SMI_QUERY = b"""timestamp, index, name, uuid, pci.bus_id, utilization.gpu [%], memory.used [MiB], memory.total [MiB], \
power.draw [W], clocks_event_reasons.active, hostname
2026/03/01 10:00:00.123, 0, NVIDIA A100, GPU-a, 00000000:07:00.0, 45 %, 1024 MiB, 40960 MiB, 71.5 W, 0x04, n1
2026/03/01 10:00:00.124, 1, NVIDIA A100, GPU-b, 00000000:08:00.0, [N/A], N/A, 40960 MiB, [Not Supported], 0x0, n1
"""
SMI_DMON = b"""#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz     MB
 20260301   23:59:59      0     44     36     35      7      1   1215   1410   1024
 20260302   00:00:00      0     44     36      -     97      1   1215   1410   1024
"""
SMI_TIMES = b"#Time gpu pwr sm\n#HH:MM:SS Idx W %\n 23:59:59 0 44 7\n 00:00:00 0 45 97\n"
GRES = (
    b"JobID|Start|End|State|NNodes|NodeList|AllocTRES|ReqTRES|AllocGRES|ReqGRES\n"
    b"1|2026-03-01T10:00:00|2026-03-01T11:00:00|COMPLETED|2|n[1-2]|cpu=2,gres/gpu:a100=2,gres/gpu=2|||\n"
    b"2|2026-03-01T10:00:00|2026-03-01T11:00:00|COMPLETED|2|n[1-2]|||gpu:v100:2(S:0-1),nvme:1|PER_NODE:gpu:2\n"
    b"3|2026-03-01T10:00:00|Unknown|RUNNING|1|n3|gres/shard:a100=4K,gres/mps=50||7696487:2|shard:3\n"
)
RUNNING = b"""JobId=7 JobName=a
   JobState=RUNNING StartTime=2026-03-01T10:00:00 NodeList=n[1-2]
   TRES=cpu=4,node=2,gres/gpu=2,gres/gpu:1g.10gb=1
     Nodes=n1 CPU_IDs=0-3 Mem=0 GRES=gres:gpu:1g.10gb:1(IDX:0)
     Nodes=n2 CPU_IDs=0-3 Mem=0 GRES=gpu:(null):2(IDX:0-1),shard:a100:3(0/4,3/4)
JobId=8 JobState=RUNNING NodeList=n3 TRES=gres/shard=4 Nodes=n3 CPU_IDs=0 Mem=0 GRES=shard:4(IDX:2(4/8)),mps:50(CNT:50)
"""
LIVE = b"""{"jobs": [
{"job_id": 1, "job_state": ["RUNNING"], "nodes": "n[1-2]", "gres_detail": ["gpu:1g.5gb:1(IDX:0)",
"shard:2(IDX:3(2/4))"], "start_time": {"set": true, "infinite": false, "number": 1776204532},
"tres_alloc_str": "cpu=1,gres/gpu=1"}]}
"""
NAMED_JOBS = b"""timestamp,hostname,gpu_id,jobid,step,nersc_ldms_dcgm_gr_engine_active
2026-03-01T10:00:00,nid001,0,7.0,4294967291,0.5
2026-03-01T10:00:10,nid001,0,7.batch,1,0.5
2026-03-01T10:00:10,nid001,0,4.5916256e+07,,0.25
2026-03-01T10:00:20,nid001,0,123_4,batch,0.5
2026-03-01T10:00:20,nid001,1,N/A,,0.75
"""
OWN_METRICS = b"""[[sources]]
source = "prometheus"
url = "http://localhost:9090"
[sources.metrics]
'link_bytes{direction="TX"}' = ["nvlink_tx_bytes_per_s", "B/s", "sum link"]
"fan_watts" = ["power_w", "W", "fallback"]
"used" = ["hbm_used_mib", "percent_of_capacity"]
[sources.labels]
gpu = ["card"]
job = ["owner"]
"""
EXPORT = (
    b'{"metric":{"__name__":"DCGM_FI_DEV_FB_USED","gpu":"0","Hostname":"n1"},"values":[1,2.5],'
    b'"timestamps":[1776204532000,1776204542000]}\n'
    b'{"metric":{"__name__":"node_load1","instance":"n1:9100"},"values":[0.5],"timestamps":[1776204532000]}\n'
)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader: excerpts to begin from, how files are called, and how one is read: its rows,
    or the whole way.
    """

    name: str
    suffix: str
    excerpts: Callable[[], Iterable[bytes]]
    read: Callable[[Path, bool], None]
    share: int = 3  # of the mutations: readers that take longer have less of them
    seconds: float = 1.0  # of processor time for one file: what takes longer has failed
    make: Callable[[Sequence[bytes], Random], bytes] = mutate

    @property
    def seeds(self) -> tuple[bytes, ...]:
        """The excerpts, made when they are requested: a process that uses polars must not fork
        afterwards.
        """
        return _made(self.excerpts)


@cache
def _made(excerpts: Callable[[], Iterable[bytes]]) -> tuple[bytes, ...]:
    return tuple(excerpts())


def targets(recorded: Path) -> tuple[Target, ...]:
    """Return all readers with the excerpts of the recorded inputs."""
    slurm, nersc, restd = (
        recorded / name for name in ("slurm_outputs", "nersc_perlmutter", "slurmrestd")
    )

    def exports() -> Iterator[bytes]:
        yield from json_excerpts(
            [*nersc.glob("job_5*.json"), *nersc.glob("pmt-*.json"), nersc / "metrics-data.json"], 3
        )

    def frames() -> Iterator[pl.DataFrame]:
        rows = [
            json.loads(text) for text in json_excerpts(nersc.glob("pmt-export-compute-5*.json"), 6)
        ]
        rows += [json.loads(text)["data"] for text in json_excerpts(nersc.glob("job_51*.json"), 6)]
        return (pl.DataFrame(of_file) for of_file in rows if of_file)

    def parquet() -> Iterator[bytes]:
        for frame in frames():
            yield as_parquet(frame)
            yield as_parquet(oddly_typed(frame))

    def csv() -> Iterator[bytes]:
        return (frame.write_csv().encode() for frame in frames())

    def parsable() -> Iterator[bytes]:
        yield from text_excerpts(
            [*slurm.glob("*/sacct.parsable2.txt"), *slurm.glob("*/sacct.X.txt")], 4
        )
        yield GRES

    def held() -> Iterator[bytes]:
        yield from text_excerpts(slurm.glob("*/scontrol_show_job*.txt"), 70)
        yield RUNNING

    def documents() -> Iterator[bytes]:
        return json_excerpts(
            [*(recorded / "sacct_json_sites").glob("*.json"), *slurm.glob("*/sacct.json")], 1
        )

    def controller() -> Iterator[bytes]:
        yield from json_excerpts([*restd.glob("2*/slurm-*.json"), *slurm.glob("*/squeue*.json")], 1)
        yield LIVE

    def pages() -> Iterator[bytes]:
        yield from text_excerpts((recorded / "prometheus_h100").glob("*.prom"), 12)
        yield PAGE
        yield from exporter_pages()

    def answers() -> Iterator[bytes]:
        yield from json_excerpts(
            [*(recorded / "prometheus_h100").glob("*.json"), *restd.glob("prometheus/*.json")], 3
        )
        yield EXPORT

    return (
        Target("ldms json", ".json", exports, read_ldms, share=2),
        Target("ldms csv", ".csv", csv, read_ldms, share=1),
        Target("ldms parquet", ".parquet", parquet, read_ldms),
        Target("table csv", ".csv", csv, read_table, share=1),
        Target(
            "table json",
            ".json",
            lambda: (frame.write_json().encode() for frame in frames()),
            read_table,
            share=1,
        ),
        Target("table suggest", "", lambda: chain(csv(), exports()), read_suggest, share=1),
        Target("mapping", ".toml", lambda: (MAPPING,), read_mapping),
        Target("sacct text", ".txt", parsable, read_sacct),
        Target(
            "sacct xdmod",
            ".log",
            lambda: text_excerpts((recorded / "sacct_xdmod").glob("*.log"), 4),
            read_xdmod,
        ),
        Target("sacct json", ".json", documents, read_sacct),
        Target(
            "sacct restd",
            ".json",
            lambda: json_excerpts(restd.glob("2*/slurmdb-*.json"), 1),
            read_sacct,
        ),
        Target(
            "sacct nersc",
            ".json",
            lambda: json_excerpts(nersc.glob("*job*[as].json"), 2),
            read_sacct,
        ),
        Target(
            "allocation-map",
            "",
            lambda: (MAP, *text_excerpts(slurm.glob("*/prolog*.log"), 4)),
            read_map,
        ),
        Target("scontrol", ".txt", held, read_map),
        Target("gres", ".txt", lambda: (GRES, RUNNING), read_gres),
        Target("jobs of samples", ".csv", lambda: (NAMED_JOBS,), read_named_jobs),
        Target("nvidia-smi", ".txt", lambda: (SMI_QUERY, SMI_DMON, SMI_TIMES), read_smi),
        Target(
            "nvidia-smi without header",
            ".csv",
            lambda: (b"\n".join(SMI_QUERY.split(b"\n")[1:]),),
            read_smi_body,
        ),
        Target("squeue, slurmrestd", ".json", controller, read_map),
        Target("exporter pages", ".prom", pages, read_pages),
        Target("prometheus answers", ".json", answers, read_answers),
        Target("configuration", ".toml", lambda: (CONFIGURATION, OWN_METRICS), read_configuration),
        Target("nsight details", ".csv", details_pages, read_page),
        Target("nsight raw", ".csv", raw_pages, read_page),
        Target(
            "nsight stored", ".ncu-rep", stored_reports, read_stored, share=1, make=mutate_stored
        ),
        Target("calibration", ".toml", lambda: (CALIBRATION,), read_calibrations, share=1),
        Target(
            "rules", ".json", shipped_rules, read_rules, share=1, seconds=0.1, make=hostile_rule
        ),
    )


def exporter_pages() -> Iterator[bytes]:
    """Yield a page of each exporter with a mapping: every metric of it, with the labels that it
    is read by.
    """
    for exporter in exporter_mappings():
        names = exporter.labels
        usual = {
            "gpu": "0",
            "uuid": "GPU-1",
            "minor_number": "0",
            "hostname": "n1",
            "jobid": "7",
            "step": "0",
        }
        own = {
            name: usual.get(kind, "n1")
            for kind in names.__struct_fields__
            for name in getattr(names, kind)
        }
        lines = []
        for written in exporter.metrics:
            key = MetricKey.parse(written)
            labels = ",".join(
                f'{name}="{value}"' for name, value in {**usual, **own, **key.labels}.items()
            )
            lines.append(f"{key.metric}{{{labels}}} 1.5\n")
        yield "".join(lines).encode()


def text_excerpts(paths: Iterable[Path], lines: int) -> Iterator[bytes]:
    """Yield the beginning of each file, and some lines of its middle."""
    for path in sorted(paths):
        every = path.read_bytes().splitlines(keepends=True)
        yield b"".join(every[:lines])
        if len(every) > 3 * lines:
            yield b"".join([every[0], *every[len(every) // 2 :][:lines]])


def json_excerpts(paths: Iterable[Path], most: int) -> Iterator[bytes]:
    """Yield each document with the first few items of every list."""
    for path in sorted(paths):
        yield json.dumps(_cut(json.loads(path.read_bytes()), most)).encode()


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, dict):
        return {name: _cut(inner, most) for name, inner in value.items()}
    return (
        [_cut(inner, most) for inner in islice(value, most)] if isinstance(value, list) else value
    )


def oddly_typed(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with other types than they should have, some of them nulls."""
    kinds = (pl.String, pl.Float32, pl.Int8, pl.Null, pl.UInt64, pl.Boolean)
    return frame.select(
        frame[name].cast(kinds[place % len(kinds)], strict=False) if place > 3 else frame[name]
        for place, name in enumerate(frame.columns)
    )


def as_parquet(frame: pl.DataFrame) -> bytes:
    """Return the rows as Parquet."""
    packed = io.BytesIO()
    frame.write_parquet(packed)
    return packed.getvalue()


def options(path: Path, **given: object) -> argparse.Namespace:
    """Return options as the command line hands them over."""
    return argparse.Namespace(files=[str(path)], **given)


def conformed(chunks: Iterable[Chunk], whole: bool) -> None:
    """Read to the end; the `whole` way brings the rows into the schema of their tables as well,
    as `ingest` does.
    """
    for chunk in chunks:
        for part in chunk.parts if whole else ():
            conform(part.frame, TABLES[part.table], now=NOW, units=part.units, origin=chunk.origin)


def read_ldms(path: Path, whole: bool) -> None:
    chosen = options(path, time_zone="UTC", job_start=["2026-04-14T10:00:00"])
    conformed(ldms.read(chosen, configuration=SITE, now=NOW), whole)


def read_table(path: Path, whole: bool) -> None:
    chosen = options(path, mapping=str(_mapping(path)), node=None, set=[], time_zone=None)
    conformed(table.read(chosen, configuration=SITE, now=NOW), whole)


def _mapping(path: Path) -> Path:
    """A mapping that stands."""
    mapping = path.parent / "stands.toml"
    if not mapping.exists():
        mapping.write_bytes(MAPPING)
    return mapping


def read_suggest(path: Path, whole: bool) -> None:
    suggest.suggest(path)


def read_mapping(path: Path, whole: bool) -> None:
    mapping = load(path)
    rows = path.parent / "rows.csv"
    if not rows.exists():
        rows.write_text(
            "timestamp,hostname,gpu_id,nersc_ldms_dcgm_gr_engine_active,nersc_ldms_dcgm_dram_active\n"
            "2026-03-01T10:00:00,nid01,0,0.5,0.25\n2026-03-01T10:00:10,nid01,0,NaN,\n"
        )
    conformed(table.read_file(rows, mapping), whole)


def read_sacct(path: Path, whole: bool, **given: object) -> None:
    conformed(sacct.read(options(path, trusted=True, **given), configuration=SITE, now=NOW), whole)


def read_xdmod(path: Path, whole: bool) -> None:
    fields = (
        "jobid,jobidraw,cluster,partition,qos,account,group,gid,user,uid,submit,eligible,start,end,elapsed,exitcode,"
        "state,nnodes,ncpus,reqcpus,reqmem,reqtres,alloctres,timelimit,nodelist,jobname"
    )
    read_sacct(path, whole, fields=fields)


def read_gres(path: Path, whole: bool) -> None:
    """Whole: as accounting or map; else its lists of resources alone, which are read or refused
    with their reason.
    """
    if whole:
        (read_map if b"JobId=" in path.read_bytes() else read_sacct)(path, whole)
        return
    for written in re.split(r"[|\s]", path.read_text("utf-8", "replace")):
        for parse in (gres_counts, held_gpus, tres):
            with suppress(BadRowError):
                parse(written)


def read_named_jobs(path: Path, whole: bool) -> None:
    """Through a mapping and as LDMS recognises them."""
    mapping = path.parent / "jobs.toml"
    if not mapping.exists():
        mapping.write_bytes(MAPPING + b'[job]\ncolumn = "jobid"\n[step]\ncolumn = "step"\n')
    chosen = options(path, mapping=str(mapping), node=None, set=[], time_zone=None)
    with suppress(TachographError):
        conformed(table.read(chosen, configuration=SITE, now=NOW), whole)
    read_ldms(path, whole)


def read_smi(path: Path, whole: bool, fields: str | None = None) -> None:
    named = {"date": "2026-03-01", "time": None, "interval": None}
    chosen = options(path, fields=fields, node="n1", gpu=None, **named)
    conformed(nvidia_smi.read(chosen, configuration=SITE, now=NOW), whole)


def read_smi_body(path: Path, whole: bool) -> None:
    fields = "timestamp,index,name,uuid,pci.bus_id,utilization.gpu,memory.used,memory.total,power.draw,x,hostname"
    read_smi(path, whole, fields)


def read_map(path: Path, whole: bool) -> None:
    conformed(allocation_map.read(options(path, trusted=True), configuration=SITE, now=NOW), whole)


def read_pages(path: Path, whole: bool) -> None:
    chosen = options(path, url=[], time="2026-04-14T10:00:00", node="n1")
    conformed(dcgm_exporter.read(chosen, configuration=SITE, now=NOW), whole)


def read_answers(path: Path, whole: bool) -> None:
    parser = argparse.ArgumentParser()
    prometheus.add_options(parser)
    chosen = parser.parse_args([str(path)])
    conformed(
        (
            chunk
            for chunk in prometheus.read(chosen, configuration=SITE, now=NOW)
            if isinstance(chunk, Chunk)
        ),
        whole,
    )


def read_configuration(path: Path, whole: bool) -> None:
    for raw in config.load(str(path), {}).sources:
        settings = settings_of(raw, where=str(path))
        if isinstance(settings, prometheus.SETTINGS):
            refuse_unknown_metrics(settings.metrics, where=str(path))


def shipped_rules() -> Iterator[bytes]:
    """Yield the files of the catalogue."""
    folder = Path(tachograph.judge.rules.__file__).parent / "catalogue"
    return (path.read_bytes() for path in sorted(folder.glob("*.json")))


def read_rules(path: Path, whole: bool) -> None:
    run_rules(path.read_bytes())


def by_name(recorded: Path, names: Sequence[str]) -> tuple[Target, ...]:
    """Return the readers called so; all of them where none is named.

    Errors: KeyError for a name that no reader has.
    """
    known = {target.name: target for target in targets(recorded)}
    return tuple(known[name] for name in names) if names else tuple(known.values())
