"""CUPTI PM sampling of this node's GPUs, without code in the sampled program.

metrics     which metrics: those that a chip counts in one pass
library     the seam to CUPTI
faults      every reason why a GPU cannot be sampled, and what to do
sampler     the session of one GPU, and the thread that drains it
sums        sums of samples: scores, activities, rows of tables
child       the sampling process; with `dcgm`, which pauses DCGM where that is wished
process     its parent's side
feed        the source `pm-sampling` of `collect`
"""
