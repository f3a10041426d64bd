"""A simulated cluster straight into a lake: the samples of a month without files in between.

What is simulated, written, ingested and compacted elsewhere is made here a day of some nodes at a time, in memory, and
lands as one file that stays as it is. Killed at any moment, it goes on where it was.
"""

from tachograph.fill.run import Filled, fill

__all__ = ["Filled", "fill"]
