"""`power fit` and `power predict`: models of draw, fitted and judged."""
