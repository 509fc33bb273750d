"""The run-time type checker of the tests: an int is a float, as in Python's own typing rules."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
