"""A simulated cluster with known truth, of any size, from a seed.

plan  ->  requests  ->  runs on GPUs  ->  levels over time  ->  samples with defects  ->  files and
truth
"""
