"""Accounting of other schedulers than Slurm: PBS, Flux, LSF, and what their readers share."""
