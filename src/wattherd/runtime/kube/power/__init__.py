"""Power domains, budgets and queues as API objects, and what they add up to."""
