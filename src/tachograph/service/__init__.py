"""Programs that run unattended: collect (into a lake), record (GPUs of a command), fill (a
simulated lake).
"""
