"""What a site may draw: limits of its levels, signals, announced budgets, headroom."""
