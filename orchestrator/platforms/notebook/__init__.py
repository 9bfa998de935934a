"""Sessions in a notebook that a person opens. User documentation: docs/colab.md, "With a notebook".

options.py    what a user may set
platform.py   the platform protocol over a mailbox
surveying.py  what it offers, by whether a notebook attends to the mailbox
writing.py    the notebook, as a file
cell.py       the program in the notebook's one cell
"""
