"""Host side of the recipe: decides what to start and starts it. Knows nothing of tensors and never imports the engine."""
