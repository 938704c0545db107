"""The second scheduler: pods as works of the core, its orders as bindings and evictions."""
