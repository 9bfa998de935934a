from argparse import ArgumentParser
from random import Random

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

GOOD = "great lovely superb fun brilliant warm clever moving".split()
BAD = "dull awful boring weak clumsy cold silly tedious".split()
OTHER = "the film was and a plot with actors scenes music it had very some".split()
VOCABULARY = {word: number + 2 for number, word in enumerate(GOOD + BAD + OTHER)}


class Reviews(torch.utils.data.Dataset):
    """Made-up film reviews, positive or negative."""

    def __init__(self, size, seed):
        random = Random(seed)
        self.items = []
        for _ in range(size):
            label = random.randint(0, 1)
            words = random.choices(OTHER, k=12) + random.choices(GOOD if label else BAD, k=2)
            random.shuffle(words)
            self.items.append({"input_ids": [1] + [VOCABULARY[word] for word in words], "label": label})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


parser = ArgumentParser()
parser.add_argument("--max_steps", type=int, default=120)
parser.add_argument("--resume_from_checkpoint", default=None)
args = parser.parse_args()

set_seed(42)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        max_steps=args.max_steps,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        save_steps=10,
        logging_steps=10,
        report_to="none",
    ),
    train_dataset=Reviews(640, seed=1),
    eval_dataset=Reviews(160, seed=2),
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
print(trainer.evaluate())
trainer.save_model("out/final")
