"""Error counters of dcgm-exporter that are parts of a counter, or give it where nothing else does.

XIDs are counted by code in a window, without a code where there were none. Names differ between
DCGM up to 4.5 and later ones.
"""

from __future__ import annotations

from types import MappingProxyType

from tachograph.catalog.counters import DCGM_PREFIX
from tachograph.sources.exporter_mapping import ExporterMapping

_LINK_ERRORS = ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
_FALLBACKS = {
    "ECC_SBE_AGG_TOTAL": "ecc_sbe",
    "ECC_DBE_AGG_TOTAL": "ecc_dbe",
    "RETIRED_SBE": "remapped_rows_correctable",
    "PAGE_RETIRED_SBE_TOTAL": "remapped_rows_correctable",
    "RETIRED_DBE": "remapped_rows_uncorrectable",
    "PAGE_RETIRED_DBE_TOTAL": "remapped_rows_uncorrectable",
}

EXPORTER = ExporterMapping(
    "dcgm-exporter",
    "NVIDIA/DCGM, dcgmlib/dcgm_fields.h: fields 312, 313, 390, 391, 409, 419, 429, 439;"
    " NVIDIA/dcgm-exporter: DCGM_EXP_XID_ERRORS_COUNT",
    MappingProxyType(
        {
            **{
                f"{DCGM_PREFIX}DEV_{name}": (counter, "count", "fallback")
                for name, counter in _FALLBACKS.items()
            },
            **{
                f"{DCGM_PREFIX}DEV_NVLINK_{error}_ERROR{count}_TOTAL": (
                    "nvlink_errors",
                    "count",
                    "sum",
                )
                for error in _LINK_ERRORS
                for count in ("_COUNT", "")
            },
            "DCGM_EXP_XID_ERRORS_COUNT": ("xid", "code", "code xid", "fallback"),
        }
    ),
)
