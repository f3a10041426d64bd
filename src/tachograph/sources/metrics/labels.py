"""Which node, GPU and MIG slice the labels of a series name, and what they tell about the device and its job.

Exporters, relabelling rules and generations of dcgm-exporter spell them differently. A label that Prometheus had to
rename because its own one was called the same begins with `exported_`: that is what the exporter said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

# in order of preference; what the exporter said comes before what the scraper says
_NODE = ("exported_Hostname", "Hostname", "exported_hostname", "hostname", "nodename", "exported_node", "node", "host")
_ADDRESS = ("exported_instance", "instance")  # HOST:PORT of the exporter
_GPU = ("exported_gpu", "gpu", "gpu_id", "ordinal", "minor_number", "device")
_MIG = ("GPU_I_ID", "gpu_i_id")
_UUID = ("UUID", "uuid", "gpu_uuid")
_PCI = ("pci_bus_id",)
_MODEL = ("modelName", "model_name", "name")
_JOB = ("exported_hpc_job", "hpc_job", "jobid")
_PARTS_OF_A_GPU = ("nvlink", "nvswitch", "cpu", "cpucore")  # links, switches, Grace CPUs: not the GPU itself

_INDEX = re.compile(r"(?:nvidia)?(\d{1,4})", re.ASCII)
_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+", re.ASCII)
_ADDRESS_PARTS = re.compile(r"(?:\w+://)?(\[[^\]]*\]|[^/:]*)(?::\d+)?(?:/.*)?")
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # every node calls itself so


class LabelNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site's own label names, asked before the usual ones."""

    node: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    uuid: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    job: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """What a set of labels names. Null: the labels do not tell; `mig` null: the whole GPU; `job` null: none."""

    node: str | None
    gpu: int | None = None
    mig: int | None = None
    uuid: str | None = None
    pci: str | None = None
    model: str | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Misplaced:
    """Why a set of labels names no place: the reason it is counted under, and the label."""

    reason: str
    example: str


USUAL = LabelNames()


def place(labels: Mapping[str, str], *, names: LabelNames = USUAL) -> Place | Misplaced:
    """Return what the labels of one series name.

    >>> place({"Hostname": "n1.example.org", "gpu": "0", "GPU_I_ID": "7", "UUID": "GPU-a", "hpc_job": "0"})
    Place(node='n1', gpu=0, mig=7, uuid='GPU-a', pci=None, model=None, job=None)
    >>> place({"instance": "n2:9100", "device": "eth0"}).node
    'n2'
    >>> place({"gpu": "all"})
    Misplaced(reason='bad_gpu', example='gpu=all')

    Misplaced: `bad_gpu` and `bad_mig`, an index that is no number; `not_a_gpu`, one link of a GPU, a switch, a CPU.
    """
    gpu = _index(labels, (*names.gpu, *_GPU), "bad_gpu")
    mig = _index(labels, (*names.mig, *_MIG), "bad_mig")
    if isinstance(gpu, Misplaced):
        return gpu
    if isinstance(mig, Misplaced):
        return mig
    uuid = _first(labels, (*names.uuid, *_UUID))
    node = _node(labels, names.node)
    if gpu is None and uuid is None:
        return Place(node)
    part = next((name for name in _PARTS_OF_A_GPU if labels.get(name)), None)
    if part is not None:
        return Misplaced("not_a_gpu", f"{part}={labels[part]}"[:200])
    return Place(
        node,
        gpu,
        mig,
        uuid,
        _first(labels, (*names.pci, *_PCI)),
        _first(labels, (*names.model, *_MODEL)),
        job_of(_first(labels, (*names.job, *_JOB))),
    )


def job_of(written: str | None) -> str | None:
    """Return the id of the job that holds a GPU, as an exporter writes it; None where no job does.

    >>> job_of("45916256"), job_of("4.5916256e+07"), job_of("0"), job_of("")
    ('45916256', '45916256', None, None)
    """
    if not written or not written.strip("0"):
        return None
    if written.isdigit():
        return written
    try:
        number = float(written)
    except ValueError:
        return written
    return str(int(number)) if 0 < number < 1e18 and number.is_integer() else None


def host_of(address: str) -> str | None:
    """Return the host of HOST:PORT or of a URL; None where every host is called so.

    >>> host_of("n1.example.org:9400"), host_of("[fe80::1]:9400"), host_of("http://n1:9400/metrics")
    ('n1.example.org', 'fe80::1', 'n1')
    >>> host_of("localhost:9400") is None
    True
    """
    found = _ADDRESS_PARTS.fullmatch(address.strip())
    host = found[1].strip("[]") if found else address.strip()
    return None if not host or host.lower() in _HERE else host


def short_node(host: str) -> str:
    """Return a host name without its domain; an IP address stays whole.

    >>> short_node("nid001.chn.example.org"), short_node("10.0.0.7"), short_node("fe80::1")
    ('nid001', '10.0.0.7', 'fe80::1')
    """
    return host if is_address(host) else host.partition(".")[0]


def is_address(host: str) -> bool:
    """Return whether a host is an IP address in place of a name.

    >>> is_address("10.0.0.7"), is_address("fe80::1"), is_address("n1")
    (True, True, False)
    """
    return ":" in host or _IPV4.fullmatch(host) is not None


def _first(labels: Mapping[str, str], wanted: tuple[str, ...]) -> str | None:
    return next((labels[name] for name in wanted if labels.get(name)), None)


def _node(labels: Mapping[str, str], own: tuple[str, ...]) -> str | None:
    """The first name; an address only where no label gives a name."""
    given = [labels[name] for name in (*own, *_NODE, *_ADDRESS) if labels.get(name)]
    hosts = [host for host in map(host_of, given) if host]
    best = next((host for host in hosts if not is_address(host)), hosts[0] if hosts else None)
    return None if best is None else short_node(best)


def _index(labels: Mapping[str, str], wanted: tuple[str, ...], reason: str) -> int | Misplaced | None:
    """The first index; `device` counts only where it names a GPU, since disks and interfaces are called so, too."""
    for name in wanted:
        written = labels.get(name)
        if not written:
            continue
        found = _INDEX.fullmatch(written)
        if found:
            return int(found[1])
        if name != "device":
            return Misplaced(reason, f"{name}={written}"[:200])
    return None
