"""Talking to an API server: reading objects, writing them, and being the one who may."""
