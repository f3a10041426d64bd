"""MIG profiles: possible slices of GPU models. Source: NVIDIA MIG User Guide."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from tachograph.catalog.devices import match_device
from tachograph.catalog.units import MI


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A slice: share of the SMs, and of memory, of its bandwidth and of L2 alike."""

    name: str
    sms: Fraction
    memory: Fraction


def _of_seven(one: str, two: str, half: str) -> tuple[MigProfile, ...]:
    """Slices of a GPU with 7 SM and 8 memory parts; memory amounts end the names."""
    return (
        MigProfile(f"1g.{one}", Fraction(1, 7), Fraction(1, 8)),
        MigProfile(f"1g.{two}", Fraction(1, 7), Fraction(2, 8)),
        MigProfile(f"2g.{two}", Fraction(2, 7), Fraction(2, 8)),
        MigProfile(f"3g.{half}", Fraction(3, 7), Fraction(4, 8)),
        MigProfile(f"4g.{half}", Fraction(4, 7), Fraction(4, 8)),
    )


_GH200_96, _H200 = _of_seven("12gb", "24gb", "48gb"), _of_seven("18gb", "35gb", "71gb")
# {model in the catalogue of devices: its slices, smallest first}; the slice that is all of it is
# none here
MIG_PROFILES: Mapping[str, tuple[MigProfile, ...]] = MappingProxyType(
    {
        "A30": (
            MigProfile("1g.6gb", Fraction(1, 4), Fraction(1, 4)),
            MigProfile("2g.12gb", Fraction(2, 4), Fraction(2, 4)),
        ),
        "A100 SXM 40GB": _of_seven("5gb", "10gb", "20gb"),
        "A100 PCIe 40GB": _of_seven("5gb", "10gb", "20gb"),
        "A100 SXM 80GB": _of_seven("10gb", "20gb", "40gb"),
        "A100 PCIe 80GB": _of_seven("10gb", "20gb", "40gb"),
        "H100 SXM 80GB": _of_seven("10gb", "20gb", "40gb"),
        "H100 PCIe 80GB": _of_seven("10gb", "20gb", "40gb"),
        "H100 NVL 94GB": _of_seven("12gb", "24gb", "47gb"),
        "H200 SXM 141GB": _H200,
        "H200 NVL 141GB": _H200,
        "GH200 96GB": _GH200_96,
        "GH200 144GB": _of_seven("18gb", "36gb", "72gb"),
        "B200": _of_seven("23gb", "45gb", "90gb"),
    }
)


def profiles_of(model: str, hbm_bytes: float | None = None) -> tuple[MigProfile, ...]:
    """Return the MIG profiles of a GPU model, smallest first; none if it has no MIG.

    >>> [profile.name for profile in profiles_of("A100 SXM 80GB")][-1], profiles_of("L4")
    ('4g.40gb', ())
    """
    device = match_device(model, None if hbm_bytes is None else hbm_bytes / MI)
    return MIG_PROFILES.get(model) or (() if device is None else MIG_PROFILES.get(device.name, ()))


_WRITTEN = re.compile(r"(?:^|[^a-zA-Z0-9.])(?:(\d+)c\.)?(\d+)g\.(\d+)gb", re.IGNORECASE)
# Most models have seven slices of SMs. What other RTX boards have is not known here.
_FOUR_SLICES = re.compile(r"\ba30\b|\brtx pro 6000\b")
_SEVEN_SLICES = re.compile(r"\b(?:a100|g?[hb][1-3]00)\b")
_GB_OF_FOUR = (6, 24)  # memory of each slice: A30, RTX PRO 6000


def mig_share(
    profile: str | None, model: str | None = None, hbm_mib: float | None = None
) -> float | None:
    """Return the share of a GPU that a slice is; None if not known.

    That of its SMs by the profile, which the type of a gres may contain: slices over those of the
    whole GPU. A compute instance (`1c.3g.20gb`) has only a part of its slices. Without a profile,
    the memory of the slice over that of the model.

    >>> [mig_share(name) == 1 / 7 for name in ("1g.10gb+me", "nvidia_a100_1g.5gb", "1c.3g.20gb")]
    [True, True, True]
    >>> mig_share("2g.12gb"), mig_share("a30_4g.24gb"), mig_share("7g.80gb"), mig_share("4g.96gb")
    (0.5, 1.0, 1.0, 1.0)
    >>> mig_share("1g.24gb"), mig_share("1g.24gb", "NVIDIA RTX PRO 6000 Blackwell Server Edition")
    (None, 0.25)
    >>> mig_share("a100"), mig_share(None, "H100 SXM 80GB", 20480.0), mig_share(None, None, 20480.0)
    (None, 0.25, None)
    """
    written = _WRITTEN.search(profile or "")
    if written and profile:
        instance, memory_gb = int(written[2]), int(written[3])
        name = f"{model or ''} {profile[: written.start()]}".lower()
        whole = _slices(re.sub("[-_]", " ", name), instance, memory_gb)
        return None if whole is None else min(1.0, int(written[1] or instance) / whole)
    device = match_device(model)
    if device is None or hbm_mib is None:
        return None
    return min(1.0, hbm_mib / device.hbm_mib)


def _slices(model: str, instance: int, memory_gb: int) -> int | None:
    """Slices of the whole GPU: by its name, else by a profile that only one kind of GPU has."""
    if _FOUR_SLICES.search(model):
        return 4
    if _SEVEN_SLICES.search(model):
        return 7
    if "rtx" in model or (instance, memory_gb) == (1, 24):
        return None
    return 4 if memory_gb / max(instance, 1) in _GB_OF_FOUR else 7
