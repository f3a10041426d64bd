"""Unattended programs: collect into a lake, record a command's GPUs, fill a simulated lake."""
