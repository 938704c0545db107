"""A bidder for watts that learns by reinforcement, and how it is judged."""
