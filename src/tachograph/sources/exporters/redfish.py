"""Exporters of Redfish, which a management controller serves: the power of a whole machine.

Of `PowerControl` the first entry is the machine, others are parts of it. `node` or `instance` must
be the host, not its controller.
"""

from __future__ import annotations

from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping

_SUPPLY = "of one power supply, which nodes of a chassis may share"
_CHASSIS = "of a chassis, which may hold several nodes"

EXPORTER = ExporterMapping(
    "exporters of Redfish",
    "mrlhansen/idrac_exporter, README.md; jenningsloy318/redfish_exporter, chassis_collector.go",
    MappingProxyType(
        {'idrac_power_control_consumed_watts{id="0"}': ("node_power_w", "W", "fallback")}
    ),
    unread=MappingProxyType(
        {
            "idrac_power_supply_input_watts": _SUPPLY,
            "idrac_power_supply_output_watts": _SUPPLY,
            "redfish_chassis_power_powersupply_power_input_watts": _SUPPLY,
            "redfish_chassis_power_powersupply_power_output_watts": _SUPPLY,
            "redfish_chassis_power_powersupply_last_power_output_watts": _SUPPLY,
            "redfish_chassis_power_average_consumed_watts": _CHASSIS,
            "ceems_redfish_current_watts": _CHASSIS,
            "ceems_redfish_power_current_watts": _CHASSIS,
            "ipmi_power_watts": _SUPPLY,
            "node_rapl_psys_joules_total": "of a platform, in which that of the CPUs is counted, too",
        }
    ),
)
