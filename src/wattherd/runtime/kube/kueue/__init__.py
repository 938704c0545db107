"""An admission check for those who admit with Kueue."""
