"""Who a request is from: one file per way to prove it.

`identities` has the ordered tuple in which the ways are tried.
"""
