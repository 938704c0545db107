"""A package beside wattherd: one file for each seam."""
