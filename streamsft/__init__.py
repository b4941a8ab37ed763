"""streamsft: endless, weighted, packed, loss-masked streams for LLM fine-tuning."""
