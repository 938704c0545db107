"""wattherd for programs and notebooks: the names that `import wattherd` offers are made here."""
