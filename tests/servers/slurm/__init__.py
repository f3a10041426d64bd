"""A real Slurm on one host: munge, MariaDB, slurmdbd, slurmctld, one slurmd per emulated node,
slurmrestd on request.

Everything lies under one folder and listens on free ports of the loopback interface; nothing under
/etc is touched. Jobs really run, on this host; their GPUs are links to /dev/null, which Slurm
counts, gives away and takes back.
"""

from servers.slurm.cluster import SlurmCluster
from servers.slurm.start import slurm_cluster

__all__ = ["SlurmCluster", "slurm_cluster"]
