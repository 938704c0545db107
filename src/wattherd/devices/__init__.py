"""Instruments: meters, knobs, signals, and the wires to them."""
