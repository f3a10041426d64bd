"""What GPUs there are and what is known of them: capacity, model, ridges."""

from __future__ import annotations

import polars as pl
from ClusterShell.NodeSet import NodeSet, NodeSetParseError

from tachograph.config import Nodes
from tachograph.devices import Device, match, ridge
from tachograph.errors import ConfigError
from tachograph.summarize.schema import PIPES

UNIT = ("node", "gpu", "mig")


def inventory(devices: pl.DataFrame, nodes: Nodes) -> pl.DataFrame:
    """Return one row per (node, gpu, mig): `model` and `hbm_mib` as known, configuration before telemetry.

    `nodes.gpus` adds GPUs that were never seen; `nodes.models` names the model of a node's GPUs.
    Errors: ConfigError for a broken hostlist.
    """
    known = devices.select(*UNIT, "model", "hbm_mib")
    told = [
        (node, gpu, None, None, None)
        for hosts, count in nodes.gpus.items()
        for node in _expand(hosts)
        for gpu in range(count)
    ]
    extra = pl.DataFrame(told, schema=known.schema, orient="row").join(known, on=["node", "gpu"], how="anti")
    together = pl.concat([known, extra])
    models = {node: model for hosts, model in nodes.models.items() for node in _expand(hosts)}
    if models:
        named = pl.DataFrame({"node": list(models), "told": list(models.values())})
        together = (
            together.join(named, on="node", how="left").with_columns(model=pl.coalesce("told", "model")).drop("told")
        )
    return together.sort(*UNIT)


def facts(units: pl.DataFrame) -> tuple[pl.DataFrame, dict[tuple[str, int], tuple[float, ...]]]:
    """Return (node, gpu, mig, gpu_model, hbm_mib) and the ridges (FLOP/B) of each GPU whose model is known.

    Capacity is the catalogue's where the model is known, else what telemetry measured.
    """
    kinds: dict[tuple[str | None, float | None], Device | None] = {}
    names: list[str | None] = []
    capacities: list[float | None] = []
    ridges: dict[tuple[str, int], tuple[float, ...]] = {}
    for node, gpu, mig, model, hbm in units.select(*UNIT, "model", "hbm_mib").iter_rows():
        if (model, hbm) not in kinds:
            kinds[model, hbm] = match(model, hbm)
        device = kinds[model, hbm]
        names.append(device.name if device else model)
        capacities.append(device.hbm_mib if device and mig is None else hbm)
        if device:
            ridges[node, gpu] = tuple(_ridge(device, pipe) for pipe in PIPES)
    table = units.select(*UNIT).with_columns(
        pl.Series("gpu_model", names, dtype=pl.String), pl.Series("hbm_mib", capacities, dtype=pl.Float64)
    )
    return table, ridges


def _ridge(device: Device, pipe: str) -> float:
    value = ridge(device, pipe)
    return float("nan") if value is None else value


def _expand(hosts: str) -> list[str]:
    try:
        return list(NodeSet(hosts))
    except NodeSetParseError as problem:
        raise ConfigError(
            f"{hosts!r} is no hostlist: {problem}", where="[nodes]", do="write it like nid[001-004]"
        ) from None
