"""What a kernel demands of a GPU, what slows it down, and what happens when several share one.

Source: Elvinger, Strati, Enright Jerger, Klimovic, "Measuring GPU utilization one level deeper"
(2025), for what there is to measure and for the numbers the estimator is checked against."""
