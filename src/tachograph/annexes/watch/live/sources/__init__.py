"""Sources of snapshots: a module for each source.

    exporter      one dcgm-exporter or a thousand
    prometheus    instant queries
    dmon          `dcgmi dmon`, a stream
    nvml          this node; with nvml_calls and nvml_devices
    pm_sampling   this node by CUPTI PM sampling, beside nvml
    recording     the last instant of a recording or a lake
    simulated     simulated GPUs

`series` builds the rows for sources that read text.
"""
