"""GraphMER: a text encoder trained on source code and the knowledge graph of that code.

Data walks one way: `graph` reads source into facts (`triples` reads them from JSONL), `tokens` and `corpus`
make arrays of them, `packing`, `negatives`, `pages` and `plan` make batches, `model` is the encoder,
`objectives` its losses, `loop` trains it; `evaluation`, `baselines` and `report` say what it came to.
`config` has the keys, `flops` the cost, `train` is the command.
"""
