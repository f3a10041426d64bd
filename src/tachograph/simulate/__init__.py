"""A simulated cluster with known truth, of any size, from a seed.

plan  ->  requests  ->  runs on GPUs  ->  levels over time  ->  samples with defects  ->  files and truth
"""

from tachograph.simulate.cluster import SimulatedCluster, simulate
from tachograph.simulate.kinds import FACTS, Kind
from tachograph.simulate.plan import NodeGroup, Plan

__all__ = ["FACTS", "Kind", "NodeGroup", "Plan", "SimulatedCluster", "simulate"]
