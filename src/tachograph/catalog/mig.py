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


_WRITTEN = re.compile(r"(?:^|[^a-zA-Z0-9.])((\d+)g\.\d+gb)", re.IGNORECASE)
_SMS = {profile.name: profile.sms for profiles in MIG_PROFILES.values() for profile in profiles}


def mig_share(
    profile: str | None, model: str | None = None, hbm_mib: float | None = None
) -> float | None:
    """Return the share of a GPU that a slice is; None if not known.

    That of its SMs by the profile, which the type of a gres may contain; without one, the memory of
    the slice over that of the model.

    >>> [mig_share(name) == 1 / 7 for name in ("1g.10gb", "1g.10gb+me", "nvidia_a100_1g.5gb")]
    [True, True, True]
    >>> mig_share("a30_2g.12gb"), mig_share("7g.80gb"), mig_share(None, "H100 SXM 80GB", 20480.0)
    (0.5, 1.0, 0.25)
    >>> mig_share("a100"), mig_share(None, "H100 SXM 80GB"), mig_share(None, None, 20480.0)
    (None, None, None)
    """
    written = _WRITTEN.search(profile or "")
    if written:
        share = _SMS.get(written[1].lower(), Fraction(int(written[2]), 7))
        return min(1.0, float(share))
    device = match_device(model)
    if device is None or hbm_mib is None:
        return None
    return min(1.0, hbm_mib / device.hbm_mib)
