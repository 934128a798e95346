"""Between words and token ids: tokenizer, chat template, detokeniser, stops, reasoning. Knows no HTTP and no tensors."""
