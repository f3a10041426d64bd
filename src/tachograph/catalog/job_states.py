"""States of jobs in the words of workload managers."""

from __future__ import annotations

BASE_STATES = (
    "PENDING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
)
_STATE_FLAGS = (  # of a job in one of the base states; text has one of them in its place
    "REQUEUED",
    "RESIZING",
    "REVOKED",
    "CONFIGURING",
    "COMPLETING",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
    "SPECIAL_EXIT",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESV_DEL_HOLD",
    "LAUNCH_FAILED",
    "RECONFIG_FAIL",
    "POWER_UP_NODE",
    "UPDATE_DB",
    "EXPEDITING",
)
SLURM_STATES = (*BASE_STATES, *_STATE_FLAGS)
# what tables and recordings of other workload managers have in their place
OTHER_STATES = (
    *("PEND", "PSUSP", "WAIT", "PROV", "RUN", "USUSP", "SSUSP", "DONE", "EXIT"),  # LSF
    *("QUEUED", "HELD", "EXITING", "FINISHED"),  # PBS
    *("SCHED", "CLEANUP", "INACTIVE", "CANCELED"),  # Flux
    *("SUCCEEDED", "UNKNOWN"),  # Kubernetes
)
