"""Where snapshots come from: a module for each source, and beside it what it reads with.

    exporter      asking, exporter_page                                   one dcgm-exporter or a thousand
    prometheus    prometheus_answer                                       instant queries
    dmon          dmon_process, dmon_text                                 `dcgmi dmon`, a stream
    nvml          nvml_session, nvml_boards, nvml_calls, nvml_xid, gpm, processes
    recording     recorded_rows                                           a recording or a lake, at any speed
    simulated     -                                                       simulated GPUs

`series` and `gathered` put rows together for those that read text.
"""
