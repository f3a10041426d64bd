"""Whatever NVML answers, a read returns rows that fit together; once it answers well again,
everything is told.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pynvml
import pytest
from in_process_nvml import Clock, Code, InProcessNvml, index_of, source_of

from tachograph.catalog.counters import COUNTERS_BY_NAME

CODES = (1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 17, 18, 19, 20, 26, 27, 28, 999, 12345)
GPUS = 3
READS = 800


def _fill(_: InProcessNvml, asked: Any) -> None:
    for place in range(asked.numMetrics):
        asked.metrics[place].nvmlReturn = 0
        asked.metrics[place].value = 25.0


HEALTHY: dict[str, Any] = {
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50, memory=20),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=2**36, reserved=0, used=2**30, free=2**35),
    "nvmlDeviceGetTotalEnergyConsumption": 1_000_000,
    "nvmlDeviceGetTemperature": 50,
    "nvmlDeviceGetTemperatureThreshold": 90,
    "nvmlDeviceGetClockInfo": 1500,
    "nvmlDeviceGetCurrentClocksEventReasons": 0,
    "nvmlDeviceGetPcieReplayCounter": 0,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetFieldValues": [
        SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=60))
    ],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceRegisterEvents": None,
    "nvmlDeviceGetComputeRunningProcesses_v3": [],
    "nvmlGpmSampleAlloc": lambda _: pynvml.c_nvmlGpmSample_t(),
    "nvmlGpmSampleFree": None,
    "nvmlGpmSampleGet": None,
    "nvmlGpmMetricsGet": _fill,
}
MAY_FAIL = (*HEALTHY, "nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID",
            "nvmlDeviceGetName", "nvmlDeviceGetPciInfo", "nvmlDeviceGetPowerUsage", "nvmlEventSetCreate",
            "nvmlEventSetWait", "nvmlEventSetFree", "nvmlShutdown", "nvmlSystemGetDriverVersion")  # fmt: skip


def broken(chance: random.Random) -> dict[str, Any]:
    """Some calls fail with some code, of one GPU or of all; some values are absurd."""
    answers: dict[str, Any] = {}
    for name in chance.sample(MAY_FAIL, chance.randint(0, 4)):
        code = Code(chance.choice(CODES))
        if name.startswith("nvmlDeviceGet") and name in HEALTHY and chance.random() < 0.5:
            lost, good = chance.randrange(GPUS), HEALTHY[name]
            answers[name] = {gpu: code if gpu == lost else good for gpu in range(GPUS)}
        else:
            answers[name] = code
    if chance.random() < 0.2:
        answers["nvmlDeviceGetPowerUsage"] = lambda _, one: 2**32 - 1 if index_of(one) else 0
    return answers


@pytest.mark.parametrize("seed", range(3))
def test_no_answer_of_nvml_breaks_a_read(seed: int) -> None:
    chance, clock = random.Random(seed), Clock()
    nvml = InProcessNvml(GPUS, dict(HEALTHY))
    source = source_of(nvml, clock)
    source.start()
    everything = set(source.read().values)
    assert everything == {counter.name for counter in COUNTERS_BY_NAME.values() if counter.nvml}
    for _ in range(READS):
        if chance.random() < 0.3:
            nvml.answers = HEALTHY | broken(chance)
        nvml.gpus = chance.choice((GPUS, GPUS, GPUS, GPUS - 1))
        clock.now += chance.choice((0.0, 0.1, 1.0, 1.0, 5.0, 100.0))
        snapshot = source.read()
        assert len(set(snapshot.gpus)) == len(snapshot.gpus) == len(snapshot.measured)
        assert set(snapshot.devices) == set(snapshot.gpus)
        for name, column in snapshot.values.items():
            assert column.shape == (len(snapshot.gpus),)
            known = column[np.isfinite(column)]
            assert (
                (known >= COUNTERS_BY_NAME[name].low) & (known <= COUNTERS_BY_NAME[name].high)
            ).all()
            # What told nothing tells nothing.
            assert np.isnan(column[np.isnan(snapshot.measured)]).all()
        if np.isnan(snapshot.measured).any():
            assert snapshot.problems
        assert source.about.sentence
    nvml.answers, nvml.gpus = dict(HEALTHY), GPUS
    for _ in range(8):
        clock.now += 601
        source.read()
    clock.now += 1
    after = source.read()
    assert after.problems == ()
    assert [gpu.gpu for gpu in after.gpus] == list(range(GPUS))
    assert set(after.values) == everything
    assert np.isfinite(np.array(list(after.values.values()))).all()
    source.close()
    source.close()
