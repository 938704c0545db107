"""For tests, here and elsewhere: builders, Hypothesis strategies and an oracle.

`builders` makes the nouns in few words, `strategies` draws them (it alone needs Hypothesis, which
is no dependency of wattherd: install it to import it), `oracle` restates the published rules in
plain Python. Nothing outside tests imports this package.
"""
