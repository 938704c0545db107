"""Tells users what becomes of their jobs, by webhooks and e-mail."""
