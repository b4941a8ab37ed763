"""Three small generated corpora, a tokenizer trained on them, and a config: everything to try streamsft offline."""
