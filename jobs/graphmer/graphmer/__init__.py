"""GraphMER: a text encoder trained on source code and the knowledge graph of that code.

`graph` reads source into facts, `chains` encodes them, `data` makes batches, `model` is the encoder, `loop`
trains and evaluates it, `train` is the command.
"""
