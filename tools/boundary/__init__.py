"""Checks that hold the stages apart: pure functions from the repository to a list of findings."""
