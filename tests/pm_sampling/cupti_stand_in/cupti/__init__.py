"""CUPTI without a GPU: the modules of cupti-python 13.4 that are used, with its signatures.

A JSON file, named in the environment, is the node: its GPUs, what runs on them, what their chips
count in one pass, and faults. It is read again at every call, so that a test changes it while the
sampler runs.
"""
