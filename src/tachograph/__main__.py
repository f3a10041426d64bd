"""`python -m tachograph`."""

from tachograph.cli import program

program()
