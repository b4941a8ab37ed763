"""The stream in training loops of others: transformers' Trainer and TRL's, Lightning, Accelerate.

Each module needs the library that it is for, and is imported when a name of it is first used. All of them pull
micro-batches through `streamsft.integrations.microsteps`, which knows what of them was trained on.
"""
