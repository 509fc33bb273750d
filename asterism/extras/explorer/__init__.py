"""The explorer: a page on the loopback address that asks a model what is in images and where."""
