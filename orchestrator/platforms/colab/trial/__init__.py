"""A trial of the real service: two small machines that check what we could only assume about Colab.

`course` is its steps, which use the platform's own verbs and command line. `probe` has cells that tell what a
machine is. `assumptions` are the questions.
"""
