"""Rerun published experiments and compare, number by number. One module per publication."""
