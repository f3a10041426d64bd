"""Live telemetry of GPUs: polled sources, and the classes and health of the GPUs they report.

    source.read() -> Snapshot -> Monitor.step -> FleetView -> a screen, a table, a recording

`snapshot` defines polls and the protocol of sources, `view` the result; `discovery` chooses a
source. Classes and health are from the functions that evaluate stored data.
"""
