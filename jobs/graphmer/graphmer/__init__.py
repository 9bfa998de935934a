"""GraphMER: a text encoder trained on source code and the knowledge graph of that code.

Data flows one way. `graph` reads facts from source (`triples` reads them from JSONL). `tokens` and `corpus`
turn them into arrays. `packing`, `negatives`, `pages` and `plan` make batches. `model` is the encoder,
`objectives` has its losses, and `loop` trains it. `evaluation`, `baselines` and `report` measure the result.
`config` has the keys, `flops` computes the cost, and `train` is the command.
"""
