"""A live cluster: one core, its journal, and the hands that carry its orders out."""
