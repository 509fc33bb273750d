"""Text towers: sentences in, vectors out. Our own, which is trained here, and those of transformers and open_clip."""
