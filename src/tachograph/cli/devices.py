"""`tachograph lake devices`: catalogue of GPU models; `--json` adds sources and ridge points."""

from __future__ import annotations

import dataclasses

from tachograph.catalog import config
from tachograph.catalog.devices import DEVICE_PIPES, DEVICES_BY_NAME, Device, ridge, value_fields
from tachograph.catalog.units import text
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_json

_HEADINGS = (
    "device",
    "architecture",
    ">memory",
    ">bandwidth",
    *(f">{pipe.replace('_', ' ').replace('fp', 'FP')} TFLOP/s" for pipe in DEVICE_PIPES),
    ">FP64 ridge FLOP/B",
    ">board",
)


def add_arguments(parser: Parser) -> None:
    """Declare `--json`."""
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print one row per model."""
    config.load(arguments.config)  # adds the devices of the site
    devices = DEVICES_BY_NAME.values()
    if arguments.json:
        output.print_json([_plain(device) for device in devices])
    else:
        output.print_table(_HEADINGS, map(_row, devices), no_color=arguments.no_color)
    return 0


def _plain(device: Device) -> dict[str, object]:
    # In `sources`.
    names = (field.name for field in dataclasses.fields(device) if field.name != "elsewhere")
    return {
        **{name: getattr(device, name) for name in names},
        "ridges_flop_per_byte": {pipe: ridge(device, pipe) for pipe in DEVICE_PIPES},
        "sources": {name: device.source(name) for name in value_fields()},
    }


def _row(device: Device) -> tuple[str | None, ...]:
    peaks = (device.peak_flop_per_s(pipe) for pipe in DEVICE_PIPES)
    intensity = ridge(device, "fp64")
    return (
        device.name,
        f"{device.vendor} {device.architecture}",
        text(device.hbm_mib, "MiB"),
        text(device.hbm_bytes_per_s, "B/s"),
        *(None if peak is None else f"{peak / 1e12:.4g}" for peak in peaks),
        None if intensity is None else text(intensity, "ratio"),
        None if device.board_power_w is None else text(device.board_power_w, "W"),
    )
