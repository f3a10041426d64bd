"""Characteristics of job classes: one table with thresholds, and a site's overrides.

Source of the classes, of the host characteristics and of `busy` for hosts: Matveev, Setyaev,
Voevodin, "New approaches for automatic analysis of HPC application performance using the TASC
software suite" (Num. Meth. Prog. 26(4), 2025). It leaves theta to each site. Those of GPUs are
ours: idle and hung GPUs differ from working ones by a factor, so the thresholds lie far from both.
Idle: power 10 to 20 % of the board's, SM and tensor 0, DRAM 1e-8, PCIe under 1 MB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.catalog.config import ClassOptions
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.units import refuse_unclear_fraction


@dataclass(frozen=True, slots=True)
class Characteristic:
    """One quantity of a job per minute.

    `column`: of the timelines, or of job_node_minutes. `theta`: a window is flat when (Q3 - Q1)/2
    is below it. `level`: a GPU is idle below it; None: flatness alone counts (hosts, as published).
    `busy`: the busiest node or GPU of a job with idle ones is above it; None: not used. `needs`:
    counters that it is made of.
    """

    name: str
    unit: str
    label: str
    column: str
    needs: tuple[str, ...]
    theta: float
    level: float | None
    busy: float | None
    reason: str


def _gpu(name: str, unit: str, label: str, column: str, needs: tuple[str, ...], limits: tuple[float, float, float],
         reason: str) -> Characteristic:  # fmt: skip
    return Characteristic(name, unit, label, column, needs, *limits, reason)


def _host(name: str, unit: str, label: str, counter: str, theta: float, busy: float | None,
          reason: str) -> Characteristic:  # fmt: skip
    return Characteristic(name, unit, label, name, (counter,), theta, None, busy, reason)


_PCIE = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
_NVLINK = ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")

GPU: Mapping[str, Characteristic] = {c.name: c for c in (
    _gpu("gpu_util", "fraction", "utilisation", "mean_gpu_util", ("gpu_util",), (0.02, 0.05, 0.5),
         ("1 where anything runs, a hung collective too: no sign of work by itself; busy as "
         "published")),
    _gpu("power", "fraction", "power", "mean_power_w", ("power_w",), (0.03, 0.3, 0.4),
         ("of the board's power; idle 0.10 to 0.20, a hung collective 0.10 to 0.25, work from "
         "0.3 on")),
    _gpu("sm_active", "fraction", "SM activity", "mean_sm_active", ("sm_active",), (0.02, 0.05, 0.2),
         "0 idle; a hung collective keeps few blocks spinning"),
    _gpu("tensor_active", "fraction", "tensor activity", "mean_tensor_active", ("tensor_active",), (0.005, 0.01, 0.1),
         "0 idle; from 0.02 on in use"),
    _gpu("dram_active", "fraction", "memory traffic", "mean_dram_active", ("dram_active",), (0.005, 0.01, 0.1),
         "1e-8 idle"),
    _gpu("pcie", "B/s", "PCIe", "mean_pcie", _PCIE, (5e6, 1e7, 1e8),
         "monitoring and drivers move less than 1 MB/s"),
    _gpu("nvlink", "B/s", "NVLink", "mean_nvlink", _NVLINK, (5e6, 1e7, 1e9), "0 idle"),
)}  # fmt: skip

_RATE = "an idle node's background varies less, work more"
HOST: Mapping[str, Characteristic] = {c.name: c for c in (
    _host("cpu_user", "fraction", "CPU time of users", "cpu_user_s", 0.005, 0.05, "idle nodes spend under 1 %"),
    _host("cpu_nice", "fraction", "CPU time at low priority", "cpu_nice_s", 0.005, None, "as cpu_user"),
    _host("load_average", "count", "load average", "load_average", 0.1, None,
          "a hung job keeps its load to a tenth of a process"),
    _host("l1_misses_per_s", "1/s", "L1 misses", "l1_misses", 2e5, 1e6, _RATE),
    _host("llc_misses_per_s", "1/s", "last-level cache misses", "llc_misses", 2e4, 1e5, _RATE),
    _host("network_rx_bytes_per_s", "B/s", "network bytes received", "network_rx_bytes", 2e4, None, _RATE),
    _host("network_tx_bytes_per_s", "B/s", "network bytes sent", "network_tx_bytes", 2e4, None, _RATE),
    _host("network_rx_packets_per_s", "1/s", "network packets received", "network_rx_packets", 50, None, _RATE),
    _host("network_tx_packets_per_s", "1/s", "network packets sent", "network_tx_packets", 50, None, _RATE),
    _host("fs_read_bytes_per_s", "B/s", "file system bytes read", "fs_read_bytes", 2e4, None, _RATE),
    _host("fs_write_bytes_per_s", "B/s", "file system bytes written", "fs_write_bytes", 2e4, None, _RATE),
    _host("fs_read_operations_per_s", "1/s", "file system reads", "fs_read_operations", 1, None, _RATE),
    _host("fs_write_operations_per_s", "1/s", "file system writes", "fs_write_operations", 1, None, _RATE),
    Characteristic("gpu_util", "fraction", "GPU utilisation", "mean_gpu_util", ("gpu_util",), 0.02, None, 0.5,
                   "published among the host characteristics of idle_nodes and stable"),
)}  # fmt: skip

# A minute in which the busiest GPU shows one of these is no idle minute, for any means over the
# GPUs.
WORK = 0.02  # arithmetic or memory traffic of the busiest GPU
SM_BUSY = 0.4  # a hung NCCL collective keeps at most 32 of 100 and more SMs spinning
# Utilisation from AWAKE on, or SM activity from SM_AWAKE on, is a light load; from a utilisation of
# SPINNING on it may be a hung collective that waits. Some such minutes do not end an idle interval:
# health checks wake a GPU for seconds.
AWAKE, SM_AWAKE, SPINNING = 0.05, 0.01, 0.9
FIRST_WORK = 0.01  # activity from which on a sentence reports that a GPU worked


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """Thresholds of one form (GPU or host) as they are used: those of the table, or the site's."""

    known: Mapping[str, Characteristic]
    theta: Mapping[str, float]
    level: Mapping[str, float | None]
    busy: Mapping[str, float | None]
    voting: Mapping[str, tuple[str, ...]]  # {class code: characteristics} where the site sets it
    window: int
    hang: float

    def names(self, code: str, built_in: tuple[str, ...]) -> tuple[str, ...]:
        """Return the characteristics that vote on a class."""
        return self.voting.get(code, built_in)


def class_limits(settings: ClassOptions, *, host: bool = False) -> ClassLimits:
    """Return the thresholds of the GPU form, or of the host form.

    Errors: ConfigError for a characteristic that does not exist, for a fraction above 1, and for a
    window or length that cannot be.
    """
    for key in ("theta", "level", "busy"):
        values: Mapping[str, float] = getattr(settings, key)
        _check_names(f"classes.{key}", values, {*GPU, *HOST})
        _check_fractions(f"classes.{key}", values)
    known = HOST if host else GPU
    for code, names in settings.characteristics.items():
        _check_names(
            f"classes.characteristics.{code}", names, set(HOST if code.endswith("_host") else GPU)
        )
        if not names:
            raise ConfigError(
                f"classes.characteristics.{code} names none", do="name some, or remove the key"
            )
    if settings.window_minutes < 4 or settings.hang_minutes < settings.window_minutes:
        raise ConfigError(
            (
                f"classes: window_minutes {settings.window_minutes}, hang_minutes "
                f"{settings.hang_minutes:g}"
            ),
            do="use a window of 4 minutes or more, and a hang no shorter than it",
        )
    return ClassLimits(
        known,
        {name: settings.theta.get(name, c.theta) for name, c in known.items()},
        {name: _threshold(settings.level, name, c.level) for name, c in known.items()},
        {name: _threshold(settings.busy, name, c.busy) for name, c in known.items()},
        dict(settings.characteristics),
        settings.window_minutes,
        settings.hang_minutes,
    )


def _threshold(site: Mapping[str, float], name: str, built_in: float | None) -> float | None:
    """Return the site's threshold, or the one of the table; None where the table has none."""
    return None if built_in is None else site.get(name, built_in)


def _check_fractions(where: str, values: Mapping[str, float]) -> None:
    units = {name: characteristic.unit for name, characteristic in {**GPU, **HOST}.items()}
    for name, value in values.items():
        if units[name] == "fraction":
            refuse_unclear_fraction(
                value, name=f"{where}.{name}", error=ConfigError, percent_sign=False
            )


def _check_names(where: str, names: Mapping[str, float] | tuple[str, ...], known: set[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"{where}: no characteristic {', '.join(unknown)}",
            do=f"use some of: {', '.join(sorted(known))}",
        )
