"""Sessions on Google Colab, through its official command line (docs/colab.md)."""
