"""How we choose. Policies propose; the guard of the engine disposes."""
