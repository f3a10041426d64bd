"""The annexes: each imports the core and no other annex, and could be a distribution of its own."""
