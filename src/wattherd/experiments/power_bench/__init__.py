"""`power bench`: the safety loop in rooms that flatter nobody."""
