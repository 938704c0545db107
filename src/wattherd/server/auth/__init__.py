"""Who may do what: tokens, roles, tenants, rate limits, and the record of what was done."""
