"""The devices of this machine: found, measured, limited."""
