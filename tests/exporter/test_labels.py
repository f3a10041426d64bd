"""Labels name node, GPU, slice, device and job in all their spellings."""

from __future__ import annotations

import pytest

from tachograph.sources.exporter_mapping import USUAL_LABELS, LabelNames
from tachograph.sources.metrics import (
    DCGM_INDEX,
    OWN_INDEX,
    SeriesLocation,
    UnusableLabels,
    locate,
)


def written(labels: str) -> dict[str, str]:
    return dict(label.split("=", 1) for label in labels.split())


def placed(labels: str, names: LabelNames = USUAL_LABELS) -> SeriesLocation:
    found = locate(written(labels), names=names)
    assert isinstance(found, SeriesLocation)
    return found


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ("Hostname=n1", "n1"),
        ("hostname=n1.example.org", "n1"),
        ("exported_Hostname=n1 Hostname=prometheus", "n1"),
        ("exported_hostname=n1 hostname=prometheus", "n1"),
        ("nodename=n1", "n1"),
        ("node=n1", "n1"),
        ("instance=n1.example.org:9400", "n1"),
        ("instance=10.0.0.7:9400 node=n1", "n1"),
        # An address only where there is nothing better.
        ("hostname=10.0.0.7 instance=n1:9400", "n1"),
        ("instance=10.0.0.7:9400", "10.0.0.7"),
        ("instance=[fe80::1]:9400", "fe80::1"),
        ("instance=https://n1.example.org:9400/metrics", "n1"),
        ("Hostname= instance=n1:9400", "n1"),
        ("instance=localhost:9400", None),
        ("instance=127.0.0.1:9400", None),
        ("", None),
    ],
)
def test_the_node(labels: str, node: str | None) -> None:
    assert placed(labels).node == node


@pytest.mark.parametrize(
    ("labels", "gpu", "mig"),
    [
        ("gpu=3", 3, None),
        ("gpu=0 exported_gpu=3", 3, None),
        ("minor_number=2", 2, None),
        ("ordinal=1 minor_number=2", 1, None),  # DCGM's and NVML's index is the ordinal
        ("device=nvidia3", 3, None),
        ("device=nvidia5 gpu=3", 3, None),
        ("gpu=0 GPU_I_ID=7 GPU_I_PROFILE=1g.10gb", 0, 7),
        ("gpu=0 GPU_I_ID=", 0, None),
        ("device=eth0", None, None),
    ],
)
def test_the_gpu_and_its_slice(labels: str, gpu: int | None, mig: int | None) -> None:
    found = placed(f"Hostname=n1 {labels}")
    assert (found.gpu, found.mig) == (gpu, mig)


@pytest.mark.parametrize("model", ["modelName", "model_name", "name"])
@pytest.mark.parametrize("uuid", ["UUID", "uuid", "gpu_uuid"])
def test_the_device(model: str, uuid: str) -> None:
    found = placed(f"gpu=0 {uuid}=GPU-a {model}=H100 pci_bus_id=00000000:53:00.0")
    assert (found.uuid, found.model, found.pci) == ("GPU-a", "H100", "00000000:53:00.0")


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ("hpc_job=123", "123"),
        ("hpc_job=0", None),
        ("hpc_job=", None),
        ("", None),
        ("jobid=77", "77"),
        ("exported_hpc_job=5 hpc_job=9", "5"),
        ("slurm_job=8 slurm_step=0", "8.0"),
        ("exported_job_id=8 job_id=9 step_id=batch", "8.batch"),
        ("JobID=8_4 step=", "8_4"),
        ("slurmjobid=N/A step=3", None),
        ("step=3", None),
        ("hpc_job=-1", None),
        ("job=nvidia-dcgm-exporter", None),  # what Prometheus calls what it scrapes
    ],
)
def test_the_job(labels: str, job: str | None) -> None:
    assert placed(f"gpu=0 {labels}").job == job


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ("gpu=all", "bad_gpu"),
        ("gpu=-1", "bad_gpu"),
        ("gpu=99999", "bad_gpu"),
        ("gpu=0 GPU_I_ID=x", "bad_mig"),
        ("gpu=0 nvlink=3", "not_a_gpu"),
        ("gpu_uuid=GPU-a nvlink=3", "not_a_gpu"),
    ],
)
def test_labels_that_name_no_place_say_why(labels: str, reason: str) -> None:
    found = locate(written(labels))
    assert isinstance(found, UnusableLabels)
    assert found.reason == reason


def test_labels_of_a_site_come_first() -> None:
    names = LabelNames(
        node=("xname",),
        gpu=("card",),
        mig=("slice",),
        uuid=("id",),
        job=("slurm_job",),
        model=("type",),
    )
    labels = "xname=x1000c0s0 card=2 slice=4 id=GPU-b slurm_job=8 type=A100"
    shadowed = "Hostname=n1 gpu=0 UUID=GPU-a hpc_job=1"
    assert placed(f"{shadowed} {labels}", names) == SeriesLocation(
        "x1000c0s0", 2, 4, "GPU-b", None, "A100", "8", OWN_INDEX
    )
    assert placed(shadowed, names) == SeriesLocation(
        "n1", 0, None, "GPU-a", None, None, "1", DCGM_INDEX
    )
