"""The calls of CUDA's driver that list GPUs, as cuda-bindings 13 returns them: a status, and
values behind it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805


@dataclass
class CUuuid:
    bytes: bytes


def _node() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        Path(os.environ["TACHOGRAPH_CUPTI_SCENARIO"]).read_text(encoding="utf-8")
    )
    return found


def cuInit(Flags: int) -> tuple[CUresult]:  # noqa: N802, N803 names of the library
    return (CUresult[_node().get("init", "CUDA_SUCCESS")],)


def cuDeviceGetCount() -> tuple[CUresult, int]:  # noqa: N802
    return CUresult.CUDA_SUCCESS, len(_node()["gpus"])


def cuDeviceGet(ordinal: int) -> tuple[CUresult, int]:  # noqa: N802
    return CUresult.CUDA_SUCCESS, ordinal


def cuDeviceGetUuid(dev: int) -> tuple[CUresult, CUuuid]:  # noqa: N802
    return CUresult.CUDA_SUCCESS, CUuuid(bytes.fromhex(_node()["gpus"][dev]["uuid"]))


def cuDeviceGetPCIBusId(length: int, dev: int) -> tuple[CUresult, bytes]:  # noqa: N802
    return CUresult.CUDA_SUCCESS, _node()["gpus"][dev]["pci"].encode().ljust(length, b"\0")


def cuDeviceGetName(length: int, dev: int) -> tuple[CUresult, bytes]:  # noqa: N802
    return CUresult.CUDA_SUCCESS, _node()["gpus"][dev]["model"].encode().ljust(length, b"\0")
