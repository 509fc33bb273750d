"""Tools on frozen features, without training: track masks, segment from examples, find similar images."""
