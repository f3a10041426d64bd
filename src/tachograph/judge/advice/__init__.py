"""Advice for a job before it is submitted: what past jobs like it used."""
