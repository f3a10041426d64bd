"""The annexes: each imports the core, never another annex, and could be a package of its own."""
