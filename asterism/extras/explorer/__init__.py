"""The explorer: a page on the loopback address that shows what a model sees in images, and where."""
