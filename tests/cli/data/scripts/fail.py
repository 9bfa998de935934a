"""Fails in the way that its argument names."""

import argparse
import importlib
import sys

match sys.argv[1]:
    case "module":
        importlib.import_module("flash_attention_that_nobody_has")
    case "syntax":
        compile("def train(:\n", "train.py", "exec")
    case "arguments":
        argparse.ArgumentParser(prog="train.py").parse_args(["--stepz", "5"])
    case "network":
        raise ConnectionError("the server does not answer")
