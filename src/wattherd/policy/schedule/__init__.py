"""Whole schedulers: who runs, where and how large. One file per published system."""
