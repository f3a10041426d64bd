"""Shared declarations: counters, devices, units, errors, configuration, schemas, codes."""
