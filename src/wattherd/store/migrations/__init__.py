"""How a store of an earlier version becomes one of today; run by `store.database` when it opens."""
