"""What people write from other tools, and what it is called here.

Decides only which of our keys, placeholders and values is meant. Must never know what was given for them.
"""

from __future__ import annotations

from collections.abc import Mapping

_SOURCE = "the folder of the code is `source`"
_COMMAND = "what to run is `command`; several commands are `command: {shell: |}` with a line for each"
_PACKAGES = "packages to install belong in a file, which `requirements` names"
_DEVICES = (
    "accelerators are the keys of `profiles`, such as `profiles: {T4: {micro_batch: 8, precision: fp16}}`"
)
_DATA = "data comes with `inputs`, a list of {name, from}; the command finds it in ORCHESTRATOR_INPUTS"
_STEPS = "optimizer steps are `work.total`"
_EPOCHS = "a run is counted in optimizer steps: `work.total` is epochs × steps of an epoch"
_BATCH = "samples per optimizer step are `work.global_batch`, and those per device `micro_batch` of a profile"
_SCRIPT = "an argument of the training belongs in `command`"
_SAVES = "where the script saves is `checkpoint.watch`, such as checkpoints/ckpt_{step}.pt"
_RESUMES = "a run resumes by itself; where the script saves is `checkpoint.watch`, and {resume} in `command`"
_OUTPUTS = "files to bring home are `outputs`, a list of paths"
_RETRIES = "failures in a row that are allowed are `retry.without_progress`"
_LIMIT = "when the run should be done is `route.finish_within`, such as 2d"
_HOOKS = "`notify` says who is told of what"
_ONE = "a file is one job, whose keys are at the top"

_BY_HINT: Mapping[str, str] = {
    _SOURCE: "workdir working_dir working_directory code code_dir src repo project",
    _COMMAND: "run script scripts cmd entrypoint entry_point main program commands before_script job_command",
    _PACKAGES: "setup install pip packages dependencies conda environment_file python_packages",
    _DEVICES: "resources accelerator accelerators gpu gpus num_gpus gpu_type device devices instance_type "
              "machine_type nodes num_nodes hardware flavor compute",
    "environment variables are `env`, a mapping": "environment envs environment_variables variables env_vars",
    _DATA: "volumes mounts file_mounts storage_mounts data dataset datasets data_dir",
    _STEPS: "steps max_steps total_steps num_steps train_steps iterations max_iters",
    _EPOCHS: "epochs num_epochs max_epochs num_train_epochs",
    _BATCH: "batch batch_size train_batch_size per_device_train_batch_size micro_batch_size "
            "gradient_accumulation_steps accumulate_grad_batches",
    _SCRIPT: "args arguments params parameters_file hyperparameters hparams learning_rate lr optimizer model "
             "config",
    _SAVES: "checkpoint_dir checkpoint_path ckpt_dir save_dir",
    _RESUMES: "resume resume_from resume_from_checkpoint auto_resume",
    _OUTPUTS: "artifacts output output_dir results logs",
    _RETRIES: "retries max_retries max_restarts max_restarts_on_errors backofflimit restart restart_policy",
    _LIMIT: "timeout time time_limit walltime max_run_duration deadline",
    _HOOKS: "notifications webhook email mail slack callbacks",
    _ONE: "job jobs task tasks stages services spec metadata",
    "where an input comes from is its `from`": "path url uri location",
    "which images run where is `image`": "container docker docker_image container_image",
    "where to run is `route.platforms`": "cloud clouds provider providers platform backend region",
}  # fmt: skip
_BELOW = {
    "checkpoint.dir": _SAVES, "checkpoint.path": _SAVES, "checkpoint.folder": _SAVES,
    "checkpoint.pattern": _SAVES, "checkpoint.every": "the time between two is `checkpoint.interval`",
    "checkpoint.frequency": "the time between two is `checkpoint.interval`",
    "checkpoint.save_steps": "the time between two is `checkpoint.interval`, such as 10m",
    "checkpoint.max": "how many to keep is `checkpoint.keep.last`",
    "checkpoint.keep_last": "how many to keep is `checkpoint.keep.last`",
    "checkpoint.save_total_limit": "how many to keep is `checkpoint.keep.last`",
}  # fmt: skip
HINTS: Mapping[str, str] = {
    **{name: hint for hint, names in _BY_HINT.items() for name in names.split()},
    **_BELOW,
}
"""What a key of another tool is here, by its own name or by its path."""

PLACEHOLDERS: Mapping[str, str] = {
    name: ours
    for ours, names in {
        "steps": "total step max_steps total_steps num_steps iterations epochs",
        "micro_batch": "batch batch_size bs micro_batch_size per_device_batch_size",
        "accumulate": "gradient_accumulation_steps grad_accum accumulation",
        "devices": "world_size gpus num_gpus n_gpus nproc_per_node device",
        "precision": "dtype amp fp16 bf16",
        "resume": "checkpoint ckpt resume_from checkpoint_path resume_path",
    }.items()
    for name in names.split()
}
"""Which placeholder of a command is probably meant."""


def precision(given: str) -> str:
    """The precision that another framework calls so, such as `16-mixed`; empty if there is none here."""
    text = given.lower()
    if "bf16" in text or "bfloat" in text:
        return "bf16"
    if text.startswith(("16", "float16", "fp16", "half")) or text == "mixed":
        return "fp16"
    return "fp32" if text.startswith(("32", "float32", "fp32", "tf32", "full", "no", "single")) else ""
