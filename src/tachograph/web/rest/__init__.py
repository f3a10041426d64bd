"""Endpoints of the REST API, one file each: its parameters, and its answer."""
