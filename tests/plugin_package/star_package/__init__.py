"""A package of somebody else's, which adds one thing of each kind to Asterism."""
