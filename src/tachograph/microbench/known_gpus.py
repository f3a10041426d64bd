"""GPUs by name, for plans that are made without one at hand."""

from __future__ import annotations

from dataclasses import replace

from tachograph import devices
from tachograph.errors import NotFoundError
from tachograph.interference.demand import H100_NVL, Gpu
from tachograph.interference.profile.capacities import gpu_of
from tachograph.microbench.experiments import Experiment, experiments
from tachograph.nsight.launch import Chip

_CAPABILITIES = {"Volta": "7.0", "Turing": "7.5", "Ada": "8.9", "Hopper": "9.0", "Blackwell": "10.0"}
_LARGE_AMPERE = ("A100", "A30")  # compute capability 8.0, all others of Ampere 8.6
_PUBLISHED = "H100 NVL 94GB"


def gpu_called(name: str) -> Gpu:
    """Return the GPU of the catalogue that `name` means, with what its compute capability has.

    >>> gpu_called("H100 NVL").sms, gpu_called("a100 sxm 40gb").l1_bytes
    (132, 196608.0)

    Errors: NotFoundError for one that is not in it, or for several.
    """
    device = devices.match(name) or next(
        (one for one in devices.DEVICES if one.name.casefold() == name.casefold()), None
    )
    if device is None or device.vendor != "NVIDIA":
        raise NotFoundError(
            f"no NVIDIA GPU in the catalogue is called {name!r}, or several are",
            do="name one of `tachograph devices`, such as 'H100 NVL'",
        )
    if device.name == _PUBLISHED:
        return H100_NVL
    ampere = "8.0" if device.name.startswith(_LARGE_AMPERE) else "8.6"
    return replace(gpu_of(Chip(f"NVIDIA {device.name}", _CAPABILITIES.get(device.architecture, ampere))),
                   name=f"NVIDIA {device.name}", sms=device.sms, l2_bytes=device.l2_bytes,
                   dram_bytes_per_s=device.hbm_bytes_per_s, hbm_bytes=device.hbm_mib * (1 << 20))  # fmt: skip


def every_experiment() -> tuple[Experiment, ...]:
    """Return the experiments of all GPUs of the catalogue: how arrays of L1 are called depends on its size."""
    names = [device.name for device in devices.DEVICES if device.vendor == "NVIDIA"]
    return tuple(one for name in names for one in experiments(gpu_called(name)))
