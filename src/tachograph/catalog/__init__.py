"""Declarations for all rooms: counters, devices, units, errors, configuration, table schemas,
finding codes.
"""
