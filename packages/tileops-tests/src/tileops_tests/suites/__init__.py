"""Test suites that ship in the wheel."""
