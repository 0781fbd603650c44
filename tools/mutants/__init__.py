"""Mutants of kernels, oracles, the comparator and roofline formulas: made, run, remembered."""
