"""Where work comes from: traces and generators, turned into pods, clusters and arrival orders.

This room reads files and draws random numbers; it knows no engine, no policy and no clock.
"""
