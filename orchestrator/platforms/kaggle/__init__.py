"""Sessions as Kaggle kernels: docs/kaggle.md."""
