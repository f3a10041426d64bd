"""Kernel demand on a GPU, its limits, and the effect of sharing one.

Source: Elvinger, Strati, Enright Jerger, Klimovic, "Measuring GPU utilization one level deeper"
(2025), for what there is to measure and for the numbers the estimator is checked against."""
