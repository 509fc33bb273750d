"""What frozen features can do at once, without training: follow masks, segment by example, find similar images."""
