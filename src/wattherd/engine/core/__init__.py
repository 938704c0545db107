"""The decision core: events in, commands out; what planners see, and the guard."""
