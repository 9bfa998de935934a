"""The result of a training: one measurement, as JSON, as Markdown tables and as curves.

Decides which rows are compared. The row of a model that reads the passage's text says so. Must never know how
ranks are computed, or anything about the training except its checkpoint.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphmer import baselines, config, evaluation
from graphmer.baselines import Progress, silent
from graphmer.corpus import HEAD, PASSAGE, RELATION, TAIL, Corpus
from graphmer.evaluation import Integers, Ranking, Stop, Summary, never
from graphmer.model import Encoder

FORMAT = 1
FREQUENCY, GRAPH, TEXT = "frequency", "GraphMER, graph alone", "GraphMER, with the passage's text"
KNOWN, ALL = "heads_known", "all_heads"
QUICK_FACTS, QUICK_EPOCHS = 500, 2
_METHOD = """\
The tail of (head, relation, ?) is ranked among all {known_entities:,d} entities that training knows. Other
true tails are left out of the ranking (filtered). Equal scores share their mean place. A held-out fact is a
query only if training does not state it and knows its tail, and only once: {number} of {held_out_facts:,d}
facts. "Violations" is the percentage of first guesses that break the ontology."""
_TITLES = {
    KNOWN: "Heads that training knows: every model has seen them",
    ALL: "All heads: for unknown heads, TransE and ComplEx fall back to the order of frequency",
}
_ROWS = f"""\
Compare "{GRAPH}" with TransE and ComplEx: all three see the head and the relation, but no
text. GraphMER reads how the names are spelled, even those that training never saw. To the others, an entity
is a number. "{TEXT}" reads the source that states the fact. No other row sees that
source, and the tail is often spelled out in it."""

Row = Mapping[str, float]


def files(found: Mapping[str, Any], history: Sequence[Row], about: Mapping[str, Any]) -> dict[str, bytes]:
    """report.json, report.md and curves.png from what `measure` found.

    `history` are rows {"step": …, metric: …}. `about` (seed, steps, …) is reported as it is.
    """
    whole = {**found, "about": dict(about), "history": [dict(row) for row in history]}
    return {
        "report.json": (json.dumps(_finite(whole), indent=1, sort_keys=True) + "\n").encode(),
        "report.md": markdown(whole).encode(),
        "curves.png": curves(history, whole),
    }


def measure(
    encoder: Encoder,
    corpus: Corpus,
    *,
    seed: int = 0,
    limit: int | None = None,
    epochs: int | None = None,
    stop: Stop = never,
    progress: Progress = silent,
) -> dict[str, Any]:
    """All figures of an encoder and of the baselines, which are trained here, as `report.json` has them.

    `seed` is for the baselines. `limit` takes a sample of the held-out facts. `epochs` replaces the number
    chosen for each baseline. The encoder's mode is restored at the end. "metrics" holds those of
    `evaluation.evaluate`, so that it need not run again. `stop` is asked at least once per batch; then
    `evaluation.Stopped` is raised.
    """
    device = next(encoder.parameters()).device
    facts = evaluation.held_out_facts(corpus, limit)
    progress(f"GraphMER on {len(facts):,d} held-out facts …")
    entities = torch.from_numpy(corpus.entity_tokens.astype(np.int64)).to(device)
    rows = None if limit is None else evaluation.SAMPLED_ROWS
    own = evaluation.evaluate_encoder(encoder, corpus, entities, facts, rows=rows, stop=stop)
    rankings = {FREQUENCY: _ranking(baselines.Frequency(corpus), corpus, facts, stop)}
    trained = []
    for settings in (baselines.TRANSE, baselines.COMPLEX):
        model = baselines.train(
            corpus, settings, seed=seed, epochs=epochs, device=device, stop=stop, progress=progress
        )
        trained.append(model.settings)
        rankings[settings.model] = _ranking(model, corpus, facts, stop)
    rankings |= {GRAPH: own.graph, TEXT: own.text}
    everywhere = np.ones(len(facts), dtype=bool)
    chosen = {KNOWN: evaluation.known_heads(corpus, facts), ALL: everywhere}
    return {
        "format": FORMAT,
        "seed_of_baselines": seed,
        "corpus": _counts(corpus) | {"asked": len(facts), "sampled": limit == len(facts)},
        "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "settings": {settings.model: asdict(settings) for settings in trained},
        "metrics": own.metrics(),
        "tables": {name: _table(corpus, facts, rankings, which) for name, which in chosen.items()},
        "violations_of_the_truth": {
            name: evaluation.ontology_violations(corpus, facts[which], corpus.facts[facts[which], TAIL])
            for name, which in chosen.items()
        },
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The two tables, with the explanations that a reader needs."""
    corpus, truth = found["corpus"], found["violations_of_the_truth"]
    number = f"{corpus['asked']:,d}{' (a fixed sample)' if corpus['sampled'] else ''}"
    lines = ["# GraphMER: facts of held-out modules", "", _heading(found), ""]
    lines += [_METHOD.format(number=number, **corpus), ""]
    for name, title in _TITLES.items():
        lines += [f"## {title}", "", "| | MRR | Hits@1 | Hits@10 | violations % |", "|---|---|---|---|---|"]
        for model, row in found["tables"][name].items():
            figures = " | ".join(f"{row[key]:.4f}" for key in ("mrr", "hits_1", "hits_10"))
            lines.append(f"| {model} | {figures} | {row['violations']:.1f} |")
        count = found["tables"][name][FREQUENCY]["count"]
        lines += ["", f"{count:,d} facts; {truth[name]:.1f} % of their true tails break the ontology.", ""]
    words = f"Masked tokens, held-out passages: {found['metrics']['held_out_word_loss']:.3f} nats per token."
    return "\n".join([*lines, _ROWS, "", words, ""])


def curves(history: Sequence[Row], found: Mapping[str, Any] | None = None) -> bytes:
    """A PNG of loss, masked-token loss and MRR over the steps; `found` adds the baselines' final MRR."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained", dpi=110)
    panels = (
        ("training loss", "nats", {"loss": "all objectives, weighted"}),
        ("masked tokens", "nats a token", {"words": "training", "held_out_word_loss": "held out"}),
        ("held-out facts, all heads", "filtered MRR", {"mrr": GRAPH, "text_mrr": TEXT}),
    )
    for axes, (title, unit, names) in zip(figure.subplots(1, 3), panels, strict=True):
        for key, label in names.items():
            points = [(row["step"], row[key]) for row in history if math.isfinite(row.get(key, math.nan))]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 40 else "")
        axes.set(title=title, xlabel="step", ylabel=unit)
        axes.grid(alpha=0.3)
    if found is not None:
        axes = figure.axes[-1]
        for place, (name, row) in enumerate(found["tables"][ALL].items()):
            if name not in (GRAPH, TEXT):
                axes.axhline(row["mrr"], color=f"C{place + 2}", linestyle="--", label=name)
        axes.set_ylim(bottom=0)
    for axes in figure.axes:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def frequency(corpus: Corpus, stop: Stop = never) -> Summary:
    """The result of always guessing the relation's most frequent tails, on all held-out facts."""
    facts = evaluation.held_out_facts(corpus)
    return Summary.of(_ranking(baselines.Frequency(corpus), corpus, facts, stop).ranks)


def _ranking(
    model: baselines.Frequency | baselines.Embeddings, corpus: Corpus, facts: Integers, stop: Stop
) -> Ranking:
    rows = corpus.facts[facts].astype(np.int64)
    return evaluation.rank(
        corpus, facts, lambda block: model.scores(rows[block, HEAD], rows[block, RELATION]), stop
    )


def _table(
    corpus: Corpus, facts: Integers, rankings: Mapping[str, Ranking], which: np.typing.NDArray[np.bool_]
) -> dict[str, dict[str, float]]:
    return {
        name: asdict(Summary.of(ranking.ranks[which]))
        | {"violations": evaluation.ontology_violations(corpus, facts[which], ranking.predicted[which])}
        for name, ranking in rankings.items()
    }


def _counts(corpus: Corpus) -> dict[str, Any]:
    triples = corpus.facts[:, [HEAD, RELATION, TAIL]]
    apart = corpus.held_out[corpus.facts[:, PASSAGE]]
    return {
        "fingerprint": corpus.fingerprint(),
        "training_facts": len(np.unique(triples[~apart], axis=0)),
        "held_out_facts": len(np.unique(triples[apart], axis=0)),
        "known_entities": int(corpus.entity_known.sum()),
        "entities": len(corpus.entities),
        "relations": list(corpus.relations),
    }


def _heading(found: Mapping[str, Any]) -> str:
    about = found.get("about", {})
    told = [f"{key} {about[key]}" for key in ("steps", "global_batch", "seed") if key in about]
    epochs = [f"{name} {each['epochs']} epochs" for name, each in found["settings"].items()]
    return "; ".join(
        [
            f"{found['parameters']:,d} parameters",
            *told,
            f"{found['corpus']['training_facts']:,d} training facts",
            f"baselines of seed {found['seed_of_baselines']}: {', '.join(epochs)}",
            f"corpus {found['corpus']['fingerprint'][:12]}",
        ]
    )


def _finite(value: Any) -> Any:
    """Replaces NaN by null, because JSON has no NaN."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def load(checkpoint: Path, device: torch.device) -> tuple[Encoder, Corpus, list[Row], dict[str, Any]]:
    """The encoder, corpus, history and identity of a checkpoint's folder. Raises ValueError
    for other folders."""
    from orchestrator.training import state

    corpus = Corpus.from_state(state.component(checkpoint, "corpus"))
    settings = config.from_plain(state.component(checkpoint, "config"))
    encoder = Encoder(settings.model, corpus.vocabulary, len(corpus.relations))
    encoder.load_state_dict(state.component(checkpoint, "model"))
    history = state.component(checkpoint, "history")["rows"]
    return encoder.to(device), corpus, history, dict(state.component(checkpoint, "identity"))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m graphmer.report", description="Compares a checkpoint with baselines trained now."
    )
    parser.add_argument("checkpoint", type=Path, help="a folder step-<number>")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the three reports")
    parser.add_argument("--seed", type=int, help="seed of the baselines (default: the training's)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_FACTS} facts, {QUICK_EPOCHS} epochs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    limit, epochs = (QUICK_FACTS, QUICK_EPOCHS) if given.quick else (None, None)
    try:
        encoder, corpus, history, about = load(given.checkpoint, torch.device(given.device))
        seed = about["seed"] if given.seed is None else given.seed
        found = measure(encoder, corpus, seed=seed, limit=limit, epochs=epochs, progress=_to_stderr)
        written = files(found, history, about)
        given.output.mkdir(parents=True, exist_ok=True)
        for name, content in written.items():
            (given.output / name).write_bytes(content)
    except KeyboardInterrupt:
        _to_stderr("graphmer.report: interrupted, nothing was written")
        sys.exit(130)
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"graphmer.report: {error}")
    print(written["report.md"].decode())


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
