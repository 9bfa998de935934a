import sys

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

from orchestrator.training import Training
from orchestrator.training.adapters.huggingface import train

training = Training.from_environment()  # before anything slow: from here on SIGTERM means "save, then leave"
torch.manual_seed(0)
model = BertForMaskedLM(
    BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
)
texts = [{"input_ids": [(7 * i + j * j) % 61 + 3 for j in range(12)]} for i in range(416)]


def masked(items):  # random choices may be made anywhere: in the data set, here, in the model
    tokens = torch.tensor([item["input_ids"] for item in items])
    mask = torch.rand(tokens.shape) < 0.3
    return {"input_ids": tokens.masked_fill(mask, 1), "labels": tokens.masked_fill(~mask, -100)}


arguments = TrainingArguments(
    output_dir="trainer",
    max_steps=int(sys.argv[1]),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    dataloader_num_workers=int(sys.argv[2]),
    learning_rate=1e-3,
    warmup_steps=5,
    logging_steps=1,
    disable_tqdm=True,
    report_to=[],
)
trainer = Trainer(model, arguments, data_collator=masked, train_dataset=texts)
train(trainer, training)  # instead of trainer.train()
