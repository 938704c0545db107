"""Readings of power: one URI each, one small driver per protocol, the same answers and errors."""
