"""GPUs of the site: what is known of each, their capacity and their ridge points."""

from __future__ import annotations

import polars as pl
from ClusterShell.NodeSet import NodeSet, NodeSetParseError

from tachograph.catalog.config import NodeOptions
from tachograph.catalog.devices import Device, match_device, ridge
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.mig import mig_share
from tachograph.catalog.tables import GPU_KEY, PIPES
from tachograph.lake.places import host_name


def inventory(devices: pl.DataFrame, nodes: NodeOptions) -> pl.DataFrame:
    """Return what is known of each (node, gpu, mig), configuration first.

    `nodes.gpus` adds GPUs that were never seen; `nodes.models` names the model of a node's GPUs.
    Errors: ConfigError for a broken hostlist.
    """
    recorded = devices.select(*GPU_KEY, "model", "mig_profile", "hbm_mib", "usable_mib")
    configured: list[tuple[object, ...]] = []
    for hosts, count in nodes.gpus.items():
        for node in _expand(hosts):
            configured += [(node, gpu, None, None, None, None, None) for gpu in range(count)]
    places_of_hosts = recorded.select(node=host_name("node"), place="node").unique()
    every = pl.DataFrame(configured, schema=recorded.schema, orient="row").join(
        places_of_hosts, on="node", how="left"
    )
    every = every.with_columns(node=pl.coalesce("place", "node")).drop("place")
    together = pl.concat([recorded, every.join(recorded, on=["node", "gpu"], how="anti")])
    models = {node: model for hosts, model in nodes.models.items() for node in _expand(hosts)}
    if models:
        named = pl.DataFrame({"host": list(models), "named": list(models.values())})
        together = (
            together.with_columns(host=host_name("node"))
            .join(named, on="host", how="left")
            .with_columns(model=pl.coalesce("named", "model"))
            .drop("named", "host")
        )
    return together.sort(*GPU_KEY)


def gpu_facts(units: pl.DataFrame) -> tuple[pl.DataFrame, dict[tuple[str, int], tuple[float, ...]]]:
    """Return facts per (node, gpu, mig), and the ridge points (FLOP/B) of known models.

    `gpu_model`, `hbm_mib`, `mig_share`: share of the GPU that a slice is, null where not known.

    Capacity is the driver's total if measured, else the catalogue's for whole GPUs of a known
    model, else memory used plus free, which omits reserved memory.
    """
    kinds: dict[tuple[str | None, float | None], Device | None] = {}
    names: list[str | None] = []
    capacities: list[float | None] = []
    shares: list[float | None] = []
    ridges: dict[tuple[str, int], tuple[float, ...]] = {}
    for node, gpu, mig, model, profile, total, usable in units.select(
        *GPU_KEY, "model", "mig_profile", "hbm_mib", "usable_mib"
    ).iter_rows():
        measured = usable if total is None else total
        whole = measured if mig is None else None  # a slice's memory is not its model's
        if (model, whole) not in kinds:
            kinds[model, whole] = match_device(model, whole)
        device = kinds[model, whole]
        names.append(device.name if device else model)
        capacities.append(device.hbm_mib if device and total is None and mig is None else measured)
        shares.append(1.0 if mig is None else mig_share(profile, model, measured))
        if device:
            ridges[node, gpu] = tuple(_ridge(device, pipe) for pipe in PIPES)
    table = units.select(*GPU_KEY).with_columns(
        pl.Series("gpu_model", names, dtype=pl.String),
        pl.Series("hbm_mib", capacities, dtype=pl.Float64),
        pl.Series("mig_share", shares, dtype=pl.Float64),
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
            f"invalid hostlist {hosts!r}: {problem}",
            where="[nodes]",
            do="write it like nid[001-004]",
        ) from None
