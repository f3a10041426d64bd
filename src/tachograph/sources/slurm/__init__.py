"""Slurm's records of jobs: accounting as text and JSON, NERSC's exports, live jobs.

`fields`, `times`, `nodes`, `request`: single values. `records`: one job, whatever it was read from.
`text`, `database`, `nersc`: one format each. `live`: GPU indices of running jobs. `detect`: which
format it is.
"""
