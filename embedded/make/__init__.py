"""How the embedded checkpoint is made: data generator, tokenizer corpus, training, export. Nothing here runs when it is served."""
