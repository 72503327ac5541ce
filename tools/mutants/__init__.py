"""Count how many mutants of the package the tests catch: see __main__.py."""
