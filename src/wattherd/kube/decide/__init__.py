"""Decisions, without I/O: places, evictions, caps, reasons."""
