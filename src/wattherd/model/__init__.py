"""The nouns: frozen, without behaviour beyond their own arithmetic, and without any I/O."""
