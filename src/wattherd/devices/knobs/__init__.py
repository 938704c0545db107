"""Limits and switches of devices, one URI each: read, set, read back, put back."""
