"""Published hardware facts: watts and memory of GPUs and CPUs, every figure with its source.

Pure tables without I/O. What a device does under a given load is `estimate`'s business.
"""
