"""Detection: the box, class and perhaps mask of every object of an image."""
