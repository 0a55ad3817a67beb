"""Validation at the papers' scale: task maps, published curves, criteria, runs and reports.

`docs/validation.md` says what is compared and how to run it.
"""
