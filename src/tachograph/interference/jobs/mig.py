"""The slices into which a GPU can be cut (MIG), and the smallest ones for kernels or jobs that shall share it.

Source: NVIDIA Multi-Instance GPU User Guide, supported profiles: names, fractions of memory and of SMs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from types import MappingProxyType

from tachograph.devices import match
from tachograph.units import MI


@dataclass(frozen=True, slots=True)
class Profile:
    """A slice: share of the SMs, and of memory, of its bandwidth and of L2 alike."""

    name: str
    sms: Fraction
    memory: Fraction


def _of_seven(one: str, two: str, half: str) -> tuple[Profile, ...]:
    """Slices of a GPU of 7 parts of SMs and 8 of memory, whose names end with these amounts of memory."""
    return (
        Profile(f"1g.{one}", Fraction(1, 7), Fraction(1, 8)),
        Profile(f"1g.{two}", Fraction(1, 7), Fraction(2, 8)),
        Profile(f"2g.{two}", Fraction(2, 7), Fraction(2, 8)),
        Profile(f"3g.{half}", Fraction(3, 7), Fraction(4, 8)),
        Profile(f"4g.{half}", Fraction(4, 7), Fraction(4, 8)),
    )


_GH200_96, _H200 = _of_seven("12gb", "24gb", "48gb"), _of_seven("18gb", "35gb", "71gb")
# {model in the catalogue of devices: its slices, smallest first}; the slice that is all of it is none here
PROFILES: Mapping[str, tuple[Profile, ...]] = MappingProxyType(
    {
        "A30": (
            Profile("1g.6gb", Fraction(1, 4), Fraction(1, 4)),
            Profile("2g.12gb", Fraction(2, 4), Fraction(2, 4)),
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


def profiles_of(model: str, hbm_bytes: float | None = None) -> tuple[Profile, ...]:
    """Return the slices of a GPU as its driver or the catalogue names it, smallest first; none where it has no MIG.

    >>> [profile.name for profile in profiles_of("A100 SXM 80GB")][-1], profiles_of("L4")
    ('4g.40gb', ())
    """
    device = match(model, None if hbm_bytes is None else hbm_bytes / MI)
    return PROFILES.get(model) or (() if device is None else PROFILES.get(device.name, ()))


def smallest_together(choices: Sequence[Sequence[Profile]]) -> tuple[Profile, ...] | None:
    """Return one profile for each member, of those it may have, that fit on one GPU and are least of it; None: none do.

    >>> a100 = profiles_of("A100 SXM 80GB")
    >>> [profile.name for profile in smallest_together([a100[2:], a100[3:]])]
    ['2g.20gb', '3g.40gb']
    >>> smallest_together([a100[4:], a100[4:]])
    """
    fitting = [
        chosen
        for chosen in product(*choices)
        if sum(profile.sms for profile in chosen) <= 1 and sum(profile.memory for profile in chosen) <= 1
    ]
    return min(
        fitting,
        key=lambda chosen: (sum(profile.sms for profile in chosen), sum(profile.memory for profile in chosen)),
        default=None,
    )
