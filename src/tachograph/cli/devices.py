"""`tachograph devices`: the catalogue of GPU models; `--json` has every field, its source and the ridge points."""

from __future__ import annotations

import dataclasses

from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_json
from tachograph.cli.output import Heading
from tachograph.devices import DEVICES, PIPES, Device, ridge, value_fields
from tachograph.units import text

_HEADINGS = (
    Heading("device"),
    Heading("architecture"),
    Heading("memory", right=True),
    Heading("bandwidth", right=True),
    *(Heading(f"{pipe.replace('_', ' ')} TFLOP/s", right=True) for pipe in PIPES),
    Heading("FP64 ridge FLOP/B", right=True),
    Heading("board", right=True),
)


def add_arguments(parser: Parser) -> None:
    """Declare `--json`."""
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print one row per model."""
    if arguments.json:
        output.print_json([_plain(device) for device in DEVICES])
    else:
        output.print_table(_HEADINGS, map(_row, DEVICES), no_color=arguments.no_color)
    return 0


def _plain(device: Device) -> dict[str, object]:
    names = (field.name for field in dataclasses.fields(device) if field.name != "elsewhere")  # `sources` tells it
    return {
        **{name: getattr(device, name) for name in names},
        "ridges_flop_per_byte": {pipe: ridge(device, pipe) for pipe in PIPES},
        "sources": {name: device.source(name) for name in value_fields()},
    }


def _row(device: Device) -> tuple[str | None, ...]:
    peaks = (device.peak_flop_per_s(pipe) for pipe in PIPES)
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
