"""Semantic segmentation: a class for every pixel, with heads from a linear layer to Segmenter's mask transformer."""
