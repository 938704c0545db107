"""The shells: they carry events to the core and its commands to a world, real or simulated."""
