"""Parsing of user text without evaluating it."""
