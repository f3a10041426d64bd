"""Identity of a request: one file per method of proof.

`identities` has the ordered tuple in which the ways are tried.
"""
