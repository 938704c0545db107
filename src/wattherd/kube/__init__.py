"""Kubernetes as a shell of the core, in five floors: api < facts < account < decide < live."""
