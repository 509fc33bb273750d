"""Classification: one label per image."""
