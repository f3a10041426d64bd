"""Annex watch: GPUs now, in a terminal; recordings of a command; PM sampling."""
